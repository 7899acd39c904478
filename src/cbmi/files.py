"""Files that exist whole or not at all, locks, and JSON."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cbmi.errors import UserError


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
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


def sync(path: Path) -> None:
    """Make a file's content, or a folder's list of names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the file, then swap: a reader sees the old content or the new, never a part."""
    encoded = content.encode() if isinstance(content, str) else content
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_bytes(encoded)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A path to write to. It becomes `path` if the block succeeds and vanishes if it fails."""
    temporary = _temporary(path)
    with disk_errors(path):
        temporary.unlink(missing_ok=True)  # left by a killed process
        try:
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill. It becomes `path` if the block succeeds and vanishes if it fails."""
    temporary = _temporary(path)
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    with disk_errors(path):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            sync(temporary)  # its list of names
            if path.exists():
                remove_folder(path)
            os.replace(temporary, path)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """Where the content of `path` is written until it is complete."""
    return path.with_name(f".{path.name}.partial")


def _trash(path: Path) -> Path:
    """Where the folder `path` goes to be removed."""
    return path.with_name(f".{path.name}.removed")


def remove_folder(path: Path) -> None:
    """Remove a folder. An interruption never leaves a part of it under its own name."""
    trash = _trash(path)
    shutil.rmtree(trash, ignore_errors=True)
    os.replace(path, trash)
    shutil.rmtree(trash)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and the like into a `UserError`.

    The error is of `path`, which the block writes, or of another file that it could not read.
    """
    try:
        yield
    except BrokenPipeError:
        # Whoever reads standard output has gone. That is not an error of the disk.
        raise
    except OSError as error:
        other = _file_read(path, error)
        if other is not None:
            raise UserError(f"{other}: cannot be read: {error.strerror or error}.") from error
        raise _cannot_be_written(path, error) from error


def _cannot_be_written(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written: {error.strerror or error}.")


def _file_read(path: Path, error: OSError) -> str | None:
    """The file that an error names if a block that writes `path` can only have read it.

    An error of linking or renaming names two files; `filename2` is the one to be made.
    """
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str)]
    if not names or any(_is_written(Path(name), path) for name in names):
        return None
    return names[0]


def _is_written(file: Path, path: Path) -> bool:
    """Whether whoever writes `path` may write `file`, or make it on the way."""
    file = file.absolute()
    path = path.absolute()
    beside = file.parent == path.parent
    # The folders above are made, too, where they are missing.
    above = file in path.parents
    own_folders = (path, _temporary(path), _trash(path))
    below = any(folder in file.parents for folder in own_folders)
    return beside or above or below


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, or cannot be made, before work is done for it."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise _cannot_be_written(folder, error) from error


def try_lock(path: Path) -> int | None:
    """Take the lock that `path` stands for: its descriptor, or None if another process holds it.

    The lock ends when the descriptor is closed, here and in processes that inherit it. A killed
    process's lock is gone with it.
    """
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


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
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def read_json(path: Path) -> Any:
    """The value that a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from None


def to_json(value: Any) -> str:
    """A value as the JSON of our files: indented, letters as they are, with a final newline."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
