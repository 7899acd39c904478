"""A human evaluation: translations to be rated blindly, and the ratings, in one SQLite file.

A line of the test set gives an item for every different translation of it; each annotator sees all items in an order
of their own, and nothing on an item says which system it is of. A rating that `rate` has returned from survives the
process and the power.
"""

from __future__ import annotations

import csv
import random
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    texts = {name: list(read_lines(file, Counter())) for name, file in [("", source), *systems]}
    if reference:
        texts["reference"] = list(read_lines(reference, Counter()))
    for (_, file), lines in zip([("", source), *systems, ("", reference)], texts.values(), strict=False):
        if len(lines) != len(texts[""]):
            raise UserError(
                f"{source} has {len(texts[''])} lines but {file} has {len(lines)}: they should be aligned."
            )
    filled = [number for number, line in enumerate(texts[""]) if line.strip()]
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
        Study(temporary).fill(lines, texts, names, annotators, draw)
    return open_study(folder)


def open_study(folder: Path) -> Study:
    path = folder / "study.db"
    if not path.is_file():
        raise UserError(f"{folder}: there is no study here; make one with cbmi humaneval create.")
    return Study(path)


class Study:
    """The file of a study. Every call opens it anew, so that any thread may call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _open(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it happens, or nothing."""
        try:
            connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
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
        texts: Mapping[str, list[str]],
        systems: Sequence[str],
        annotators: int,
        draw: random.Random,
    ) -> None:
        outputs = [(line, name) for line in lines for name in systems]
        translations = list(dict.fromkeys((line, texts[name][line]) for line, name in outputs))
        draw.shuffle(translations)  # an item's number says nothing of its system
        items = {translation: number for number, translation in enumerate(translations, start=1)}
        with self._open(write=True) as db:
            for statement in SCHEMA.split(";\n"):
                db.execute(statement)
            references = texts.get("reference")
            rows = [
                (number, line + 1, texts[""][line], references[line] if references else None, text)
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


COLUMNS = ("item", "source", "reference", "translation", *CRITERIA)


def export_sheet(study: Study, annotator: str, output: TextIO) -> None:
    """An annotator's items as CSV, to be filled in by a spreadsheet program."""
    _known(study, annotator)
    writer = csv.writer(output, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for item in study.items(annotator):
        texts = [_harmless(item[key] or "") for key in COLUMNS[1:4]]
        writer.writerow([item["item"], *texts, *(item["ratings"].get(criterion, "") for criterion in CRITERIA)])


def import_sheet(study: Study, annotator: str, path: Path) -> int:
    """Read ratings from CSV (the columns item, adequacy, fluency); all of them, or none. Gives their number."""
    _known(study, annotator)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not valid UTF-8; save the sheet as CSV in UTF-8.") from None
    first = text.split("\n", 1)[0]
    rows = csv.DictReader(text.splitlines(keepends=True), delimiter=max(",;\t", key=first.count))
    if rows.fieldnames is None or "item" not in rows.fieldnames:
        raise UserError(f"{path}, line 1: there is no column 'item'; give a sheet of cbmi humaneval export.")
    ratings, known = [], {item["item"] for item in study.items(annotator)}
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        item = (row["item"] or "").strip()
        if not item.isdigit() or int(item) not in known:
            raise UserError(f"{where}, column item: there is no item '{item}' in this study.")
        for criterion in CRITERIA:
            value = (row.get(criterion) or "").strip()
            if value and (not value.isdigit() or not LOWEST <= int(value) <= HIGHEST):
                raise UserError(f"{where}, column {criterion}: '{value}' should be a whole number from 1 to 5.")
            if value:
                ratings.append((int(item), criterion, int(value)))
    study.rate(annotator, ratings)
    return len(ratings)


def _known(study: Study, annotator: str) -> None:
    names = study.annotators()
    if annotator not in names:
        raise UserError(f"--annotator: there is no '{annotator}' (there are: {', '.join(names)}).")


def _harmless(text: str) -> str:
    """A cell that a spreadsheet program takes for text, not for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
