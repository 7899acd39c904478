"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = (10.0, 60.0)  # at first, and when work has long been going on
console = Console(stderr=True, highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """A line for the person at the terminal; results go to standard output, this does not."""
    console.print(message, markup=False)


class Bar:
    """Counts up to a total; `note` is a short text beside it, such as the loss."""

    def __init__(self, title: str, total: int | None, unit: str, done: int = 0) -> None:
        self.title, self.total, self.unit, self.done = title, total, unit, done
        self.begun_with, self.started = done, time.monotonic()
        self.note = ""

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        self.done += amount
        if note is not None:
            self.note = note
        self.show()

    def speed(self) -> float:
        return (self.done - self.begun_with) / max(time.monotonic() - self.started, 1e-9)

    def pace(self) -> str:
        speed = self.speed()
        return f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.2g} {self.unit}/s"

    def show(self) -> None:
        """Redraw; the quiet bar draws nothing."""


class _LineBar(Bar):
    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.last = self.started

    def show(self) -> None:
        now = time.monotonic()
        least, most = SECONDS_BETWEEN_LINES
        if now - self.last < min(max(least, (now - self.started) / 20), most):
            return
        self.last = now
        say(self.line())

    def line(self) -> str:
        speed = self.speed()
        parts = [f"{self.title}: {self.done:,}"]
        if self.total:
            parts[0] += f" of {self.total:,} {self.unit} ({self.done / self.total:.0%})"
            if speed:
                parts.append(f"{clock((self.total - self.done) / speed)} left")
        else:
            parts[0] += f" {self.unit}"
        parts.insert(1, self.note or self.pace())
        return ", ".join(parts)


class _TerminalBar(Bar):
    def __init__(self, progress: Progress, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.progress = progress
        self.task = progress.add_task(self.title, total=self.total, completed=self.done, note="")

    def show(self) -> None:
        note = self.note or self.pace()
        self.progress.update(self.task, completed=self.done, note=note)


@contextmanager
def bar(title: str, total: int | None, unit: str, done: int = 0, quiet: bool = False) -> Iterator[Bar]:
    """Show the progress of the block."""
    if quiet:
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


def clock(seconds: float) -> str:
    """Seconds as 4 s, 3:05 or 2:00:07."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
