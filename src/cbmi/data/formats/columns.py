"""Which columns of a table hold the source and the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cbmi.data.formats.entry import Languages, best_match
from cbmi.errors import UserError

Columns = tuple[str, str]  # names; a.b is the field b of the column a

NAMES = ("source", "target")
NESTED = "translation"  # as datasets of Hugging Face have it: {"en": …, "de": …}


def find_columns(
    names: Sequence[str], languages: Languages, given: Columns | None, where: str
) -> Columns:
    """Those that are given; or those named by language; or `source` and `target`."""
    if given is not None:
        for name in given:
            if name not in names:
                raise UserError(f"{where}: there is no column '{name}', but {_listed(names)}.")
        if given[0] == given[1]:
            raise UserError(f"--columns: source and target are both '{given[0]}'.")
        return _once(given, names, where)
    found = named_columns(names, languages)
    if found is None:
        source, target = languages
        raise UserError(
            f"{where}: there are no columns {source} and {target}, or source and target, but "
            f"{_listed(names)}; say which with `cbmi corpus convert --columns SOURCE TARGET`."
        )
    return _once(found, names, where)


def _once(columns: Columns, names: Sequence[str], where: str) -> Columns:
    for name in columns:
        if list(names).count(name) > 1:
            raise UserError(f"{where}: there are several columns '{name}'.")
    return columns


def named_columns(names: Sequence[str], languages: Languages) -> Columns | None:
    """The columns of the two languages, or `source` and `target`; None if there are none."""
    nested = [name for name in names if name.startswith(f"{NESTED}.")]
    top = [name for name in names if name not in nested]
    by_language = _pair(best_match(top, code) for code in languages)
    if by_language is not None:
        return by_language
    lowered = {name.strip().lower(): name for name in top}
    if all(name in lowered for name in NAMES):
        return lowered[NAMES[0]], lowered[NAMES[1]]
    fields = {name.partition(".")[2]: name for name in nested}
    codes = _pair(best_match(fields, code) for code in languages)
    return None if codes is None else (fields[codes[0]], fields[codes[1]])


def _pair(found: Any) -> Columns | None:
    source, target = found
    if source is None or target is None or source == target:
        return None
    return source, target


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none"
    shown = ", ".join(repr(name) for name in names[:10])
    return f"{shown}, …" if len(names) > 10 else shown
