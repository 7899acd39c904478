"""Which pairs a step trains on: a pure function of (seed, epoch, step).

An epoch's pairs are shuffled and cut into batches. Every pair is used once. Batches are laid end to end without
padding, so sentences of all lengths stand together in them, as chance has it. A step's batch is the same however
many devices share it; `share` deals it out.
"""

from __future__ import annotations

import numpy as np


class EpochPlan:
    """The batches of one epoch."""

    def __init__(self, lengths: np.ndarray, tokens: int, seed: int, epoch: int) -> None:
        """`lengths` (2, pairs): pieces of source and target. A batch has at most `tokens` on either side."""
        random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
        self.order = random.permutation(lengths.shape[1])
        self.sums = _running_sums(lengths[:, self.order])
        self.bounds = _cut(self.sums, tokens)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, step: int) -> np.ndarray:
        """Indices of the pairs of a batch."""
        return self.order[self.bounds[step] : self.bounds[step + 1]]

    def sizes(self) -> np.ndarray:
        """(3, batches): pieces of source and target, and pairs of each batch."""
        return np.stack([*np.diff(self.sums[:, self.bounds]), np.diff(self.bounds)])


def _running_sums(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((2, 1), np.int64), np.cumsum(lengths, axis=1)], axis=1)


def _cut(sums: np.ndarray, tokens: int) -> np.ndarray:
    """Bounds of the longest runs that hold at most `tokens` pieces per side (a longer pair stands alone)."""
    pairs = sums.shape[1] - 1
    bounds = [0]
    while bounds[-1] < pairs:
        start = bounds[-1]
        ends = [np.searchsorted(side, side[start] + tokens, side="right") - 1 for side in sums]
        bounds.append(max(start + 1, int(min(ends))))
    return np.array(bounds)


def share(pairs: np.ndarray, target_lengths: np.ndarray, parts: int) -> list[np.ndarray]:
    """Deal a batch into `parts` of nearly equal size, each with its longest sentences first: to the first part, the
    second … the last, the last … the first, and so on. Their token counts differ by one sentence at most."""
    longest_first = pairs[np.argsort(-target_lengths[pairs], kind="stable")]
    turn = np.arange(len(pairs)) % (2 * parts)
    owner = np.minimum(turn, 2 * parts - 1 - turn)
    return [longest_first[owner == part] for part in range(parts)]
