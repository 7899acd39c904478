"""Which pairs a step trains on: a pure function of (seed, epoch, batch).

An epoch's pairs are shuffled and cut into batches. Every pair is used once. Batches are laid end to
end without padding, so they hold sentences of random lengths. A step's batch is the
same however many devices share it; `split` deals it out.
"""

from __future__ import annotations

import numpy as np


class EpochPlan:
    """The batches of one epoch."""

    def __init__(self, lengths: np.ndarray, tokens: int, seed: int, epoch: int) -> None:
        """`lengths` (2, pairs): pieces of source and target.

        A batch has at most `tokens` on either side.
        """
        random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
        self.order = random.permutation(lengths.shape[1])
        self.sums = _running_sums(lengths[:, self.order])
        self.bounds = _cut(self.sums, tokens)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, batch: int) -> np.ndarray:
        """Indices of the pairs of a batch."""
        return self.order[self.bounds[batch] : self.bounds[batch + 1]]

    def sizes(self) -> np.ndarray:
        """(3, batches): source pieces, target pieces and pairs of each batch."""
        pieces = np.diff(self.sums[:, self.bounds])
        pairs = np.diff(self.bounds)
        return np.stack([pieces[0], pieces[1], pairs])


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


def split(pairs: np.ndarray, target_lengths: np.ndarray, shares: int) -> list[np.ndarray]:
    """Deal a batch into shares of nearly equal size, each with its longest sentences first.

    Sentences are dealt to the first share, the second … the last, the last … the first, and so on.
    Token counts differ by one sentence at most.
    """
    longest_first = pairs[np.argsort(-target_lengths[pairs], kind="stable")]
    turn = np.arange(len(pairs)) % (2 * shares)
    owner = np.minimum(turn, 2 * shares - 1 - turn)
    return [longest_first[owner == share] for share in range(shares)]
