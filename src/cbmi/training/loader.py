"""Batches made ready beside training, so that no step waits for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from cbmi.data.corpus import Corpus
from cbmi.data.plan import EpochPlan, share
from cbmi.training.networks import seed_for
from cbmi.training.part import Capacity, Facts, Parcel, make_parcel
from cbmi.training.work import Work
from cbmi.training.world import World

AHEAD = 4  # batches made before they are asked for


@dataclass(frozen=True)
class Batch:
    """A step's mini-batch: this rank's parts of it, and where the epoch goes on after it."""

    parts: list[Parcel]
    work: Work  # of all ranks
    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Recipe:
    """How a stage's batches are made: the same pairs at the same step, whatever the number of ranks."""

    corpus: Corpus
    lengths: np.ndarray  # (2, pairs)
    step_tokens: int
    accumulate: int
    seed: int
    world: World
    numbers: dict[str, np.ndarray]

    def plan(self, epoch: int) -> EpochPlan:
        return EpochPlan(self.lengths, self.step_tokens, self.seed, epoch)

    def capacity(self, epoch: int) -> Capacity:
        """What nearly all parts fit into: this epoch's largest, and a little more for those of other epochs. Products
        of other shapes round differently, so a stage that goes on has to have the shape that it began with."""
        parts = self.accumulate * self.world.size
        *sides, pairs = self.plan(epoch).sizes().max(axis=1)
        longest = int(self.lengths.max())
        larger = [int(side) + max(64, int(side) // 100) for side in sides]
        limits = [max(self.step_tokens, int(side)) for side in sides]
        source, target = (-(-min(pair) // parts) for pair in zip(larger, limits, strict=True))
        room = 0 if parts == 1 else 64  # shares differ a little
        sentences = -(-int(pairs) // parts) + -(-max(source, target) // longest) + 32
        return Capacity(_rounded(source + room), _rounded(target + room), _rounded(sentences), longest)

    def batches(self, epoch: int, batch: int, step: int, capacity: Capacity | None) -> Iterator[Batch]:
        """From a place in an epoch on, for ever; `step`: the number of the first."""
        plan = self.plan(epoch)
        while True:
            pairs = plan[batch]
            batch += 1
            if batch == len(plan):
                epoch, batch = epoch + 1, 0
                plan = self.plan(epoch)
            yield replace(self.batch(pairs, step, capacity), epoch=epoch, batch=batch)
            step += 1

    def batch(self, pairs: np.ndarray, step: int, capacity: Capacity | None = None) -> Batch:
        """This rank's parts of a step. A rank that gets no sentence computes one that counts nowhere."""
        lengths, world = self.lengths[1], self.world
        shares = share(pairs, lengths, self.accumulate * world.size)
        tokens, longest, parts = int(lengths[pairs].sum()), int(lengths[pairs].max()), []
        draw = seed_for(self.seed, "objective", step, 0) >> 2
        for number in range(self.accumulate):
            mine = shares[number * world.size + world.rank]
            seed = seed_for(self.seed, "dropout", step, number, world.rank)
            facts = Facts(longest, tokens, seed, draw, real=len(mine) > 0)
            chosen = mine if len(mine) else pairs[:1]
            pinned = world.device.type == "cuda"
            parts.append(make_parcel(self.corpus, chosen, facts, self.numbers, capacity, pinned))
        return Batch(parts, Work.of(self.lengths[:, pairs]))


def _rounded(size: int) -> int:
    """Up to a multiple of 64, which matrix products like."""
    return -(-int(size) // 64) * 64


class Loader:
    """Runs an iterator some way ahead, in a thread. Who asks for more than it has gets its StopIteration."""

    def __init__(self, batches: Iterator[Batch], ahead: int = AHEAD) -> None:
        self.batches, self.waited = batches, 0.0
        self.thread = ThreadPoolExecutor(1, "loader")
        self.coming: deque[Future[Batch]] = deque(self._ask() for _ in range(ahead))

    def _ask(self) -> Future[Batch]:
        return self.thread.submit(next, self.batches)

    def next(self) -> Batch:
        begun = time.monotonic()
        batch = self.coming.popleft().result()
        self.waited += time.monotonic() - begun
        self.coming.append(self._ask())
        return batch

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)
