"""Files that URLs name, such as s3://bucket/part-1.en.gz, through fsspec.

Only a `Url` is ever opened: the user has named it. A plain string that looks like one may come from
a stranger's run, and is a path that does not exist.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from cbmi.errors import UserError, first_line, import_extra

SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)  # pathlib makes one slash of two
LOCAL = ("file", "local")
WEB = ("http", "https")
SILENCE = 300  # seconds after which a web server that sends nothing has gone
# What web servers say of a file's content. Its address may be signed, and other each time.
OF_THE_CONTENT = ("size", "ETag", "Last-Modified", "Content-MD5", "Digest")


class Url(str):
    """Where a file lies in a store that the user wants to be read."""


def scheme_of(path: str | Path) -> str | None:
    """The scheme of a URL, such as s3; None for a path."""
    found = SCHEME.match(str(path))
    return found.group(1).lower() if found else None


def named_by_user(name: str) -> str:
    """What the user named: a `Url`, or a path; what file:// names is a path here."""
    if "://" not in name or scheme_of(name) is None:
        return name
    scheme, separator, rest = name.partition("://")
    if scheme.lower() in LOCAL:
        return rest
    return Url(f"{scheme.lower()}{separator}{rest}")


def name_of(path: str) -> str:
    """A file's name: a web address without its query, which may hold a secret."""
    if scheme_of(path) in WEB:
        return re.split("[?#]", path, maxsplit=1)[0]
    return path


class RemoteFile(io.RawIOBase):
    """A file in a store. Whatever its library raises is an OSError."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.file.seekable()

    def readinto(self, buffer: Any) -> int:
        with _as_os_error():
            data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _as_os_error():
            return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        super().close()


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each store's library has its own
        raise OSError(first_line(error)) from error


def open_url(url: Url, can_seek: bool = False) -> RemoteFile:
    """The bytes of a file. If they are read in order, a web server need not know about ranges."""
    with _errors(url):
        file_system, path = _file_system(url)
        if file_system.info(path)["type"] == "directory":
            raise UserError(f"{name_of(url)}: this is a folder, not a file.")
        if scheme_of(url) in WEB and not can_seek:
            return RemoteFile(file_system.open(path, "rb", block_size=0))
        return RemoteFile(file_system.open(path, "rb"))


def url_mark(url: Url) -> str:
    """What changes whenever a file's content does, as far as its store tells."""
    with _errors(url):
        file_system, path = _file_system(url)
        file_system.invalidate_cache()
        if scheme_of(url) in WEB:  # fsspec itself takes web pages for unchanging
            info = file_system.info(path)
            content = [info.get(key) for key in OF_THE_CONTENT]
            return hashlib.sha256(repr(content).encode()).hexdigest()
        return str(file_system.ukey(path))


def urls_like(pattern: Url) -> list[Url]:
    """The files that a URL with wildcards stands for."""
    with _errors(pattern):
        file_system, path = _file_system(pattern)
        if not pattern.endswith(path):
            raise UserError(f"{pattern}: wildcards in such a URL are not supported.")
        before = pattern.removesuffix(path)
        only_stars = re.sub(r"[?\[]", r"[\g<0>]", path)  # a question mark begins a query
        found = []
        for name, info in file_system.glob(only_stars, detail=True).items():
            is_hidden = PurePosixPath(name).name.startswith(".")
            if info["type"] != "directory" and not is_hidden:
                found.append(Url(f"{before}{name}"))
        return found


def _file_system(url: str) -> tuple[Any, str]:
    core = import_extra("fsspec.core", name_of(url), "urls")
    options: dict[str, Any] = {}
    if scheme_of(url) in WEB:
        aiohttp = import_extra("aiohttp", name_of(url), "urls")
        # A file stays open as long as its pairs are worked on, and a packed one comes as it is.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        options["client_kwargs"] = {"timeout": timeout, "auto_decompress": False}
        options["headers"] = {"Accept-Encoding": "identity"}
    file_system, path = core.url_to_fs(url, **options)
    return file_system, path


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Whatever a store's library raises, as a sentence."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{name_of(url)}: there is no such file.") from None
    except Exception as error:  # each store's library has its own
        raise UserError(f"{name_of(url)}: cannot be read: {first_line(error)}.") from None
