"""Which pairs a step trains on: a pure function of (seed, epoch, step).

An epoch's pairs are shuffled, brought together in buckets of like length, and cut into batches; the batches are
shuffled. Every pair is used once. A step's batch is the same however many devices share it; `share` deals it out.
"""

from __future__ import annotations

import numpy as np

BUCKET_GROWTH = 1.1  # sentences of one bucket differ in length by at most this factor


class EpochPlan:
    """The batches of one epoch."""

    def __init__(self, lengths: np.ndarray, tokens: int, seed: int, epoch: int) -> None:
        """`lengths` (2, pairs): pieces of source and target. A batch has at most `tokens` on either side."""
        random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
        shuffled = random.permutation(lengths.shape[1])
        buckets = np.floor(np.log(lengths) / np.log(BUCKET_GROWTH)).astype(np.int64)
        by_length = buckets[1] * (buckets[0].max() + 1) + buckets[0]
        self.order = shuffled[np.argsort(by_length[shuffled], kind="stable")]
        self.bounds = _cut(lengths[:, self.order], tokens)
        self.batches = random.permutation(len(self.bounds) - 1)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: int) -> np.ndarray:
        """Indices of the pairs of a batch."""
        batch = self.batches[step]
        return self.order[self.bounds[batch] : self.bounds[batch + 1]]


def _cut(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Bounds of the longest runs that hold at most `tokens` pieces a side (a longer pair stands alone)."""
    sums = np.concatenate([np.zeros((2, 1), np.int64), np.cumsum(lengths, axis=1)], axis=1)
    pairs = lengths.shape[1]
    bounds = [0]
    while bounds[-1] < pairs:
        start = bounds[-1]
        ends = [np.searchsorted(side, side[start] + tokens, side="right") - 1 for side in sums]
        bounds.append(max(start + 1, int(min(ends))))
    return np.array(bounds)


def share(pairs: np.ndarray, target_lengths: np.ndarray, parts: int) -> list[np.ndarray]:
    """Deal a batch into `parts` of nearly equal size: their token counts differ by one sentence at most."""
    longest_first = pairs[np.argsort(-target_lengths[pairs], kind="stable")]
    return [longest_first[part::parts] for part in range(parts)]
