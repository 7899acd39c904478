"""Tables with named columns: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from cbmi.data.compressed import COMPRESSED, OnRead, open_bytes, suffix_of
from cbmi.data.formats.columns import Columns, find_columns
from cbmi.data.formats.entry import Entry, Languages, make_entry
from cbmi.data.lines import decode_lines, decode_wide, wide_encoding
from cbmi.errors import UserError, first_line, import_extra
from cbmi.progress import counted
from cbmi.urls import Url, name_of, open_url

ROWS = 10_000  # of a Parquet file, read at a time


def _text_lines(path: str, on_read: OnRead | None) -> Iterator[str]:
    """UTF-8, or UTF-16 with a byte-order mark, which spreadsheets write."""
    with open_bytes(path, on_read) as file:
        encoding = wide_encoding(file, path)
        if encoding is not None:
            yield from decode_wide(file, path, encoding)
        else:
            yield from decode_lines(file, path, Counter())


def read_csv(
    path: str, languages: Languages, columns: Columns | None, on_read: OnRead | None = None
) -> Iterator[Entry]:
    """Rows under a header; the first line says whether commas, semicolons or tabs divide."""
    lines = _text_lines(path, on_read)
    header = next(lines, None)
    if header is None:
        raise UserError(f"{path}: the file is empty, where a line of column names should be.")
    is_tsv = suffix_of(path) == ".tsv"
    delimiter = "\t" if is_tsv else max(",;\t", key=header.count)
    # Fields of tab-separated files are not quoted: a quotation mark is text.
    lines = _with_ends(header, lines)
    if is_tsv:
        rows = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1
    try:
        names = next(rows)
        sides = find_columns(names, languages, columns, path)
        source, target = (names.index(name) for name in sides)
        line = rows.line_num + 1
        for row in rows:
            if row and len(row) != len(names):
                fields = f"{counted(len(row), 'field')} where the header has {len(names)}"
                raise UserError(f"{path}, line {line}: {fields}.")
            if row:
                yield make_entry(row[source], row[target], line)
            line = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {line}: {error}.") from None


def _with_ends(header: str, lines: Iterator[str]) -> Iterator[str]:
    """Lines as the csv module wants them: a field may go on over their ends."""
    yield header + "\n"
    for line in lines:
        yield line + "\n"


def read_jsonl(
    path: str, languages: Languages, columns: Columns | None, on_read: OnRead | None = None
) -> Iterator[Entry]:
    """One object per line; the first decides which keys are used."""
    sides: Columns | None = None
    for number, line in enumerate(_text_lines(path, on_read), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        record = _object(line, where)
        if sides is None:
            sides = find_columns(_names(record), languages, columns, where)
        source, target = (_field(record, name, where) for name in sides)
        yield make_entry(source, target, number)


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where}: this is not JSON.") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: this is not a JSON object with names.")
    return record


def _names(record: Mapping[str, Any]) -> list[str]:
    names = []
    for name, value in record.items():
        if isinstance(value, dict):
            names += [f"{name}.{inner}" for inner in value]
        else:
            names.append(name)
    return names


def _field(record: Mapping[str, Any], name: str, where: str) -> str:
    value: Any = record.get(name)
    if name not in record:
        outer, _, inner = name.partition(".")
        nested = record.get(outer)
        if not isinstance(nested, dict) or inner not in nested:
            raise UserError(f"{where}: there is no '{name}'.")
        value = nested[inner]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: '{name}' is not text.")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{where}: '{name}' has half of a character (a lone surrogate).")
    return value


def read_parquet(
    path: str, languages: Languages, columns: Columns | None, on_read: OnRead | None = None
) -> Iterator[Entry]:
    """Rows of a Parquet file, as datasets of Hugging Face are stored."""
    if Path(name_of(path)).suffix.lower() in COMPRESSED:
        raise UserError(f"{path}: Parquet is compressed inside; give the .parquet file itself.")
    parquet = import_extra("pyarrow.parquet", f"{path}: reading Parquet", "formats")
    arrow = import_extra("pyarrow", f"{path}: reading Parquet", "formats")
    number = 0
    try:
        remote = open_url(path, can_seek=True) if isinstance(path, Url) else nullcontext(path)
        with remote as source, parquet.ParquetFile(source) as file:
            names = _parquet_names(file.schema_arrow)
            sides = find_columns(names, languages, columns, path)
            size = 0 if on_read is None else Path(path).stat().st_size
            rows = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(ROWS, columns=list(sides), use_threads=False):
                texts = [_column(batch, name, path) for name in sides]
                for source, target in zip(*texts, strict=True):
                    number += 1
                    yield make_entry(source or "", target or "", number)
                if on_read is not None:
                    on_read(size * batch.num_rows // rows)
    except (arrow.ArrowException, OSError) as error:
        reason = first_line(error)
        raise UserError(f"{path}: this cannot be read as Parquet: {reason}.") from None


def _parquet_names(schema: Any) -> list[str]:
    names = []
    for field in schema:
        inner = [field.type.field(place) for place in range(field.type.num_fields)]
        names += [f"{field.name}.{one.name}" for one in inner] or [field.name]
    return names


def _column(batch: Any, name: str, path: str) -> Sequence[str | None]:
    outer, _, inner = name.partition(".")
    column = batch.column(name if name in batch.schema.names else outer)
    if name not in batch.schema.names:
        column = column.field(inner)
    if str(column.type) not in ("string", "large_string", "string_view", "null"):
        raise UserError(f"{path}: the column '{name}' is {column.type}, not text.")
    texts: list[str | None] = column.to_pylist()
    return texts
