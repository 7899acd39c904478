"""What tells one content of a file from another."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from stat import S_ISREG

from cbmi.errors import UserError
from cbmi.files import require_ordinary
from cbmi.urls import Url, url_mark


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    require_ordinary(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(path: str | Path) -> str:
    """The first half of a file's SHA-256, computed once as long as the file does not change."""
    stat = os.stat(path)
    return _digest(Path(path), stat.st_size, stat.st_mtime_ns)


@cache
def _digest(path: Path, size: int, changed: int) -> str:
    # Size and time of change are not used: they make the cache forget a file that has changed.
    return sha256(path)[:32]


@contextmanager
def unchanged(paths: Iterable[str | Path]) -> Iterator[Callable[[], None]]:
    """Refuse files that change while the block reads them.

    It may also ask itself, before it does something that cannot be undone.
    """
    before = {path: _mark(path) for path in paths}

    def check() -> None:
        for path, mark in before.items():
            if _mark(path) != mark:
                raise UserError(f"{path} has changed while it was read; run the command again.")

    yield check
    check()


def _mark(path: str | Path) -> tuple[int, ...] | str | None:
    """What changes whenever a file's content does; None for what is not an ordinary file."""
    if isinstance(path, Url):
        return url_mark(path)
    try:
        stat = os.stat(path)
    except OSError:
        return None
    if not S_ISREG(stat.st_mode):
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
