"""Requests that come at the same time are computed together, by one thread: the model is nobody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

AT_A_TIME = 256  # things computed together at most
WAITING = 4096  # things that wait at most; more are turned away


class Busy(Exception):
    """Too much is waiting already."""


class Batcher:
    """Collects things under a key and computes those of one key together: `compute(key, things) -> results`."""

    def __init__(self, compute: Callable[[Any, list[Any]], Sequence[Any]]) -> None:
        self.compute = compute
        self.changed = threading.Condition()
        self.queue: list[tuple[Hashable, Any, asyncio.AbstractEventLoop, asyncio.Future]] = []
        self.stopped = False
        self.thread = threading.Thread(target=self._work, daemon=True, name="batcher")
        self.thread.start()

    async def submit(self, key: Hashable, things: Sequence[Any]) -> list[Any]:
        """The results of things, in order; raises `Busy`, or what the computation raised."""
        loop = asyncio.get_running_loop()
        with self.changed:
            if len(self.queue) + len(things) > WAITING:
                raise Busy
            futures = [loop.create_future() for _ in things]
            self.queue += [(key, thing, loop, future) for thing, future in zip(things, futures, strict=True)]
            self.changed.notify()
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(results)

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.thread.join()

    def _work(self) -> None:
        while True:
            with self.changed:
                while not self.queue and not self.stopped:
                    self.changed.wait()
                if self.stopped:
                    return
                key = self.queue[0][0]
                taken = [entry for entry in self.queue if entry[0] == key][:AT_A_TIME]
                chosen = set(map(id, taken))
                self.queue = [entry for entry in self.queue if id(entry) not in chosen]
            wanted = [entry for entry in taken if not entry[3].cancelled()]
            try:
                results: Sequence[Any] = self.compute(key, [thing for _, thing, _, _ in wanted])
            except Exception as error:  # whatever one batch meets, the next is served
                results = [error] * len(wanted)
            for (_, _, loop, future), result in zip(wanted, results, strict=True):
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_settle, future, result)


def _settle(future: asyncio.Future, result: Any) -> None:
    if future.done():  # whoever asked has gone
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
