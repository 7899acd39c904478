"""The plain bytes of files that may be compressed."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from cbmi.errors import UserError, import_extra
from cbmi.urls import Url, name_of, open_url

BROKEN_ARCHIVE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
COMPRESSED = (".gz", ".xz", ".zst")
UNSUPPORTED = frozenset(
    {".bz2", ".zip", ".7z", ".rar", ".tar", ".tgz", ".mo", ".json", ".arrow", ".xlsx", ".xls"}
    | {".ods", ".docx", ".pdf"}
)
ZST_CHUNK = 1 << 16  # compressed bytes read at a time

OnRead = Callable[[int], None]  # told how many bytes of the file, as it is, were read


def suffix_of(path: str) -> str:
    """The suffix that says what a file holds: .tmx of memory.tmx.gz."""
    name = Path(name_of(path))
    if name.suffix.lower() in COMPRESSED:
        name = name.with_suffix("")
    return name.suffix.lower()


def open_bytes(path: str, on_read: OnRead | None = None) -> io.BufferedIOBase:
    """The plain bytes of a file or URL that may be compressed (.gz, .xz, .zst)."""
    try:
        if not isinstance(path, Url) and Path(path).is_dir():
            raise UserError(f"{path}: this is a folder, not a file.")
        suffix = Path(name_of(path)).suffix.lower()
        if suffix in UNSUPPORTED or suffix_of(path) in UNSUPPORTED:
            raise UserError(
                f"{path}: {suffix} files are not supported: give plain text, one sentence per "
                "line, or a format that `cbmi corpus convert --help` names, each as it is or as "
                ".gz, .xz or .zst."
            )
        file: Any = open_url(path) if isinstance(path, Url) else open(path, "rb", buffering=0)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    if on_read is not None:
        file = _Watched(file, on_read)
    match suffix:
        case ".gz":
            return _Gzip(file)
        case ".xz":
            return _Xz(file)
        case ".zst":
            zstandard = import_extra("zstandard", f"{path}: reading .zst", "zstd")
            return io.BufferedReader(_ZstReader(file, zstandard), ZST_CHUNK)
    return io.BufferedReader(file)


class _Watched(io.RawIOBase):
    """A file that says how much of it was read."""

    def __init__(self, file: io.RawIOBase, on_read: OnRead) -> None:
        self.file = file
        self.on_read = on_read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        size = self.file.readinto(buffer)
        self.on_read(size or 0)
        return size

    def close(self) -> None:
        self.file.close()
        super().close()


class _Gzip(gzip.GzipFile):
    """Unlike its base, it closes the file."""

    def __init__(self, file: Any) -> None:
        super().__init__(fileobj=file, mode="rb")
        self.compressed = file

    def close(self) -> None:
        super().close()
        self.compressed.close()


class _Xz(lzma.LZMAFile):
    """Likewise."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.compressed = file

    def close(self) -> None:
        super().close()
        self.compressed.close()


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
