"""Sheets: an annotator's items as CSV for a spreadsheet program, and the ratings back from it."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from cbmi.errors import UserError
from cbmi.humaneval.schemes import CRITERIA, HIGHEST, LOWEST, Rating
from cbmi.humaneval.study import Study

COLUMNS = ("annotator", "item", "source", "reference", "translation", *CRITERIA)
DELIMITERS = ",;\t"  # spreadsheet programs choose by the language they are set to
_FIELD_LIMIT = threading.Lock()  # held while the csv module's limit is raised
LONGEST_NUMBER = 18  # digits of an item's number
VALUES = [str(value) for value in range(LOWEST, HIGHEST + 1)]


class ImportedRatings(NamedTuple):
    read: int
    replaced: int  # of those read, the ones that differ from an earlier rating


def export_sheet(study: Study, annotator: str, output: TextIO) -> None:
    """Write an annotator's items as CSV, to be filled in with a spreadsheet program."""
    _check_annotator(study, annotator)
    # By the byte order mark, spreadsheet programs recognise UTF-8.
    output.write("\ufeff")
    writer = csv.writer(output, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for item in study.items(annotator):
        texts = [item.source, item.reference or "", item.translation]
        row: list[Any] = [annotator, item.number]
        row += [_without_formula(text) for text in texts]
        row += [item.ratings.get(criterion, "") for criterion in CRITERIA]
        writer.writerow(row)


def import_sheet(study: Study, annotator: str, path: Path) -> ImportedRatings:
    """Read an annotator's ratings from CSV, all of them or none.

    The columns item, adequacy and fluency are read. An empty cell is no rating.
    """
    _check_annotator(study, annotator)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not valid UTF-8; save the sheet as CSV in UTF-8.") from None
    before = {item.number: item.ratings for item in study.items(annotator)}
    with _fields_of_any_length(len(text)):
        ratings = list(_read_ratings(text, path, annotator, before))
    study.rate(annotator, ratings)
    replaced = 0
    for rating in ratings:
        earlier = before[rating.item].get(rating.criterion)
        if earlier is not None and earlier != rating.value:
            replaced += 1
    return ImportedRatings(len(ratings), replaced)


@contextmanager
def _fields_of_any_length(length: int) -> Iterator[None]:
    """Let the csv module read fields of this length; its limit holds for the whole process."""
    with _FIELD_LIMIT:
        limit = csv.field_size_limit()
        csv.field_size_limit(max(length, limit))
        try:
            yield
        finally:
            csv.field_size_limit(limit)


def _read_ratings(
    text: str, path: Path, annotator: str, known: Collection[int]
) -> Iterator[Rating]:
    """The rating of every cell that is filled in. `known`: numbers of the study's items."""
    first_line = text.split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=first_line.count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = list(rows.fieldnames or ())
    except csv.Error as error:
        raise UserError(f"{path}, line 1: {error}.") from None
    for column in ("item", *CRITERIA):
        if names.count(column) > 1:
            raise UserError(f"{path}, line 1: two columns are named '{column}'; keep one of them.")
        if column not in names:
            raise UserError(
                f"{path}, line 1: there is no column '{column}'; "
                "import a sheet that cbmi humaneval export wrote."
            )
    seen: set[int] = set()
    try:
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            item = _item_of(row, where, known)
            if item in seen:
                raise UserError(
                    f"{where}, column item: item {item} appears twice; keep one of its rows."
                )
            seen.add(item)
            owner = (row.get("annotator") or annotator).strip()
            if owner != annotator:
                raise UserError(
                    f"{where}, column annotator: this is the sheet of {owner}, not of {annotator}."
                )
            yield from _ratings_of(row, where, item)
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: {error}.") from None


def _item_of(row: Mapping[str, str | None], where: str, known: Collection[int]) -> int:
    cell = (row["item"] or "").strip()
    # "²" is a digit for Python, too.
    is_number = cell.isascii() and cell.isdigit() and len(cell) <= LONGEST_NUMBER
    if not is_number or int(cell) not in known:
        raise UserError(f"{where}, column item: there is no item '{cell[:40]}' in this study.")
    return int(cell)


def _ratings_of(row: Mapping[str, str | None], where: str, item: int) -> Iterator[Rating]:
    for criterion in CRITERIA:
        cell = (row[criterion] or "").strip()
        if not cell:
            continue
        if cell not in VALUES:
            raise UserError(
                f"{where}, column {criterion}: '{cell[:40]}' should be a whole number "
                f"from {LOWEST} to {HIGHEST}."
            )
        yield Rating(item, criterion, int(cell))


def _check_annotator(study: Study, annotator: str) -> None:
    if study.scheme() != "scales":
        raise UserError(
            f"{study.path.parent}: errors are marked on the page, not in a spreadsheet: use cbmi "
            "humaneval serve."
        )
    names = study.annotators()
    if annotator not in names:
        raise UserError(f"--annotator: there is no '{annotator}' (there are: {', '.join(names)}).")


def _without_formula(text: str) -> str:
    """A cell that a spreadsheet program takes for text, not for a formula."""
    if text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{text}"
    return text
