"""Commands: parse, call one function, print. A user's mistake ends in one sentence and status 2."""

from __future__ import annotations

import errno
import io
import os
import sys
from datetime import timedelta
from typing import NoReturn

from cbmi.cli import training  # noqa: F401

# isort: split
# The order in which `cbmi --help` lists the commands.
from cbmi.cli import experiments, humaneval, models  # noqa: F401
from cbmi.cli.app import app
from cbmi.errors import UserError


def main() -> None:
    """The command line's entry."""
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
        if _first_to_say(str(error)):
            print(f"cbmi: {error}", file=sys.stderr)
        _exit(2)
    except BrokenPipeError:
        _discard_output()  # nobody reads on
        _exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place = error.filename or "standard output"
        print(f"cbmi: {place}: cannot be written: {error.strerror}.", file=sys.stderr)
        _discard_output()
        _exit(2)


def _discard_output() -> None:
    """What is still to be written to standard output goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _first_to_say(message: str) -> bool:
    """Whether this is the first of torchrun's processes to print this message.

    They meet at torchrun's store: whoever comes first speaks for all.
    """
    if _processes() == 1:
        return True
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=5),
        )
        return bool(store.add(f"cbmi: {message}", 1) == 1)
    except (KeyError, ValueError, RuntimeError):  # no store is left: better twice than not at all
        return True


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
