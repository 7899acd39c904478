"""Requests to stop: SIGTERM and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals(ask: Callable[[int, Any], None]) -> Iterator[None]:
    """While the block runs, SIGTERM and Ctrl-C call `ask` with the signal's number and the frame.

    Afterwards the previous handlers are back. Python allows handlers in the main thread only. In
    any other thread the block runs without them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, ask)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
