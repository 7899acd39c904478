"""From a step's pairs to this rank's micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cbmi.data.corpus import Corpus
from cbmi.training.batching.micro_batch import (
    Capacity,
    PinnedBatch,
    StepInfo,
    TokenValues,
    pin_micro_batch,
)
from cbmi.training.batching.mixing import Mixing
from cbmi.training.batching.plan import EpochPlan, Groups, split
from cbmi.training.seeds import seed_for
from cbmi.training.work import Work
from cbmi.training.world import World


@dataclass(frozen=True)
class Batch:
    """A step's batch: this rank's micro-batches, and where the epoch continues after it."""

    micro_batches: list[PinnedBatch]
    work: Work  # of all ranks
    next_epoch: int = 0
    next_batch: int = 0


class Segmentation:
    """The training pairs in one of their segmentations."""

    def __init__(self, corpus: Corpus, token_values: TokenValues) -> None:
        self.corpus = corpus
        self.token_values = token_values
        self.lengths = corpus.lengths()  # (2, pairs)


@dataclass(frozen=True)
class BatchBuilder:
    """How a stage's batches are built: the same pairs at the same step, on any number of ranks."""

    segmentations: Sequence[Segmentation]  # epochs take them in turn
    step_tokens: int
    accumulate: int  # micro-batches per rank
    seed: int
    world: World
    group_tokens: int | None = None  # with padding, where steps are made of groups of like length
    mixing: Mixing | None = None  # of corpora with weights

    def segmentation(self, epoch: int) -> Segmentation:
        return self.segmentations[epoch % len(self.segmentations)]

    def plan(self, epoch: int) -> EpochPlan:
        lengths = self.segmentation(epoch).lengths
        return EpochPlan(
            lengths, self.step_tokens, self.seed, epoch, self.group_tokens, self.mixing
        )

    def segmentations_of(self, epoch: int, batch: int, steps: int) -> set[int]:
        """The numbers of those that so many steps from a place in an epoch on will use."""
        used: set[int] = set()
        left = steps + batch
        while left > 0 and len(used) < len(self.segmentations):
            used.add(epoch % len(self.segmentations))
            left -= len(self.plan(epoch))
            epoch += 1
        return used

    def capacity(self, epoch: int) -> Capacity:
        """A shape that nearly all micro-batches fit into.

        It holds this epoch's largest, and a little more for those of other epochs. Matrix products
        of other shapes round differently, so a resumed stage must use the shape it began with.
        """
        shares = self.accumulate * self.world.size
        most_source, most_target, most_pairs = self.plan(epoch).sizes().max(axis=1).tolist()
        source = self._share_of_tokens(most_source, shares)
        target = self._share_of_tokens(most_target, shares)
        longest = max(int(one.lengths.max()) for one in self.segmentations)
        fillers = -(-max(source, target) // longest)
        sentences = -(-most_pairs // shares) + fillers + 32
        slack = 0 if shares == 1 else 64  # shares differ a little in size
        return Capacity(
            source=_round_up(source + slack),
            target=_round_up(target + slack),
            sentences=_round_up(sentences),
            longest=longest,
        )

    def _share_of_tokens(self, most: int, shares: int) -> int:
        """Tokens of one side of one share, if the largest batch of the epoch has `most`."""
        with_margin = most + max(64, most // 100)
        limit = max(self.step_tokens, most)
        return -(-min(with_margin, limit) // shares)

    def batches(
        self, epoch: int, batch: int, step: int, capacity: Capacity | None
    ) -> Iterator[Batch]:
        """From a place in an epoch on, without end; `step`: the number of the first."""
        plan = self.plan(epoch)
        while True:
            pairs = plan[batch]
            groups = plan.groups(batch)
            segmentation = self.segmentation(epoch)
            batch += 1
            if batch == len(plan):
                epoch += 1
                batch = 0
                plan = self.plan(epoch)
            micro_batches = self.micro_batches(segmentation, pairs, step, capacity, groups)
            yield Batch(micro_batches, Work.of(segmentation.lengths[:, pairs]), epoch, batch)
            step += 1

    def micro_batches(
        self,
        segmentation: Segmentation,
        pairs: np.ndarray,
        step: int,
        capacity: Capacity | None = None,
        groups: Groups | None = None,
    ) -> list[PinnedBatch]:
        """This rank's micro-batches of a step."""
        target_lengths = segmentation.lengths[1][pairs]
        world = self.world
        shares = split(target_lengths, self.accumulate * world.size)
        # >> 2 leaves room: a 32-bit number is added to it, and the sum has to fit an int64. The 0
        # is historical: it keeps old runs reproducible.
        objective_seed = seed_for(self.seed, "objective", step, 0) >> 2
        pinned = []
        for number in range(self.accumulate):
            own = shares[number * world.size + world.rank]
            # A rank that gets no sentence computes one that counts nowhere.
            chosen = own if len(own) else np.zeros(1, np.int64)
            info = StepInfo(
                longest=int(target_lengths.max()),
                groups=groups.select(chosen) if groups else None,
                tokens=int(target_lengths.sum()),
                dropout_seed=seed_for(self.seed, "dropout", step, number, world.rank),
                objective_seed=objective_seed,
                counts=len(own) > 0,
            )
            pinned.append(
                pin_micro_batch(
                    segmentation.corpus,
                    pairs[chosen],
                    info,
                    segmentation.token_values,
                    capacity,
                    pinned=world.device.type == "cuda",
                )
            )
        return pinned


def _round_up(size: int) -> int:
    """To a multiple of 64, which suits matrix products."""
    return -(-size // 64) * 64
