"""A human evaluation: translations to be rated blindly, and the ratings, in one SQLite file.

A line of the test set gives an item for every different translation of it. Each annotator sees all
items in an order of their own, and nothing on an item says which system it comes from. A rating
survives a crash and a power cut once `rate` or `mark` has returned.
"""

from __future__ import annotations

import random
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cbmi.data.lines import read_lines, report_repaired
from cbmi.errors import UserError
from cbmi.files import atomic_file, disk_errors
from cbmi.humaneval.schemes import (
    PENALTIES,
    SCHEMES,
    Rating,
    Scheme,
    Span,
    StudyItem,
    check_rating,
    check_spans,
)
from cbmi.progress import counted

SCHEMA = """
CREATE TABLE settings (scheme TEXT);
CREATE TABLE items (
  item INTEGER PRIMARY KEY, line INTEGER, source TEXT, reference TEXT, translation TEXT
);
CREATE TABLE outputs (
  line INTEGER, system TEXT, item INTEGER REFERENCES items, PRIMARY KEY (line, system)
);
CREATE TABLE annotators (annotator INTEGER PRIMARY KEY, name TEXT UNIQUE, token TEXT UNIQUE);
CREATE TABLE orders (
  annotator INTEGER, position INTEGER, item INTEGER, PRIMARY KEY (annotator, position)
);
CREATE TABLE ratings (
  annotator INTEGER REFERENCES annotators, item INTEGER REFERENCES items, criterion TEXT,
  value INTEGER CHECK (value BETWEEN 1 AND 5), time TEXT DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (annotator, item, criterion)
);
CREATE TABLE marked (
  annotator INTEGER REFERENCES annotators, item INTEGER REFERENCES items,
  time TEXT DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (annotator, item)
);
CREATE TABLE spans (
  annotator INTEGER REFERENCES annotators, item INTEGER REFERENCES items,
  start INTEGER, stop INTEGER, severity TEXT
);
"""


class StudyFileError(UserError):
    """The study's file cannot be read or written, or is locked for too long."""


class RatingRow(NamedTuple):
    """A rating with all that it is about: a row of the table of all ratings."""

    annotator: str
    line: int  # of the test set, from 1
    system: str
    item: int
    criterion: str
    value: int


def create_study(
    folder: Path,
    source: str,
    reference: str | None,
    systems: Sequence[tuple[str, str]],
    sample: int,
    annotators: int | Sequence[str],
    seed: int,
    scheme: Scheme = "scales",
) -> Study:
    """Draw `sample` lines of the test set and make a study of them.

    `source` and `reference` are files. `systems` are names and files of translations. `annotators`
    are their names, or how many there are.
    """
    if isinstance(annotators, int):
        annotators = [f"annotator-{number}" for number in range(1, annotators + 1)]
    for name, count in Counter(annotators).items():
        if count > 1:
            raise UserError(f"--annotators: two annotators are named '{name}'.")
    for name, count in Counter(name for name, _ in systems).items():
        if count > 1:
            raise UserError(f"--system: two systems are named '{name}'.")
    counts: Counter[str] = Counter()
    sources = list(read_lines(source, counts))

    def aligned(file: str) -> list[str]:
        lines = list(read_lines(file, counts))
        if len(lines) != len(sources):
            raise UserError(
                f"{source} has {counted(len(sources), 'line')} but {file} has {len(lines):,}: "
                "they should be aligned."
            )
        return lines

    references = aligned(reference) if reference else None
    translations = {name: aligned(file) for name, file in systems}
    filled = [number for number, line in enumerate(sources) if line.strip()]
    if sample > len(filled):
        raise UserError(
            f"--sample: {sample} is more than the {len(filled)} lines with text that {source} has."
        )
    path = folder / "study.db"
    if path.exists():
        raise UserError(f"{folder} already holds a study: choose another -o, or delete it.")
    draw = random.Random(seed)
    lines = sorted(draw.sample(filled, sample))
    with disk_errors(path):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)  # it holds the annotators' private links
    with atomic_file(path) as temporary:
        temporary.touch(mode=0o600)
        study = Study(temporary, new=True)
        study.fill(lines, sources, references, translations, annotators, draw, scheme)
    report_repaired(counts)
    return open_study(folder)


def open_study(folder: Path) -> Study:
    """The study that `create_study` made in a folder."""
    path = folder / "study.db"
    if not path.is_file():
        raise UserError(f"{folder}: there is no study here; make one with cbmi humaneval create.")
    return Study(path)


