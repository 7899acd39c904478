"""Lines of UTF-8 text, from plain or compressed files."""

from __future__ import annotations

import codecs
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from cbmi.data.compressed import BROKEN_ARCHIVE, OnRead, open_bytes, suffix_of
from cbmi.errors import UserError
from cbmi.progress import say

BYTE_ORDER_MARK = "\ufeff"
LONGEST_LINE = 100_000_000  # bytes
# Formats that hold both sides of a corpus (data/formats).
NOT_LINES = frozenset(
    {".tmx", ".xlf", ".xliff", ".po", ".pot", ".csv", ".jsonl", ".ndjson", ".parquet"}
)
COUNT_CHUNK = 1 << 20  # bytes read at a time to count lines


def read_lines(path: str, counts: Counter[str], on_read: OnRead | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file, compressed or not, as `decode_lines` gives them."""
    suffix = suffix_of(path)
    if suffix in NOT_LINES:
        raise UserError(
            f"{path}: {suffix} files are not lines of text: make lines of it with `cbmi corpus "
            "convert`, or, where both sides of a corpus are read, name this file alone."
        )
    with open_bytes(path, on_read) as file:
        yield from decode_lines(file, path, counts)


def count_lines(path: str) -> int | None:
    """How many lines `read_lines` will give, so that progress can show an end.

    This is a quick pass over the bytes. None for a pipe, whose bytes can be read only once.
    """
    if not Path(path).is_file():
        return None
    line_ends = 0
    last_byte = b"\n"
    try:
        with open_bytes(path) as file:
            while chunk := file.read(COUNT_CHUNK):
                line_ends += chunk.count(b"\n")
                last_byte = chunk[-1:]
    except (*BROKEN_ARCHIVE, OSError):
        # Whoever reads the lines themselves is told what is wrong.
        pass
    has_open_line = last_byte != b"\n"
    return line_ends + has_open_line


def count_some(path: str, most: int) -> tuple[int, int]:
    """Lines and bytes of a file, of about its first `most` lines."""
    lines = 0
    size = 0
    try:
        with open_bytes(path) as file:
            while lines < most and (chunk := file.read(COUNT_CHUNK)):
                lines += chunk.count(b"\n")
                size += len(chunk)
    except (*BROKEN_ARCHIVE, OSError, UserError):
        pass  # whoever reads the lines themselves is told what is wrong
    return lines, size


def decode_lines(file: Iterable[bytes], path: str, counts: Counter[str]) -> Iterator[str]:
    """Lines of UTF-8 without their ends. Only LF (or CR LF) ends a line.

    A byte-order mark at the start is removed, and NUL characters become spaces;
    `counts["repaired"]` says in how many lines. `path` is for errors.
    """
    number = 0
    try:
        for number, raw in enumerate(_bounded_lines(file), start=1):
            if len(raw) > LONGEST_LINE:
                raise UserError(
                    f"{path}, line {number}: this line is over {LONGEST_LINE // 1_000_000} MB long."
                )
            yield _clean(raw, path, number, counts)
    except BROKEN_ARCHIVE as error:
        raise UserError(f"{path}: the archive is damaged after line {number} ({error}).") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


def wide_encoding(file: io.BufferedIOBase, path: str) -> str | None:
    """UTF-16, if a file begins with its byte-order mark."""
    try:
        start: bytes = file.peek(2)[:2]  # type: ignore[attr-defined]
    except BROKEN_ARCHIVE as error:
        raise UserError(f"{path}: the archive is damaged ({error}).") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    return "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else None


def decode_wide(file: io.BufferedIOBase, path: str, encoding: str) -> Iterator[str]:
    """Lines of a file that is not UTF-8, without their ends."""
    number = 0
    try:
        with io.TextIOWrapper(file, encoding, newline="\n") as text:  # type: ignore[type-var]
            while line := text.readline(LONGEST_LINE):
                number += 1
                yield line.removesuffix("\n").removesuffix("\r").replace("\0", " ")
    except UnicodeError:
        raise UserError(f"{path}, line {number + 1}: not valid {encoding.upper()}.") from None
    except BROKEN_ARCHIVE as error:
        raise UserError(f"{path}: the archive is damaged after line {number} ({error}).") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _bounded_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """Lines, or the beginning of one that is too long: a line may be larger than memory."""
    if not isinstance(file, io.BufferedIOBase):
        yield from file
        return
    while raw := file.readline(LONGEST_LINE + 1):
        yield raw


def _clean(raw: bytes, path: str, number: int, counts: Counter[str]) -> str:
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.start + 1
        raise UserError(f"{path}, line {number}: not valid UTF-8 (byte {byte}).") from None
    has_mark = number == 1 and line.startswith(BYTE_ORDER_MARK)
    if has_mark or "\0" in line:
        counts["repaired"] += 1
    if has_mark:
        line = line.removeprefix(BYTE_ORDER_MARK)
    return line.replace("\0", " ")


def report_repaired(counts: Counter[str]) -> None:
    """Say how many lines were repaired, if any."""
    if counts["repaired"]:
        lines = "1 line was" if counts["repaired"] == 1 else f"{counts['repaired']:,} lines were"
        say(f"{lines} repaired (byte-order mark, NUL).")
