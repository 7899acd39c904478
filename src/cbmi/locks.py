"""Locks that end with the process that holds them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cbmi.errors import UserError
from cbmi.files import ATTEMPTS, disk_errors


def try_lock(path: Path) -> int | None:
    """Take the lock that `path` stands for: its descriptor, or None if another process holds it.

    The lock ends when the descriptor is closed, here and in processes that inherit it. A killed
    process's lock is gone with it.
    """
    while True:
        descriptor = _open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_still(descriptor, path):
            return descriptor
        os.close(descriptor)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; refuse it if another process is using it."""
    descriptor = try_lock(folder / ".lock")
    if descriptor is None:
        raise UserError(f"{folder} is in use by another process; wait for it or stop it.")
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process or thread is in a block with the same path."""
    while True:
        descriptor = _open_lock(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_still(descriptor, path):
            break
        os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether an open lock is still the file of that name; its folder may have been removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _open_lock(path: Path) -> int:
    with disk_errors(path):
        for _ in range(ATTEMPTS):
            # The folder may be removed at any moment by a process that made nothing in it.
            with suppress(FileNotFoundError, FileExistsError):
                path.parent.mkdir(parents=True, exist_ok=True)
                return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
