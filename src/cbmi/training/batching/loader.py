"""Batches built ahead of time, in a thread, so that no step waits for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

AHEAD = 4  # batches built before they are asked for

T = TypeVar("T")


class Loader(Generic[T]):
    """Keeps an iterator some items ahead. Asking for more than it has raises its StopIteration."""

    def __init__(self, items: Iterator[T], ahead: int = AHEAD) -> None:
        self.items = items
        self.seconds_waited = 0.0
        self.thread = ThreadPoolExecutor(1, "loader")
        self.pending: deque[Future[T]] = deque()
        for _ in range(ahead):
            self._request()

    def _request(self) -> None:
        self.pending.append(self.thread.submit(next, self.items))

    def next(self) -> T:
        begun = time.monotonic()
        item = self.pending.popleft().result()
        self.seconds_waited += time.monotonic() - begun
        self._request()
        return item

    def take_seconds_waited(self) -> float:
        """Seconds that `next` has waited since the last call of this."""
        seconds = self.seconds_waited
        self.seconds_waited = 0.0
        return seconds

    def __enter__(self) -> Loader[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)
