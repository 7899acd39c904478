"""Files that URLs name, such as s3://bucket/part-1.en.gz, through fsspec."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from cbmi.errors import UserError, first_line, import_extra

URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_url(path: str | Path) -> bool:
    return isinstance(path, str) and URL.match(path) is not None


def open_url(url: str) -> BinaryIO:
    """The bytes of a file, from its beginning; can seek."""
    with _errors(url):
        file_system, path = _file_system(url)
        if file_system.isdir(path):
            raise UserError(f"{url}: this is a folder, not a file.")
        file: BinaryIO = file_system.open(path, "rb")
        return file


def url_mark(url: str) -> str:
    """What changes whenever a file's content does."""
    with _errors(url):
        file_system, path = _file_system(url)
        file_system.invalidate_cache()
        return str(file_system.ukey(path))


def urls_like(pattern: str) -> list[str]:
    """The files that a URL with wildcards stands for, in alphabetical order."""
    with _errors(pattern):
        file_system, path = _file_system(pattern)
        found = sorted(file_system.glob(path))
        return [file_system.unstrip_protocol(one) for one in found if not file_system.isdir(one)]


def _file_system(url: str) -> tuple[Any, str]:
    core = import_extra("fsspec.core", url, "ray")
    file_system, path = core.url_to_fs(url)
    return file_system, path


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Whatever a store's library raises, as a sentence."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{url}: there is no such file.") from None
    except Exception as error:  # each library has its own
        raise UserError(f"{url}: cannot be read: {first_line(error)}.") from None
