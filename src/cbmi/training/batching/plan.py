"""Which pairs a step trains on: a pure function of (seed, epoch, batch).

An epoch's pairs are shuffled and cut into batches. Every pair is used once, unless corpora have
weights. Batches are laid end to end without padding, so they hold sentences of random lengths, or,
where asked for, a few groups of sentences of like length. A step's batch is the same however many
devices share it; `split` deals it out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cbmi.training.batching.mixing import Mixing

GROUPS_KEY = 2**63 - 1  # in place of an epoch: groups are the same in all of them
GROUP_MULTIPLE = 8  # sentences of a group, unless it has fewer


class Groups(NamedTuple):
    """The groups of like length that a batch is made of."""

    longest: np.ndarray  # (groups,) target tokens of the longest sentence of each
    of_pairs: np.ndarray  # (pairs,) the number of each one's group in the batch

    def select(self, places: np.ndarray) -> Groups:
        """The same groups, and some of the pairs."""
        return Groups(self.longest, self.of_pairs[places])


class EpochPlan:
    """The batches of one epoch."""

    def __init__(
        self,
        lengths: np.ndarray,
        tokens: int,
        seed: int,
        epoch: int,
        group: int | None = None,
        mixing: Mixing | None = None,
    ) -> None:
        """`lengths` (2, pairs): pieces of source and target.

        A batch has at most `tokens` on either side. `group`: tokens of a group, with padding; a
        batch is made of `tokens // group` of them. `mixing`: which pairs the epoch has; None: each
        once.
        """
        random = _random(seed, epoch)
        drawn = np.arange(lengths.shape[1]) if mixing is None else mixing.draw(seed, epoch)
        lengths = lengths[:, drawn]
        self.groups_per_batch = 1
        self.group_bounds: np.ndarray | None = None
        if group is None:
            self.order = random.permutation(lengths.shape[1])
            self.sums = _running_sums(lengths[:, self.order])
            self.bounds = _cut(self.sums, tokens)
        else:
            groups = groups_of_like_length(lengths, group, seed)
            shuffled = [groups[place] for place in random.permutation(len(groups))]
            self.order = np.concatenate(shuffled)
            self.sums = _running_sums(lengths[:, self.order])
            self.groups_per_batch = tokens // group
            self.group_bounds = np.cumsum([0, *(len(pairs) for pairs in shuffled)])
            begins = self.group_bounds[: -1 : self.groups_per_batch]
            self.bounds = np.append(begins, len(self.order))
        self.order = drawn[self.order]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, batch: int) -> np.ndarray:
        """Indices of the pairs of a batch."""
        return self.order[self.bounds[batch] : self.bounds[batch + 1]]

    def groups(self, batch: int) -> Groups | None:
        """What a batch is made of, where groups were asked for."""
        if self.group_bounds is None:
            return None
        start = self.bounds[batch]
        end = self.bounds[batch + 1]
        number = np.searchsorted(self.group_bounds, np.arange(start, end), side="right") - 1
        of_pairs = number - batch * self.groups_per_batch
        longest = np.ones(self.groups_per_batch, np.int64)  # the epoch's last batch may have fewer
        np.maximum.at(longest, of_pairs, np.diff(self.sums[1, start : end + 1]))
        return Groups(longest, of_pairs)

    def sizes(self) -> np.ndarray:
        """(3, batches): source pieces, target pieces and pairs of each batch."""
        pieces = np.diff(self.sums[:, self.bounds])
        pairs = np.diff(self.bounds)
        return np.stack([pieces[0], pieces[1], pairs])


def _random(seed: int, key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, key]))


def groups_of_like_length(lengths: np.ndarray, tokens: int, seed: int) -> list[np.ndarray]:
    """All pairs, sorted by the length of source and then target, in groups as fairseq makes them.

    A group is as large as fits into `tokens` on either side, if all its sentences are padded to the
    longest; its size is rounded down to a multiple of 8. Pairs of equal lengths come in random
    order.
    """
    shuffled = _random(seed, GROUPS_KEY).permutation(lengths.shape[1])
    source, target = lengths[:, shuffled]
    order = shuffled[np.lexsort((target, source))]  # stable: the last key comes first
    longer_side = lengths[:, order].max(axis=0)
    groups = []
    start = 0
    while start < len(order):
        at_most = max(1, tokens // int(longer_side[start]))
        padded_to = np.maximum.accumulate(longer_side[start : start + at_most])
        fitting = max(1, int((padded_to * np.arange(1, len(padded_to) + 1) <= tokens).sum()))
        is_last = start + fitting == len(order)
        if fitting > GROUP_MULTIPLE and not is_last:
            fitting -= fitting % GROUP_MULTIPLE
        groups.append(order[start : start + fitting])
        start += fitting
    return groups


def _running_sums(lengths: np.ndarray) -> np.ndarray:
    """(2, pairs + 1), from 0."""
    return np.concatenate([np.zeros((2, 1), np.int64), np.cumsum(lengths, axis=1)], axis=1)


def _cut(sums: np.ndarray, tokens: int) -> np.ndarray:
    """Where batches begin: each is as long as fits into `tokens` pieces per side.

    A pair that is longer than that is a batch of its own.
    """
    pairs = sums.shape[1] - 1
    bounds = [0]
    while bounds[-1] < pairs:
        start = bounds[-1]
        ends = [np.searchsorted(side, side[start] + tokens, side="right") - 1 for side in sums]
        bounds.append(max(start + 1, int(min(ends))))
    return np.array(bounds)


def split(target_lengths: np.ndarray, shares: int) -> list[np.ndarray]:
    """Deal a batch into shares of nearly equal size, each with its longest sentences first.

    target_lengths (pairs,) → for each share, the places of its pairs. They are dealt to the first
    share, the second … the last, the last … the first, and so on. Token counts differ by one
    sentence at most.
    """
    longest_first = np.argsort(-target_lengths, kind="stable")
    turn = np.arange(len(target_lengths)) % (2 * shares)
    owner = np.minimum(turn, 2 * shares - 1 - turn)
    return [longest_first[owner == share] for share in range(shares)]
