"""Corpora in several files: wildcards such as part-*.en.gz, local or in a URL."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from cbmi.errors import UserError
from cbmi.progress import counted
from cbmi.urls import is_url, urls_like

WILDCARDS = frozenset("*?[")
URL_WILDCARDS = frozenset("*")  # a question mark begins a query


def find_shards(files: Sequence[str]) -> list[tuple[str, ...]]:
    """The files of each part of a corpus: two aligned ones, or one that holds both sides.

    `files` are two names or one. If they have wildcards, each stands for several files, in
    alphabetical order; those of both sides belong together one by one.
    """
    sides = [_files_like(name) for name in files]
    counts = [len(side) for side in sides]
    if len(set(counts)) > 1:
        raise UserError(
            f"{files[0]} stands for {counted(counts[0], 'file')} but {files[1]} for {counts[1]:,}: "
            "each file of one side needs its counterpart on the other."
        )
    return list(zip(*sides, strict=True))


def _files_like(name: str) -> list[str]:
    if is_url(name):
        if URL_WILDCARDS.isdisjoint(name):
            return [name]
        found = urls_like(name)
    else:
        if WILDCARDS.isdisjoint(name) or Path(name).exists():
            return [name]
        found = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())
    if not found:
        raise UserError(f"{name}: no file has a name like this.")
    return found
