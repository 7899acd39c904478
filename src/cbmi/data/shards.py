"""Corpora in several files: wildcards such as part-*.en.gz, local or in a URL."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from cbmi.errors import UserError
from cbmi.progress import counted
from cbmi.urls import Url, name_of, named_by_user, urls_like

WILDCARD = re.compile(r"\*\*/?|\*|\?|\[[^\]]+\]")
URL_WILDCARD = re.compile(r"\*\*/?|\*")  # a question mark begins a query

Matched = tuple[str, ...]  # what each wildcard stands for


def find_shards(files: Sequence[str]) -> list[tuple[str, ...]]:
    """The files of each part of a corpus: two aligned ones, or one that holds both sides.

    `files` are what the user named, two or one: paths or URLs. If they have wildcards, each stands
    for several files, in alphabetical order of what the wildcards stand for. Files of both sides
    for which that is the same belong together.
    """
    sides = [_files_like(named_by_user(name)) for name in files]
    first = sides[0]
    for name, side in zip(files, sides, strict=True):
        if len(side) != len(first):
            raise UserError(
                f"{files[0]} stands for {counted(len(first), 'file')} but {name} for "
                f"{len(side):,}: each file of one side needs its counterpart on the other."
            )
        for matched, path in first.items():
            if matched not in side:
                raise UserError(
                    f"{path}: {name} has no counterpart for it: the wildcards of both sides have "
                    "to stand for the same."
                )
    return [tuple(side[matched] for side in sides) for matched in sorted(first)]


def corpus_name(shards: Sequence[Sequence[str]]) -> str:
    """A corpus for people: its first part, and how many others there are."""
    first = " and ".join(name_of(file) for file in shards[0])
    others = len(shards) - 1
    return f"{first} and {counted(others, 'other part')}" if others else first


def _files_like(name: str) -> dict[Matched, str]:
    """By what the wildcards of a name stand for: the files."""
    wildcard = URL_WILDCARD if isinstance(name, Url) else WILDCARD
    if not wildcard.search(name):
        return {(): name}
    found: Sequence[str]
    if isinstance(name, Url):
        found = urls_like(name)
    else:
        try:
            if Path(name).exists():
                return {(): name}
            found = [path for path in glob.glob(name, recursive=True) if Path(path).is_file()]
        except OSError as error:
            raise UserError(f"{name}: cannot be read: {error.strerror or error}.") from None
    if not found:
        raise UserError(f"{name}: no file has a name like this.")
    expression = _expression(name, wildcard)
    by_match = {}
    for path in found:
        match = expression.fullmatch(path)
        if match is None:
            raise UserError(f"{name}: what its wildcards stand for in {path} is not clear.")
        by_match[match.groups()] = path
    return by_match


def _expression(pattern: str, wildcard: re.Pattern[str]) -> re.Pattern[str]:
    """A regular expression with a group for each wildcard."""
    parts = []
    end = 0
    for found in wildcard.finditer(pattern):
        parts.append(re.escape(pattern[end : found.start()]))
        end = found.end()
        text = found.group()
        if text == "**/":
            parts.append("((?:.*/)?)")
        elif text == "**":
            parts.append("(.*)")
        elif text == "*":
            parts.append("([^/]*)")
        elif text == "?":
            parts.append("([^/])")
        else:
            parts.append(f"({text.replace('[!', '[^')})")
    parts.append(re.escape(pattern[end:]))
    return re.compile("".join(parts), re.DOTALL)
