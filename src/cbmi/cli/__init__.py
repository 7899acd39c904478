"""Commands: parse, call one function, print. A user's mistake ends in one sentence and status 2."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

from cbmi.cli import training  # noqa: F401

# isort: split
# The order in which `cbmi --help` lists the commands.
from cbmi.cli import experiments, humaneval, models, scoring  # noqa: F401
from cbmi.cli.app import app
from cbmi.errors import NobodyReads, UserError
from cbmi.version import __version__

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

SPOKEN = "cbmi has spoken"  # at torchrun's store, once a process has said why it ends
ECHO_PATIENCE = 5.0  # seconds that the others wait for that
REPORT_STATUS = 70  # of an error that nobody has thought of


def main() -> None:
    """The command line's entry."""
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Output is often kept in files: the same on every platform.
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        try:
            app(prog_name="cbmi")
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        _exit(end.code)
    except UserError as error:
        _say(str(error))
        _exit(2)
    except (BrokenPipeError, NobodyReads):
        _discard_output()  # nobody reads on, as in `cbmi translate … | head -1`
        _exit(0)
    except KeyboardInterrupt:
        _discard_output()
        _exit(130)
    except Exception as error:
        if _is_echo(error):
            _exit(1)
        sentence = sentence_of(error)
        if sentence is None:
            _say(_reported(error))
            status = REPORT_STATUS
        else:
            _say(sentence)
            status = 2
        _discard_output()
        _exit(status)


def _is_echo(error: Exception) -> bool:
    """Whether another of torchrun's processes has ended, which has said why."""
    if _processes() == 1:
        return False
    of_torch = type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError")
    if not of_torch and not any(words in str(error) for words in ("gloo", "closed by peer")):
        return False
    deadline = time.monotonic() + ECHO_PATIENCE
    while time.monotonic() < deadline:
        with suppress(KeyError, ValueError, RuntimeError):
            if _store().check([SPOKEN]):
                return True
        time.sleep(0.2)
    return False


def sentence_of(error: Exception) -> str | None:
    """What a user is told of an error of the machine or of a file; None if it is another."""
    if isinstance(error, OSError):
        if error.filename is None and error.errno not in (*NO_SPACE, errno.EBADF, errno.EIO):
            return None
        place = error.filename or "standard output"
        failed = "cannot be written" if error.errno in NO_SPACE else "cannot be used"
        return f"{place}: {failed}: {error.strerror or error}."
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "There is not enough memory for this."
    if type(error).__name__ == "OutOfMemoryError":  # PyTorch's, which is not imported here
        return "There is not enough memory on the GPU for this."
    if isinstance(error, UnicodeError):
        return f"Text that is not valid UTF-8: {error}."
    if isinstance(error, json.JSONDecodeError):
        return f"A file is not the JSON that it should be: {error}."
    return None


def _reported(error: Exception) -> str:
    """Write all that is known of an error to a file; says where."""
    what = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
    text = "".join(traceback.format_exception(error))
    about = f"cbmi {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n\n{text}"
    try:
        descriptor, name = tempfile.mkstemp(prefix="cbmi-error-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(about)
    except OSError:
        return f"This should not have happened ({what})."
    return f"This should not have happened ({what}); the full report is in {name}."


def _say(message: str) -> None:
    if _first_to_say(message):
        print(f"cbmi: {message}", file=sys.stderr)


class _ClosedOutput(io.StringIO):
    """Standard output that was closed before the program started: nothing gets lost silently."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")


def _replace_closed_streams() -> None:
    """Keep numbers 0 to 2 from files that are opened later, and say what cannot be printed."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < 3:
        descriptor = os.dup(descriptor)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


def _discard_output() -> None:
    """What is still to be written to standard output goes nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _first_to_say(message: str) -> bool:
    """Whether this is the first of torchrun's processes to print this message.

    They meet at torchrun's store: whoever comes first speaks for all.
    """
    if _processes() == 1:
        return True
    try:
        store = _store()
        store.add(SPOKEN, 1)
        return bool(store.add(f"cbmi: {message}", 1) == 1)
    except (KeyError, ValueError, RuntimeError):  # no store is left: better twice than not at all
        return True


def _store() -> Any:
    """torchrun's store."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=5),
    )


def _exit(status: int | str | None) -> NoReturn:
    """End the process.

    One of torchrun's ends at once: everything is on disk, and PyTorch's threads sometimes abort a
    process that shuts down in the usual way ("terminate called without an active exception").
    """
    if isinstance(status, int | None) and _processes() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)
    sys.exit(status)
