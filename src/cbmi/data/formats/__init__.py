"""Files of translations in other formats than lines of text → entries."""

from __future__ import annotations

from collections.abc import Iterator

from cbmi.data.compressed import OnRead, suffix_of
from cbmi.data.formats.columns import Columns
from cbmi.data.formats.entry import Entry, Languages
from cbmi.data.formats.po import read_po
from cbmi.data.formats.tables import read_csv, read_jsonl, read_parquet
from cbmi.data.formats.tmx import read_tmx
from cbmi.data.formats.xliff import read_xliff
from cbmi.errors import UserError

DOCUMENTS = {
    ".tmx": read_tmx,
    ".xlf": read_xliff,
    ".xliff": read_xliff,
    ".po": read_po,
    ".pot": read_po,
}
TABLES = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
}


def has_both_sides(path: str) -> bool:
    """Whether a file holds source and target: any format except lines of one language."""
    suffix = suffix_of(path)
    return suffix in DOCUMENTS or suffix in TABLES


def read_entries(
    path: str,
    languages: Languages,
    columns: Columns | None = None,
    on_read: OnRead | None = None,
) -> Iterator[Entry]:
    """The entries of a file. `columns`: of a table; found by their names if left out."""
    suffix = suffix_of(path)
    if suffix in TABLES:
        yield from TABLES[suffix](path, languages, columns, on_read)
        return
    if columns is not None:
        raise UserError(f"--columns: {path} is not a table.")
    yield from DOCUMENTS[suffix](path, languages, on_read)
