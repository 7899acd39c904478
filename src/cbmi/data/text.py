"""Parallel text as a stream of pairs, whatever the files are packed in."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from cbmi.errors import UserError
from cbmi.progress import say

BYTE_ORDER_MARK = "\ufeff"
BROKEN_ARCHIVE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)


def open_bytes(path: str) -> BinaryIO:
    """The plain bytes of a file that may be packed (.gz, .xz, .zst)."""
    try:
        if Path(path).is_dir():
            raise UserError(f"{path}: this is a folder, not a text file.")
        match Path(path).suffix:
            case ".gz":
                return gzip.open(path, "rb")
            case ".xz":
                return lzma.open(path, "rb")
            case ".zst":
                return _open_zst(path)
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _open_zst(path: str) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise UserError(f"{path}: reading .zst needs the extra 'zstd': pip install 'cbmi[zstd]'.") from None
    return io.BufferedReader(_ZstReader(open(path, "rb"), zstandard), 1 << 16)


class _ZstReader(io.RawIOBase):
    """The plain bytes of zstd frames; unlike the library's own reader it notices a file that breaks off."""

    def __init__(self, packed: BinaryIO, zstandard) -> None:
        self.packed, self.zstandard = packed, zstandard
        self.frame, self.plain = None, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self.plain:
            chunk = (self.frame.unused_data if self.frame and self.frame.eof else b"") or self.packed.read(1 << 16)
            if not chunk:
                if self.frame and not self.frame.eof:
                    raise EOFError("the file breaks off")
                return 0
            self._unpack(chunk)
        size = min(len(buffer), len(self.plain))
        buffer[:size], self.plain = self.plain[:size], self.plain[size:]
        return size

    def _unpack(self, chunk: bytes) -> None:
        if self.frame is None or self.frame.eof:
            self.frame = self.zstandard.ZstdDecompressor().decompressobj()
        try:
            self.plain = self.frame.decompress(chunk)
        except self.zstandard.ZstdError as error:
            raise EOFError(str(error)) from None


def read_lines(path: str, counts: Counter[str]) -> Iterator[str]:
    """The lines of a UTF-8 file, packed or not, as `decode_lines` gives them."""
    with open_bytes(path) as file:
        yield from decode_lines(file, path, counts)


def count_lines(path: str) -> int | None:
    """How many lines `read_lines` will give: a quick pass over the bytes, so that progress can show an end.
    None where bytes can be read only once, as of a pipe."""
    if not Path(path).is_file():
        return None
    lines, last = 0, b"\n"
    try:
        with open_bytes(path) as file:
            while chunk := file.read(1 << 20):
                lines, last = lines + chunk.count(b"\n"), chunk[-1:]
    except (*BROKEN_ARCHIVE, OSError):
        pass  # reading it in earnest will say what is wrong
    return lines + (last != b"\n")


def decode_lines(file: BinaryIO, path: str, counts: Counter[str]) -> Iterator[str]:
    """Lines of UTF-8 without their ends. Only LF (or CR LF) ends a line.

    A byte-order mark at the start is taken off and NUL characters become spaces; `counts["repaired"]`
    says in how many lines.
    """
    number = 0
    try:
        for number, raw in enumerate(file, start=1):
            yield _clean(raw, path, number, counts)
    except BROKEN_ARCHIVE as error:
        raise UserError(f"{path}: the archive is damaged after line {number} ({error}).") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _clean(raw: bytes, path: str, number: int, counts: Counter[str]) -> str:
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: not valid UTF-8 (byte {error.start + 1}).") from None
    if (number == 1 and line.startswith(BYTE_ORDER_MARK)) or "\0" in line:
        counts["repaired"] += 1
        line = line.removeprefix(BYTE_ORDER_MARK).replace("\0", " ")
    return line


def report_repaired(counts: Counter[str]) -> None:
    if counts["repaired"]:
        say(f"{counts['repaired']:,} lines were repaired (byte-order mark, NUL).")


def read_pairs(paths: Sequence[str], counts: Counter[str]) -> Iterator[tuple[str, str]]:
    """Source and target lines, from two aligned files or from one tab-separated file."""
    if len(paths) == 1:
        yield from _read_columns(paths[0], counts)
        return
    streams = [read_lines(path, counts) for path in paths]
    for number, (source, target) in enumerate(zip_longest(*streams), start=1):
        if source is None or target is None:
            raise UserError(_unequal(paths, streams, number, shorter=0 if source is None else 1))
        yield source, target


def check_pairs(paths: Sequence[str]) -> int:
    """Read a parallel corpus for its mistakes: sides of unequal length, lines that are no UTF-8. Gives its length."""
    return sum(1 for _ in read_pairs(paths, Counter()))


def _unequal(paths: Sequence[str], streams: list[Iterator[str]], number: int, shorter: int) -> str:
    lines = [0, 0]
    lines[shorter] = number - 1
    lines[1 - shorter] = number + sum(1 for _ in streams[1 - shorter])
    return (
        f"{paths[0]} has {lines[0]} lines but {paths[1]} has {lines[1]}: "
        "the two sides of a parallel corpus are aligned line by line."
    )


def _read_columns(path: str, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path, counts), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number}: {len(columns) - 1} tabs where there should be one, between source and "
                "target (or name two files, one of each)."
            )
        yield columns[0], columns[1]


def is_copy(pair: tuple[str, str]) -> bool:
    """Whether the target is nothing but the source again."""
    return pair[0].split() == pair[1].split()
