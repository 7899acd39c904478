"""Parallel text as a stream of pairs, from plain or compressed files."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from cbmi.errors import UserError, import_extra
from cbmi.progress import counted, say

BYTE_ORDER_MARK = "\ufeff"
BROKEN_ARCHIVE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
# Formats that people have corpora in, and that are not lines of text.
UNSUPPORTED = frozenset(
    {".bz2", ".zip", ".7z", ".rar", ".tar", ".tgz", ".tmx", ".xlf", ".xliff", ".po", ".mo"}
    | {".json", ".jsonl", ".csv", ".parquet", ".arrow", ".xlsx", ".xls", ".ods", ".docx", ".pdf"}
)
ZST_CHUNK = 1 << 16  # compressed bytes read at a time
LONGEST_LINE = 100_000_000  # bytes
COUNT_CHUNK = 1 << 20  # bytes read at a time to count lines


def open_bytes(path: str) -> io.BufferedIOBase:
    """The plain bytes of a file that may be compressed (.gz, .xz, .zst)."""
    try:
        if Path(path).is_dir():
            raise UserError(f"{path}: this is a folder, not a text file.")
        suffix = Path(path).suffix.lower()
        if suffix in UNSUPPORTED:
            raise UserError(
                f"{path}: {suffix} files are not supported: give plain text, one sentence per "
                "line, as it is or as .gz, .xz or .zst; both sides together as .tsv."
            )
        match suffix:
            case ".gz":
                return gzip.open(path, "rb")
            case ".xz":
                return lzma.open(path, "rb")
            case ".zst":
                return _open_zst(path)
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _open_zst(path: str) -> io.BufferedReader:
    zstandard = import_extra("zstandard", f"{path}: reading .zst", "zstd")
    return io.BufferedReader(_ZstReader(open(path, "rb"), zstandard), ZST_CHUNK)


class _ZstReader(io.RawIOBase):
    """The plain bytes of a file of zstd frames.

    Unlike the library's own reader, it notices a file that breaks off.
    """

    def __init__(self, compressed: BinaryIO, zstandard: ModuleType) -> None:
        self.compressed = compressed
        self.zstandard = zstandard
        self.frame: Any = None  # decompresses the current frame
        self.plain = b""  # decompressed, but not yet handed out

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.compressed.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self.plain:
            chunk = self._next_chunk()
            if not chunk:
                if self.frame is not None and not self.frame.eof:
                    raise EOFError("the file breaks off")
                return 0
            self._decompress(chunk)
        size = min(len(buffer), len(self.plain))
        buffer[:size] = self.plain[:size]
        self.plain = self.plain[size:]
        return size

    def _next_chunk(self) -> bytes:
        """Compressed bytes: what the last frame left over, or else the next ones of the file."""
        if self.frame is not None and self.frame.eof and self.frame.unused_data:
            left_over: bytes = self.frame.unused_data
            return left_over
        return self.compressed.read(ZST_CHUNK)

    def _decompress(self, chunk: bytes) -> None:
        if self.frame is None or self.frame.eof:
            self.frame = self.zstandard.ZstdDecompressor().decompressobj()
        try:
            self.plain = self.frame.decompress(chunk)
        except self.zstandard.ZstdError as error:
            raise EOFError(str(error)) from None


def read_lines(path: str, counts: Counter[str]) -> Iterator[str]:
    """The lines of a UTF-8 file, compressed or not, as `decode_lines` gives them."""
    with open_bytes(path) as file:
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


def read_corpora(
    corpora: Iterable[Sequence[str]], counts: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Source and target lines of several corpora, one after the other."""
    for paths in corpora:
        yield from read_pairs(paths, counts)


def read_pairs(paths: Sequence[str], counts: Counter[str]) -> Iterator[tuple[str, str]]:
    """Source and target lines, from two aligned files or from one tab-separated file."""
    if len(paths) == 1:
        yield from _read_columns(paths[0], counts)
        return
    source_path, target_path = paths
    sources = read_lines(source_path, counts)
    targets = read_lines(target_path, counts)
    for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
        # zip_longest gives None on the side that has ended.
        if source is None:
            more = sum(1 for _ in targets)
            raise _unequal(paths, number - 1, number + more)
        if target is None:
            more = sum(1 for _ in sources)
            raise _unequal(paths, number + more, number - 1)
        yield source, target


def check_pairs(paths: Sequence[str]) -> int:
    """Read a parallel corpus to its end; returns the number of pairs.

    A side that is longer than the other, or a line that is not UTF-8, is an error.
    """
    return sum(1 for _ in read_pairs(paths, Counter()))


def _unequal(paths: Sequence[str], source_lines: int, target_lines: int) -> UserError:
    return UserError(
        f"{paths[0]} has {counted(source_lines, 'line')} but {paths[1]} has {target_lines:,}: "
        "the two sides of a parallel corpus are aligned line by line."
    )


def _read_columns(path: str, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path, counts), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number}: {len(columns) - 1} tabs where there should be one, "
                "between source and target (or name two files, one for each)."
            )
        yield columns[0], columns[1]


def is_copy(pair: tuple[str, str]) -> bool:
    """Whether the target equals the source, except for spacing."""
    return pair[0].split() == pair[1].split()
