"""A human evaluation: translations to be rated blindly, and the ratings, in one SQLite file.

A line of the test set gives an item for every different translation of it; each annotator sees all items in an order
of their own, and nothing on an item says which system it is of. A rating that `rate` has returned from survives the
process and the power.
"""

from __future__ import annotations

import csv
import io
import random
import secrets
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from cbmi.data.text import read_lines
from cbmi.errors import UserError
from cbmi.files import atomic_file, disk_errors

# With the paper's words for the ends of the scales.
CRITERIA = {
    "adequacy": ("irrelevant to the source sentence", "semantically equal"),
    "fluency": ("unintelligible", "fluent and native"),
}
LOWEST, HIGHEST = 1, 5
SCHEMA = """
CREATE TABLE items (item INTEGER PRIMARY KEY, line INTEGER, source TEXT, reference TEXT, translation TEXT);
CREATE TABLE outputs (line INTEGER, system TEXT, item INTEGER REFERENCES items, PRIMARY KEY (line, system));
CREATE TABLE annotators (annotator INTEGER PRIMARY KEY, name TEXT UNIQUE, token TEXT UNIQUE);
CREATE TABLE orders (annotator INTEGER, position INTEGER, item INTEGER, PRIMARY KEY (annotator, position));
CREATE TABLE ratings (
  annotator INTEGER REFERENCES annotators, item INTEGER REFERENCES items, criterion TEXT,
  value INTEGER CHECK (value BETWEEN 1 AND 5), time TEXT DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (annotator, item, criterion)
);
"""


def create_study(
    folder: Path,
    source: str,
    reference: str | None,
    systems: Sequence[tuple[str, str]],
    sample: int,
    annotators: int,
    seed: int,
) -> Study:
    """Draw lines of the test set and make the study of them; `systems`: names and files."""
    names = [name for name, _ in systems]
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"--system: two systems are named '{name}'.")
    sources = list(read_lines(source, Counter()))

    def aligned(file: str) -> list[str]:
        lines = list(read_lines(file, Counter()))
        if len(lines) != len(sources):
            raise UserError(f"{source} has {len(sources)} lines but {file} has {len(lines)}: they should be aligned.")
        return lines

    references = aligned(reference) if reference else None
    texts = {name: aligned(file) for name, file in systems}
    filled = [number for number, line in enumerate(sources) if line.strip()]
    if sample > len(filled):
        raise UserError(f"--sample: {sample} is more than the {len(filled)} lines with text that {source} has.")
    path = folder / "study.db"
    if path.exists():
        raise UserError(f"{folder} holds a study already: choose another -o, or delete it.")
    draw = random.Random(seed)
    lines = sorted(draw.sample(filled, sample))
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        Study(temporary, new=True).fill(lines, sources, references, texts, annotators, draw)
    return open_study(folder)


def open_study(folder: Path) -> Study:
    path = folder / "study.db"
    if not path.is_file():
        raise UserError(f"{folder}: there is no study here; make one with cbmi humaneval create.")
    return Study(path)


class Study:
    """The file of a study. Every call opens it anew, so that any thread may call."""

    def __init__(self, path: Path, new: bool = False) -> None:
        self.path, self.new = path, new

    @contextmanager
    def _open(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it happens, or nothing."""
        try:
            # A file that was moved away is missed, not made anew.
            name = f"{self.path.resolve().as_uri()}?mode={'rwc' if self.new else 'rw'}"
            connection = sqlite3.connect(name, timeout=60, isolation_level=None, uri=True)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")  # what was acknowledged survives the power, too
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield connection
                connection.execute("COMMIT")
            finally:
                connection.close()  # what was not committed is undone
        except sqlite3.Error as error:
            raise UserError(f"{self.path}: {error}.") from error

    def fill(
        self,
        lines: Sequence[int],
        sources: Sequence[str],
        references: Sequence[str] | None,
        texts: Mapping[str, list[str]],
        annotators: int,
        draw: random.Random,
    ) -> None:
        """`texts`: the systems' translations by name."""
        outputs = [(line, name) for line in lines for name in texts]
        translations = list(dict.fromkeys((line, texts[name][line]) for line, name in outputs))
        draw.shuffle(translations)  # an item's number says nothing of its system
        items = {translation: number for number, translation in enumerate(translations, start=1)}
        with self._open(write=True) as db:
            for statement in SCHEMA.split(";\n"):
                db.execute(statement)
            rows = [
                (number, line + 1, sources[line], references[line] if references else None, text)
                for (line, text), number in items.items()
            ]
            db.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
            rows = [(line + 1, name, items[line, texts[name][line]]) for line, name in outputs]
            db.executemany("INSERT INTO outputs VALUES (?, ?, ?)", rows)
            for annotator in range(1, annotators + 1):
                token = secrets.token_urlsafe(18)
                db.execute("INSERT INTO annotators VALUES (?, ?, ?)", (annotator, f"annotator-{annotator}", token))
                order = list(items.values())
                draw.shuffle(order)
                rows = [(annotator, position, item) for position, item in enumerate(order)]
                db.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)

    def annotators(self) -> dict[str, str]:
        """Tokens by name."""
        with self._open() as db:
            return dict(db.execute("SELECT name, token FROM annotators ORDER BY annotator").fetchall())

    def annotator(self, token: str) -> str | None:
        """The name that a token belongs to."""
        with self._open() as db:
            row = db.execute("SELECT name FROM annotators WHERE token = ?", (token,)).fetchone()
        return row[0] if row else None

    def items(self, annotator: str) -> list[dict[str, Any]]:
        """What an annotator sees, in order, with what they have said so far; not the systems."""
        with self._open() as db:
            rows = db.execute(
                "SELECT item, source, reference, translation FROM orders JOIN items USING (item) "
                "JOIN annotators USING (annotator) WHERE name = ? ORDER BY position",
                (annotator,),
            ).fetchall()
            ratings = db.execute(
                "SELECT item, criterion, value FROM ratings JOIN annotators USING (annotator) WHERE name = ?",
                (annotator,),
            ).fetchall()
        given: dict[int, dict[str, int]] = {}
        for item, criterion, value in ratings:
            given.setdefault(item, {})[criterion] = value
        keys = ("item", "source", "reference", "translation")
        return [dict(zip(keys, row, strict=True)) | {"ratings": given.get(row[0], {})} for row in rows]

    def rate(self, annotator: str, ratings: Sequence[tuple[int, str, int]]) -> None:
        """Keep (item, criterion, value); a later one takes the place of an earlier one. All of them, or none."""
        for item, criterion, value in ratings:
            if criterion not in CRITERIA:
                raise UserError(f"criterion: '{criterion}' is none of {', '.join(CRITERIA)}.")
            if not isinstance(value, int) or not LOWEST <= value <= HIGHEST:
                raise UserError(f"{criterion} of item {item}: {value} should be a whole number from 1 to 5.")
        with self._open(write=True) as db:
            (number,) = db.execute("SELECT annotator FROM annotators WHERE name = ?", (annotator,)).fetchone()
            known = {item for (item,) in db.execute("SELECT item FROM items")}
            for item, criterion, value in ratings:
                if item not in known:
                    raise UserError(f"item: there is no item {item} in this study.")
                db.execute(
                    "INSERT INTO ratings (annotator, item, criterion, value) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET value = excluded.value, time = CURRENT_TIMESTAMP",
                    (number, item, criterion, value),
                )

    def table(self) -> list[dict[str, Any]]:
        """Every rating with its line and system; one of a translation that several systems gave counts for each."""
        with self._open() as db:
            rows = db.execute(
                "SELECT name, outputs.line, system, ratings.item, criterion, value FROM ratings "
                "JOIN annotators USING (annotator) JOIN outputs USING (item) "
                "ORDER BY annotator, outputs.line, system, criterion"
            ).fetchall()
        return [
            dict(zip(("annotator", "line", "system", "item", "criterion", "value"), row, strict=True)) for row in rows
        ]

    def systems(self) -> list[str]:
        with self._open() as db:
            return [name for (name,) in db.execute("SELECT system FROM outputs GROUP BY system ORDER BY MIN(rowid)")]

    def size(self) -> int:
        with self._open() as db:
            return db.execute("SELECT COUNT(*) FROM items").fetchone()[0]


