"""Files that exist whole or not at all, and JSON."""

from __future__ import annotations

import errno
import glob
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from cbmi.errors import UserError

NAME_SHOWN = 180  # bytes of a name that hidden neighbours begin with; names have 255 at most
ATTEMPTS = 1000  # before another process's work in the same place counts as an error
# What follows the name in a hidden name.
LITTER = re.compile(r"(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{12}\.(partial|removed)")


def require_ordinary(path: Path) -> None:
    """Refuse a pipe or a device, which may never end; a file that is missing is not refused."""
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(path).st_mode
        if not S_ISREG(mode) and not S_ISDIR(mode):
            raise UserError(f"{path}: this is not an ordinary file.")


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
    """A path to write to. It becomes `path` if the block succeeds and vanishes if it fails.

    Several processes may write the same file: each has a path of its own, and the last wins.
    """
    temporary = _temporary(path)
    with disk_errors(path):
        _remove_litter(path)
        try:
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_files(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Paths to write to, which take their places together if the block succeeds.

    The files that were there are set aside before the first new one comes, so that an interruption
    never leaves old and new files side by side. Callers keep other processes out.
    """
    temporaries = [_temporary(path) for path in paths]
    try:
        for path in paths:
            with disk_errors(path):
                _remove_litter(path)
        yield temporaries
        for temporary, path in zip(temporaries, paths, strict=True):
            with disk_errors(path):
                sync(temporary)
        swap_in(temporaries, paths)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """Write several files, which take their places together."""
    for path in contents:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_files(list(contents)) as temporaries:
        for temporary, (path, content) in zip(temporaries, contents.items(), strict=True):
            with disk_errors(path):
                temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def swap_in(temporaries: Sequence[Path], paths: Sequence[Path]) -> None:
    """Put complete files in their places, after all that were there have been set aside."""
    aside: dict[Path, Path] = {}
    try:
        for path in paths:
            with disk_errors(path):
                if path.exists():
                    old = _trash(path)
                    os.replace(path, old)
                    aside[path] = old
        for path in paths:
            with disk_errors(path):
                sync(path.parent)
        for temporary, path in zip(temporaries, paths, strict=True):
            with disk_errors(path):
                os.replace(temporary, path)
    except BaseException:  # Ctrl-C, too
        for path, old in aside.items():
            os.replace(old, path)
        raise
    for folder in {path.parent for path in paths}:
        sync(folder)
    for old in aside.values():
        old.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill. It becomes `path` if the block succeeds and vanishes if it fails."""
    temporary = _temporary(path)
    with disk_errors(path):
        _remove_litter(path)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            sync(temporary)  # its list of names
            _put_folder(temporary, path)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _put_folder(temporary: Path, path: Path) -> None:
    """Put a folder in its place, whatever other processes put there meanwhile: the last wins."""
    for _ in range(ATTEMPTS):
        with suppress(FileNotFoundError):  # another process has just removed it
            if path.exists():
                remove_folder(path)
        try:
            os.replace(temporary, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
    os.replace(temporary, path)


@contextmanager
def atomic_link(path: Path) -> Iterator[Path]:
    """A path for a symbolic link, which then takes the place of `path`.

    An existing folder in place of a link, as `cp -rL` leaves it, is set aside.
    """
    temporary = _temporary(path)
    with disk_errors(path):
        _remove_litter(path)
        try:
            yield temporary
            if path.is_dir() and not path.is_symlink():
                os.replace(path, unused_name(path.with_name(f"{path.name}-copied")))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def unused_name(path: Path) -> Path:
    """The path itself if there is nothing of that name, else with the first number that is free."""
    found = path
    for number in itertools.count(2):
        if not os.path.lexists(found):
            break
        found = path.with_name(f"{path.name}-{number}")
    return found


def _temporary(path: Path) -> Path:
    """Where this process writes the content of `path` until it is complete."""
    return _beside(path, "partial")


def _trash(path: Path) -> Path:
    """Where `path` goes to be removed."""
    return _beside(path, "removed")


def _beside(path: Path, kind: str) -> Path:
    """A hidden name beside `path` that says whose it is: .NAME.MACHINE-PROCESS-UNIQUE.KIND"""
    owner = f"{_machine()}-{os.getpid()}-{secrets.token_hex(6)}"
    return path.with_name(f"{_hidden(path)}{owner}.{kind}")


def _hidden(path: Path) -> str:
    """What the hidden names beside `path` begin with."""
    shown = path.name.encode()[:NAME_SHOWN].decode(errors="ignore")
    return f".{shown}."


@cache
def _machine() -> str:
    """Eight letters for this machine, or container: file systems may be shared."""
    name = socket.gethostname()
    with suppress(OSError):
        name += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _remove_litter(path: Path) -> None:
    """Remove what dead processes have left beside `path` when they wrote or removed it."""
    for leftover in path.parent.glob(f"{glob.escape(_hidden(path))}*"):
        owner = LITTER.fullmatch(leftover.name.removeprefix(_hidden(path)))
        if owner is not None and _is_dead(owner):
            remove(leftover)


def remove_litter_in(folder: Path, prefix: str) -> None:
    """Remove what others have left in a folder under names that begin with `prefix`.

    Only for those who have locked the folder: whoever left it is dead, on this machine or another.
    """
    for leftover in folder.glob(f".{glob.escape(prefix)}*"):
        if leftover.suffix in (".partial", ".removed"):
            remove(leftover)


def _is_dead(owner: re.Match[str]) -> bool:
    """Whether the process that a hidden name names has ended."""
    if owner["machine"] != _machine():
        return False
    try:
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return False


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder. An interruption never leaves a part of it under its own name."""
    trash = _trash(path)
    os.replace(path, trash)
    shutil.rmtree(trash)


@contextmanager
def temporary_folder(beside: Path | None, kind: str) -> Iterator[Path]:
    """A folder that vanishes after the block; in `beside`, or where the system has such folders."""
    if beside is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    with disk_errors(beside / kind):
        folder = _beside(beside / kind, "partial")
        _remove_litter(beside / kind)
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    below = False
    for folder in file.parents:
        if folder.parent == path.parent:
            below = folder.name == path.name or folder.name.startswith(_hidden(path))
    return beside or above or below


def check_outputs(outputs: Iterable[Path], prefix: str | Path, inputs: Iterable[str]) -> None:
    """Refuse outputs, which begin with `prefix`, that would overwrite an input or are folders."""
    inputs = list(inputs)
    for path in outputs:
        for file in inputs:
            if path.exists() and Path(file).exists() and path.samefile(file):
                raise UserError(
                    f"{file} would be overwritten by output {prefix}: choose another prefix."
                )
        if path.is_dir():
            raise UserError(
                f"{path}: this is a folder, but has to be a file: choose another output."
            )


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, or cannot be made, before work is done for it."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise _cannot_be_written(folder, error) from error


def read_json(path: Path) -> Any:
    """The value that a JSON file holds."""
    require_ordinary(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot be read: not valid UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: this is not JSON: {error}.") from None


def to_json(value: Any) -> str:
    """A value as the JSON of our files: indented, letters as they are, with a final newline."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
