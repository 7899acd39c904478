"""Requests that come at the same time are computed together, in one thread.

That thread alone uses the model.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

WAITING = 4096  # inputs that wait at most; more are turned away


class Busy(Exception):
    """Too much is waiting already."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One input of a request, and where its result goes."""

    key: Hashable
    input: Any
    cost: int
    request: int  # entries of one request have the same number
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Batcher:
    """Collects inputs under a key and computes those of one key together.

    `compute(key, inputs)` gives their results, in order. The inputs of a batch cost at most `most`
    in all, by the caller's measure, or there is only one. A request that needs several batches goes
    to the end of the queue after each: a large one does not keep the small ones waiting.
    """

    def __init__(self, compute: Callable[[Any, list[Any]], Sequence[Any]], most: int) -> None:
        self.compute = compute
        self.most = most
        self.changed = threading.Condition()  # guards queue and stopped
        self.queue: list[Entry] = []
        self.numbers = itertools.count()
        self.stopped = False
        self.thread = threading.Thread(target=self._work, daemon=True, name="batcher")
        self.thread.start()

    async def submit(
        self, key: Hashable, inputs: Sequence[Any], cost: Callable[[Any], int]
    ) -> list[Any]:
        """The results of the inputs, in order. Raises `Busy`, or what the computation raised.

        If the caller is cancelled, what has not been started is dropped.
        """
        loop = asyncio.get_running_loop()
        number = next(self.numbers)
        with self.changed:
            if len(self.queue) + len(inputs) > WAITING:
                raise Busy
            entries = [
                Entry(key, one, cost(one), number, loop, loop.create_future()) for one in inputs
            ]
            self.queue += entries
            self.changed.notify()
        # All are awaited, even after an error: no exception is left that nobody has looked at.
        futures = [entry.future for entry in entries]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(results)

    def stop(self) -> None:
        """End soon, without waiting long for what is being computed."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.thread.join(timeout=2)  # seconds

    def _work(self) -> None:
        """The thread: batch after batch."""
        while True:
            with self.changed:
                while not self.queue and not self.stopped:
                    self.changed.wait()
                if self.stopped:
                    return
                batch = self._take()
            if batch:
                self._compute(batch)

    def _compute(self, batch: list[Entry]) -> None:
        """Compute a batch and hand out its results, or its error."""
        inputs = [entry.input for entry in batch]
        try:
            results = self.compute(batch[0].key, inputs)
        except Exception as error:  # whatever one batch meets, the next is served
            results = [error] * len(batch)
        for entry, result in zip(batch, results, strict=True):
            if not entry.loop.is_closed():
                entry.loop.call_soon_threadsafe(_settle, entry.future, result)

    def _take(self) -> list[Entry]:
        """Take the next batch off the queue; empty if all that waited was cancelled.

        What is left of the requests it serves goes to the end of the queue.
        """
        waiting = [entry for entry in self.queue if not entry.future.cancelled()]
        batch: list[Entry] = []
        left: list[Entry] = []
        total = 0
        for entry in waiting:
            fits = not batch or total + entry.cost <= self.most
            if entry.key == waiting[0].key and fits:
                batch.append(entry)
                total += entry.cost
            else:
                left.append(entry)
        served = {entry.request for entry in batch}
        others = [entry for entry in left if entry.request not in served]
        rest = [entry for entry in left if entry.request in served]
        self.queue = others + rest
        return batch


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    """Called in the loop's own thread: futures are not thread-safe."""
    if future.done():  # whoever asked has gone
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