TEXTS = ("source", "reference", "translation")
COLUMNS = ("annotator", "item", *TEXTS, *CRITERIA)


def export_sheet(study: Study, annotator: str, output: TextIO) -> None:
    """An annotator's items as CSV, to be filled in by a spreadsheet program."""
    _known(study, annotator)
    output.write("\ufeff")  # by which spreadsheet programs know UTF-8
    writer = csv.writer(output, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for item in study.items(annotator):
        texts = [_harmless(item[key] or "") for key in TEXTS]
        given = [item["ratings"].get(criterion, "") for criterion in CRITERIA]
        writer.writerow([annotator, item["item"], *texts, *given])


def import_sheet(study: Study, annotator: str, path: Path) -> tuple[int, int]:
    """Read ratings from CSV (the columns item, adequacy, fluency); all of them, or none. Gives their number, and how
    many of them take the place of others."""
    _known(study, annotator)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not valid UTF-8; save the sheet as CSV in UTF-8.") from None
    before = {item["item"]: item["ratings"] for item in study.items(annotator)}
    ratings = list(_read_ratings(text, path, annotator, before))
    study.rate(annotator, ratings)
    return len(ratings), sum(before[item].get(criterion, value) != value for item, criterion, value in ratings)


def _read_ratings(text: str, path: Path, annotator: str, known: Collection[int]) -> Iterator[tuple[int, str, int]]:
    """(item, criterion, value) of every cell that is filled in."""
    csv.field_size_limit(max(len(text), csv.field_size_limit()))
    header = text.split("\n", 1)[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count))
    for column in ("item", *CRITERIA):
        if column not in (rows.fieldnames or ()):
            raise UserError(f"{path}, line 1: there is no column '{column}'; give a sheet of cbmi humaneval export.")
    seen = set()
    try:
        for row in rows:
            where, item = f"{path}, line {rows.line_num}", (row["item"] or "").strip()
            if not item.isascii() or not item.isdigit() or int(item) not in known:
                raise UserError(f"{where}, column item: there is no item '{item}' in this study.")
            if int(item) in seen:
                raise UserError(f"{where}, column item: item {int(item)} stands there twice.")
            owner = (row.get("annotator") or annotator).strip()
            if owner != annotator:
                raise UserError(f"{where}, column annotator: this is the sheet of {owner}, not of {annotator}.")
            seen.add(int(item))
            for criterion in CRITERIA:
                value = (row[criterion] or "").strip()
                if value and value not in {str(number) for number in range(LOWEST, HIGHEST + 1)}:
                    raise UserError(f"{where}, column {criterion}: '{value}' should be a whole number from 1 to 5.")
                if value:
                    yield int(item), criterion, int(value)
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: {error}.") from None


def _known(study: Study, annotator: str) -> None:
    names = study.annotators()
    if annotator not in names:
        raise UserError(f"--annotator: there is no '{annotator}' (there are: {', '.join(names)}).")


def _harmless(text: str) -> str:
    """A cell that a spreadsheet program takes for text, not for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
