"""Sentences laid end to end: the one batch layout.

Everything but attention works on flat (tokens, ...) tensors, so no arithmetic is spent on padding; per-sentence
statistics go by sentence index. Attention asks the `Layout` where sentences begin and end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

GROUP_TOKENS = {"cpu": 512, "cuda": 8192}  # of sentences that are padded together where they have to be


@dataclass(frozen=True)
class Layout:
    """Where the sentences of a flat tensor lie."""

    lengths: Tensor  # (sentences,)
    starts: Tensor  # (sentences + 1,) int32: cumulative lengths
    sentence: Tensor  # (tokens,): index of each token's sentence
    position: Tensor  # (tokens,): place of each token in its sentence, from 0
    sizes: np.ndarray  # the lengths again, where a program can read them without waiting for a GPU

    @property
    def sentences(self) -> int:
        return len(self.sizes)

    @cached_property
    def longest(self) -> int:
        return int(self.sizes.max(initial=0))

    @cached_property
    def place(self) -> Tensor:
        """(tokens,) index of each token in a padded (sentences × longest) grid."""
        return self.sentence * self.longest + self.position

    @cached_property
    def filled(self) -> Tensor:
        """(sentences, longest) true where the padded grid holds a token."""
        return torch.arange(self.longest, device=self.lengths.device) < self.lengths[:, None]

    @cached_property
    def cuts(self) -> list[int]:
        """Sentences at which groups begin that are best padded together, and the number of sentences."""
        tokens = GROUP_TOKENS.get(self.lengths.device.type, 512)
        groups = np.cumsum(self.sizes) // tokens
        inner = 1 + np.flatnonzero(np.diff(groups)) if len(self.sizes) else []
        return [0, *(int(cut) for cut in inner), self.sentences]

    def groups(self, cuts: list[int]) -> list[Layout]:
        """The layouts of runs of sentences, each as if it stood alone."""
        if cuts == [0, self.sentences]:
            return [self]
        return [self._run(*pair) for pair in pairwise(cuts)]

    def _run(self, first: int, last: int) -> Layout:
        begin = int(self.sizes[:first].sum())
        rows, tokens = slice(first, last), slice(begin, begin + int(self.sizes[first:last].sum()))
        starts = self.starts[first : last + 1] - begin
        sentence, position = self.sentence[tokens] - first, self.position[tokens]
        return Layout(self.lengths[rows], starts, sentence, position, self.sizes[rows])


@dataclass(frozen=True)
class Packed:
    """Ids of several sentences with their layout."""

    ids: Tensor  # (tokens,)
    layout: Layout


def lay_out(lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a layout, by the names of its fields."""
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(starts[-1]) - starts[sentence]
    return {"lengths": lengths, "starts": starts, "sentence": sentence, "position": position}


def pack(ids: np.ndarray | Tensor, lengths: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Packed:
    """Lay out flat ids; `lengths` says how many belong to each sentence."""
    lengths = np.asarray(lengths, dtype=np.int64)
    tensors = {name: torch.from_numpy(array).to(device) for name, array in lay_out(lengths).items()}
    return Packed(torch.as_tensor(ids).to(device), Layout(**tensors, sizes=lengths))


def shift_right(target: Packed, begin: int) -> Packed:
    """What the decoder reads when it predicts `target`: each sentence one place later, after `begin`."""
    ids = torch.where(target.layout.position == 0, begin, target.ids.roll(1))
    return Packed(ids, target.layout)
