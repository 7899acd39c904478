"""Commands: parse, call one function, print. A mistake of the user's ends in one sentence and status 2."""

from __future__ import annotations

import errno
import os
import sys
from datetime import timedelta

from cbmi.cli import training  # noqa: F401

# isort: split
# The order in which `cbmi --help` lists the commands.
from cbmi.cli import analysis, experiments, humaneval  # noqa: F401
from cbmi.cli.app import app
from cbmi.errors import UserError


def main() -> None:
    """The command line's entry."""
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # it is often kept: the same anywhere
    try:
        try:
            app(prog_name="cbmi")
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        _leave(end.code)
    except UserError as error:
        if _first_to_say(str(error)):
            print(f"cbmi: {error}", file=sys.stderr)
        _leave(2)
    except BrokenPipeError:
        _close_output()  # nobody reads on: no more to say
        _leave(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"cbmi: {error.filename or 'standard output'}: cannot be written: {error.strerror}.", file=sys.stderr)
        _close_output()
        _leave(2)


def _close_output() -> None:
    """What is still to be written to standard output goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _first_to_say(message: str) -> bool:
    """Of torchrun's processes, one speaks for all that have the same to say: whoever comes first to their store."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from torch.distributed import TCPStore

    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
        return store.add(f"cbmi: {message}", 1) == 1
    except (KeyError, ValueError, RuntimeError):  # no store is left: better twice than not at all
        return True


def _leave(status: int | str | None) -> None:
    """End the process. One of torchrun's ends at once: everything is on disk, and PyTorch's threads sometimes
    abort a process that takes itself apart in the usual way ("terminate called without an active exception")."""
    if isinstance(status, int | None) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)
    sys.exit(status)
