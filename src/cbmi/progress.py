"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing inside `quiet()`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# rich draws from Python's random numbers when it is imported; those of a caller stay as they were.
_state = random.getstate()
from rich.console import Console  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

random.setstate(_state)

# Seconds between two lines: at first, and after long work.
SHORTEST_PAUSE = 10.0
LONGEST_PAUSE = 60.0

console = Console(stderr=True, highlight=False, soft_wrap=True)

# A context variable, not a global: other threads and tasks keep their own value.
_silenced: ContextVar[bool] = ContextVar("silenced", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block `say` prints nothing and `bar` shows nothing.

    This holds for the current thread or task. A thread that the block starts is not silenced.
    """
    token = _silenced.set(True)
    try:
        yield
    finally:
        _silenced.reset(token)


def say(message: str) -> None:
    """Print a line for the person at the terminal, to standard error: results go to the output."""
    if not _silenced.get():
        console.print(message, markup=False)


class Bar:
    """Counts up to a total without showing it: the quiet bar, and the base of those that draw.

    `note` is a short text beside the count, such as the loss.
    """

    def __init__(self, title: str, total: int | None, unit: str, done: int = 0) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = done
        self.begun_with = done
        self.started = time.monotonic()
        self.note = ""

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        self.done += amount
        if note is not None:
            self.note = note
        self.show()

    def speed(self) -> float:
        """Units per second since the bar was made."""
        return (self.done - self.begun_with) / max(time.monotonic() - self.started, 1e-9)

    def pace(self) -> str:
        """The speed as text."""
        speed = self.speed()
        return f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.2g} {self.unit}/s"

    def show(self) -> None:
        """Redraw. The quiet bar draws nothing."""


class _LineBar(Bar):
    """Prints a line now and then, for logs and pipes."""

    def __init__(self, title: str, total: int | None, unit: str, done: int = 0) -> None:
        super().__init__(title, total, unit, done)
        self.last = self.started

    def show(self) -> None:
        now = time.monotonic()
        # The longer the work, the longer the pause: a twentieth of the time so far.
        pause = max(SHORTEST_PAUSE, (now - self.started) / 20)
        if now - self.last < min(pause, LONGEST_PAUSE):
            return
        self.last = now
        say(self.line())

    def line(self) -> str:
        beside = self.note or self.pace()
        if not self.total:
            return f"{self.title}: {self.done:,} {self.unit}, {beside}"
        share = self.done / self.total
        text = f"{self.title}: {self.done:,} of {self.total:,} {self.unit} ({share:.0%}), {beside}"
        speed = self.speed()
        if speed:
            text += f", {clock((self.total - self.done) / speed)} left"
        return text


class _TerminalBar(Bar):
    """A bar of rich."""

    def __init__(
        self, progress: Progress, title: str, total: int | None, unit: str, done: int = 0
    ) -> None:
        super().__init__(title, total, unit, done)
        self.progress = progress
        self.task = progress.add_task(self.title, total=self.total, completed=self.done, note="")

    def show(self) -> None:
        note = self.note or self.pace()
        self.progress.update(self.task, completed=self.done, note=note)


@contextmanager
def bar(
    title: str, total: int | None, unit: str, done: int = 0, quiet: bool = False
) -> Iterator[Bar]:
    """Show the progress of the block.

    `total` is None where it is unknown; `done` is what earlier work has done already.
    """
    if quiet or _silenced.get():
        yield Bar(title, total, unit, done)
    elif not sys.stderr.isatty():
        yield _LineBar(title, total, unit, done)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            yield _TerminalBar(progress, title, total, unit, done)


def counted(count: int, noun: str) -> str:
    """1 pair, 2,000 pairs"""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def clock(seconds: float) -> str:
    """Seconds as 4 s, 3:05 or 2:00:07."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
