"""Errors that are meant for people."""

from __future__ import annotations

import importlib
from types import ModuleType


class UserError(Exception):
    """Something the user can put right.

    The message is one sentence that names the file, line or key and says what to do. The command
    line prints it without a traceback and exits with status 2.
    """


class MissingExtra(UserError):
    """A package is missing that an extra of cbmi installs."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'cbmi[{extra}]'.")
        self.extra = extra


class NobodyReads(Exception):
    """Standard output was closed by its reader: there is no more to do."""


class TrainingStopped(Exception):
    """Training was asked to stop and has saved; the same call resumes it.

    `signal_number` is the signal that asked (0: another rank received it).
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"training was stopped by signal {signal_number} and has saved")
        self.signal_number = signal_number


def first_line(error: Exception) -> str:
    """What another library's error says, to be part of a sentence: its first line, no full stop."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")


def import_extra(module: str, what: str, extra: str) -> ModuleType:
    """Import a module that only an extra installs; `what` needs it, e.g. "Evaluation"."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(what, extra) from None