class Study:
    """The file of a study. Every call opens it again, so that any thread may call."""

    def __init__(self, path: Path, new: bool = False) -> None:
        self.path = path
        self.new = new

    @contextmanager
    def _open(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it happens, or nothing."""
        # A file that was moved away is an error; SQLite would create an empty one.
        mode = "rwc" if self.new else "rw"
        name = f"{self.path.resolve().as_uri()}?mode={mode}"
        try:
            connection = sqlite3.connect(name, timeout=60, isolation_level=None, uri=True)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                # What was acknowledged survives a power cut, too.
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield connection
                connection.execute("COMMIT")
            finally:
                connection.close()  # rolls back what was not committed
        except sqlite3.Error as error:
            raise StudyFileError(f"{self.path}: {error}.") from error

    def fill(
        self,
        lines: Sequence[int],
        sources: Sequence[str],
        references: Sequence[str] | None,
        translations: Mapping[str, Sequence[str]],
        annotators: Sequence[str],
        draw: random.Random,
        scheme: Scheme,
    ) -> None:
        """Write the tables of a new study.

        lines: indices of the test set's lines that were drawn. translations: those of the whole
        test set, by system.
        """
        # Systems that translate a line alike share its item.
        distinct: dict[tuple[int, str], None] = {}
        for line in lines:
            for system in translations:
                distinct[line, translations[system][line]] = None
        shuffled = list(distinct)
        draw.shuffle(shuffled)  # an item's number says nothing of its system
        numbers = {key: number for number, key in enumerate(shuffled, start=1)}

        items = []
        for (line, text), number in numbers.items():
            reference = references[line] if references else None
            items.append((number, line + 1, sources[line], reference, text))
        outputs = []
        for line in lines:
            for system in translations:
                outputs.append((line + 1, system, numbers[line, translations[system][line]]))
        with self._open(write=True) as db:
            for statement in SCHEMA.split(";\n"):
                db.execute(statement)
            db.execute("INSERT INTO settings VALUES (?)", (scheme,))
            db.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", items)
            db.executemany("INSERT INTO outputs VALUES (?, ?, ?)", outputs)
            for name in annotators:
                self._add_annotator(db, name, list(numbers.values()), draw)

    def _add_annotator(
        self, db: sqlite3.Connection, name: str, items: list[int], draw: random.Random
    ) -> None:
        """An annotator with a secret token, who sees the items in an order of their own."""
        token = secrets.token_urlsafe(18)
        added = db.execute("INSERT INTO annotators (name, token) VALUES (?, ?)", (name, token))
        draw.shuffle(items)
        order = [(added.lastrowid, position, item) for position, item in enumerate(items)]
        db.executemany("INSERT INTO orders VALUES (?, ?, ?)", order)

    def scheme(self) -> Scheme:
        """What annotators are asked for."""
        with self._open() as db:
            has_settings = db.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'settings'"
            ).fetchone()
            if not has_settings:  # a study of an older version
                return "scales"
            (name,) = db.execute("SELECT scheme FROM settings").fetchone()
        for scheme in SCHEMES:
            if scheme == name:
                return scheme
        raise StudyFileError(f"{self.path}: '{name}' is not a scheme that this version knows.")

    def annotators(self) -> dict[str, str]:
        """Tokens by name."""
        with self._open() as db:
            rows = db.execute("SELECT name, token FROM annotators ORDER BY annotator").fetchall()
        return dict(rows)

    def annotator(self, token: str) -> str | None:
        """The name that a token belongs to; None if there is no such token."""
        with self._open() as db:
            row = db.execute("SELECT name FROM annotators WHERE token = ?", (token,)).fetchone()
        return row[0] if row else None

    def items(self, annotator: str) -> list[StudyItem]:
        """What an annotator sees, in order, with what they have said so far."""
        with self._open() as db:
            rows = db.execute(
                "SELECT item, source, reference, translation FROM orders JOIN items USING (item) "
                "JOIN annotators USING (annotator) WHERE name = ? ORDER BY position",
                (annotator,),
            ).fetchall()
            rated = db.execute(
                "SELECT item, criterion, value FROM ratings JOIN annotators USING (annotator) "
                "WHERE name = ?",
                (annotator,),
            ).fetchall()
        ratings: dict[int, dict[str, int]] = {}
        for item, criterion, value in rated:
            ratings.setdefault(item, {})[criterion] = value
        spans = self._spans_of(annotator) if self.scheme() == "spans" else {}
        result = []
        for item, source, reference, translation in rows:
            given = ratings.get(item, {})
            marked = spans.get(item)
            result.append(StudyItem(item, source, reference, translation, given, marked))
        return result

    def _spans_of(self, annotator: str) -> dict[int, tuple[Span, ...]]:
        """What an annotator has marked, by item; empty where there is no error."""
        with self._open() as db:
            marked = db.execute(
                "SELECT item FROM marked JOIN annotators USING (annotator) WHERE name = ?",
                (annotator,),
            ).fetchall()
            rows = db.execute(
                "SELECT item, start, stop, severity FROM spans JOIN annotators USING (annotator) "
                "WHERE name = ? ORDER BY start, stop",
                (annotator,),
            ).fetchall()
        found: dict[int, list[Span]] = {item: [] for (item,) in marked}
        for item, *span in rows:
            found[item].append(Span(*span))
        return {item: tuple(spans) for item, spans in found.items()}

    def mark(self, annotator: str, item: int, spans: Sequence[Span]) -> None:
        """Keep the errors of an item, in place of earlier ones; none: the translation has none."""
        with self._open(write=True) as db:
            (number,) = db.execute(
                "SELECT annotator FROM annotators WHERE name = ?", (annotator,)
            ).fetchone()
            row = db.execute("SELECT translation FROM items WHERE item = ?", (item,)).fetchone()
            if row is None:
                raise UserError(f"item: there is no item {item} in this study.")
            check_spans(spans, len(row[0]))
            db.execute("DELETE FROM spans WHERE annotator = ? AND item = ?", (number, item))
            db.execute(
                "INSERT OR REPLACE INTO marked (annotator, item) VALUES (?, ?)", (number, item)
            )
            db.executemany(
                "INSERT INTO spans VALUES (?, ?, ?, ?, ?)",
                [(number, item, *span) for span in spans],
            )

    def rate(self, annotator: str, ratings: Sequence[Rating]) -> None:
        """Keep ratings, all of them or none. A later one replaces an earlier one."""
        for rating in ratings:
            check_rating(rating)
        with self._open(write=True) as db:
            (number,) = db.execute(
                "SELECT annotator FROM annotators WHERE name = ?", (annotator,)
            ).fetchone()
            known = {item for (item,) in db.execute("SELECT item FROM items")}
            for rating in ratings:
                if rating.item not in known:
                    raise UserError(f"item: there is no item {rating.item} in this study.")
                db.execute(
                    "INSERT INTO ratings (annotator, item, criterion, value) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET value = excluded.value, time = CURRENT_TIMESTAMP",
                    (number, *rating),
                )

    def table(self) -> list[RatingRow]:
        """Every rating with its line and system.

        A rating of a translation that several systems gave has a row for each of them. Of spans,
        there are how many are minor, how many are major, and the score: minus their penalties.
        """
        if self.scheme() == "spans":
            return self._table_of_spans()
        with self._open() as db:
            rows = db.execute(
                "SELECT name, outputs.line, system, ratings.item, criterion, value FROM ratings "
                "JOIN annotators USING (annotator) JOIN outputs USING (item) "
                "ORDER BY annotator, outputs.line, system, criterion"
            ).fetchall()
        return [RatingRow(*row) for row in rows]

    def _table_of_spans(self) -> list[RatingRow]:
        counts = ", ".join(
            f"(SELECT COUNT(*) FROM spans WHERE spans.annotator = marked.annotator AND "
            f"spans.item = marked.item AND severity = '{severity}')"
            for severity in PENALTIES
        )
        with self._open() as db:
            rows = db.execute(
                f"SELECT name, outputs.line, system, marked.item, {counts} FROM marked "
                "JOIN annotators USING (annotator) JOIN outputs USING (item) "
                "ORDER BY annotator, outputs.line, system"
            ).fetchall()
        table = []
        for name, line, system, item, *numbers in rows:
            found = dict(zip(PENALTIES, numbers, strict=True))
            penalty = sum(PENALTIES[severity] * count for severity, count in found.items())
            for criterion, value in (("score", -penalty), *found.items()):
                table.append(RatingRow(name, line, system, item, criterion, value))
        return table

    def systems(self) -> list[str]:
        """The systems' names, in the order in which they were given."""
        with self._open() as db:
            rows = db.execute(
                "SELECT system FROM outputs GROUP BY system ORDER BY MIN(rowid)"
            ).fetchall()
        return [name for (name,) in rows]

    def size(self) -> int:
        """The number of items."""
        with self._open() as db:
            (size,) = db.execute("SELECT COUNT(*) FROM items").fetchone()
        return int(size)
