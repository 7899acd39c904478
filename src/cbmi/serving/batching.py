"""Requests that come at the same time are computed together, by one thread: the model is nobody else's."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

WAITING = 4096  # things that wait at most; more are turned away


class Busy(Exception):
    """Too much is waiting already."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One thing of a request, and where its result goes."""

    key: Hashable
    thing: Any
    cost: int
    request: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future


class Batcher:
    """Collects things under a key and computes those of one key together: `compute(key, things) -> results`.

    A batch costs at most `most`, by the caller's measure (or is a single thing), and a request that needs several
    stands in line again after each: a large one does not keep the small ones waiting.
    """

    def __init__(self, compute: Callable[[Any, list[Any]], Sequence[Any]], most: int) -> None:
        self.compute, self.most = compute, most
        self.changed = threading.Condition()
        self.queue: list[Entry] = []
        self.numbers = itertools.count()
        self.stopped = False
        self.thread = threading.Thread(target=self._work, daemon=True, name="batcher")
        self.thread.start()

    async def submit(self, key: Hashable, things: Sequence[Any], cost: Callable[[Any], int]) -> list[Any]:
        """The results of things, in order; raises `Busy`, or what the computation raised. Cancelled, what has not
        been begun is dropped."""
        loop, number = asyncio.get_running_loop(), next(self.numbers)
        with self.changed:
            if len(self.queue) + len(things) > WAITING:
                raise Busy
            futures = [loop.create_future() for _ in things]
            self.queue += [
                Entry(key, thing, cost(thing), number, loop, future)
                for thing, future in zip(things, futures, strict=True)
            ]
            self.changed.notify()
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(results)

    def stop(self) -> None:
        """End soon; what is being computed is not waited for long."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.thread.join(timeout=2)

    def _work(self) -> None:
        while True:
            with self.changed:
                while not self.queue and not self.stopped:
                    self.changed.wait()
                if self.stopped:
                    return
                batch = self._take()
            if not batch:
                continue
            try:
                results: Sequence[Any] = self.compute(batch[0].key, [entry.thing for entry in batch])
            except Exception as error:  # whatever one batch meets, the next is served
                results = [error] * len(batch)
            for entry, result in zip(batch, results, strict=True):
                if not entry.loop.is_closed():
                    entry.loop.call_soon_threadsafe(_settle, entry.future, result)

    def _take(self) -> list[Entry]:
        """The next batch; the requests it is of go to the end of the line with what is left of them."""
        waiting = [entry for entry in self.queue if not entry.future.cancelled()]
        batch, total = [], 0
        for entry in waiting:
            if entry.key == waiting[0].key and (not batch or total + entry.cost <= self.most):
                batch.append(entry)
                total += entry.cost
        served, taken = {entry.request for entry in batch}, set(map(id, batch))
        left = [entry for entry in waiting if id(entry) not in taken]
        self.queue = sorted(left, key=lambda entry: entry.request in served)
        return batch


def _settle(future: asyncio.Future, result: Any) -> None:
    if future.done():  # whoever asked has gone
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
