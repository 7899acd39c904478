"""Requests to stop: SIGTERM, SIGHUP (the terminal has gone) and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """While the block runs, these signals call `handler` with the signal's number and frame.

    Afterwards the previous handlers are restored. Python allows handlers in the main thread only.
    In any other thread the block runs without them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup asks for that
            previous[number] = signal.signal(number, handler)
        yield
    finally:
        for number, before in previous.items():
            # None stands for a handler that was not installed from Python, and cannot be from here.
            signal.signal(number, signal.SIG_DFL if before is None else before)
