"""What a file of translations holds: entries, most of them pairs of sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# Why an entry is not a pair.
UNTRANSLATED = "untranslated"
EMPTY = "without a source"
FUZZY = "fuzzy"
OTHER_LANGUAGES = "in other languages"
MARKUP_ONLY = "markup only"
NOT_FOR_TRANSLATION = "not to be translated"
REASONS = (UNTRANSLATED, EMPTY, FUZZY, OTHER_LANGUAGES, MARKUP_ONLY, NOT_FOR_TRANSLATION)

LONGEST_TEXT = 1_000_000  # characters of one side of an entry

Languages = tuple[str, str]  # codes of source and target

_LINE_BREAKS = re.compile(r"\s*[\r\n]\s*")


class Entry(NamedTuple):
    source: str
    target: str
    line: int  # of the file, where the entry begins
    left_out: str | None = None  # why it is not a pair


def make_entry(source: str, target: str, line: int, left_out: str | None = None) -> Entry:
    """An entry of two texts, each made one line; one with an empty side is left out."""
    source = one_line(source)
    target = one_line(target)
    if left_out is None and not source:
        left_out = EMPTY
    if left_out is None and not target:
        left_out = UNTRANSLATED
    return Entry(source, target, line, left_out)


def turned(entry: Entry) -> Entry:
    """The entry of a file that translates the other way round."""
    return entry._replace(source=entry.target, target=entry.source)


def one_line(text: str) -> str:
    """A line break, and the white space around it, becomes a space; none is left at the ends.

    NUL, which text cannot have, becomes a space, too.
    """
    return _LINE_BREAKS.sub(" ", text.replace("\0", " ").strip())


def matches(code: str, wanted: str) -> bool:
    """Whether a language may be the wanted one: de-DE is de, and de may be de-DE."""
    code = _normal(code)
    wanted = _normal(wanted)
    is_variety = code.startswith(f"{wanted}-")
    return bool(code) and (code == wanted or is_variety or wanted.startswith(f"{code}-"))


def best_match(codes: Iterable[str], wanted: str) -> str | None:
    """The code that is the wanted language: exactly, or else the first that may be it."""
    found = [code for code in codes if matches(code, wanted)]
    for code in found:
        if _normal(code) == _normal(wanted):
            return code
    return found[0] if found else None


def _normal(code: str) -> str:
    return code.strip().lower().replace("_", "-")
