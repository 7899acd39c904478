"""Sentences laid end to end: the one batch layout.

Everything but attention works on flat (tokens, ...) tensors, so no arithmetic is spent on padding; per-sentence
statistics go by sentence index. Attention asks the `Layout` where sentences begin and end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the sentences of a flat tensor lie."""

    lengths: Tensor  # (sentences,)
    starts: Tensor  # (sentences + 1,) int32: cumulative lengths, as variable-length attention wants them
    sentence: Tensor  # (tokens,): index of each token's sentence
    position: Tensor  # (tokens,): place of each token in its sentence, from 0
    longest: int

    @property
    def sentences(self) -> int:
        return len(self.lengths)

    @cached_property
    def place(self) -> Tensor:
        """(tokens,) index of each token in a padded (sentences × longest) grid."""
        return self.sentence * self.longest + self.position

    @cached_property
    def filled(self) -> Tensor:
        """(sentences, longest) true where the padded grid holds a token."""
        return torch.arange(self.longest, device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class Packed:
    """Ids of several sentences with their layout."""

    ids: Tensor  # (tokens,)
    layout: Layout


def pack(ids: np.ndarray | Tensor, lengths: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Packed:
    """Lay out flat ids; `lengths` says how many belong to each sentence."""
    ids, lengths = torch.as_tensor(ids), torch.as_tensor(lengths)
    starts = torch.zeros(len(lengths) + 1, dtype=torch.long)
    torch.cumsum(lengths, 0, out=starts[1:])
    sentence = torch.repeat_interleave(lengths)
    position = torch.arange(len(ids)) - starts[sentence]
    longest = int(lengths.max()) if len(lengths) else 0
    on_device = [part.to(device, non_blocking=True) for part in (lengths, starts.int(), sentence, position)]
    return Packed(ids.to(device, non_blocking=True), Layout(*on_device, longest))


def shift_right(target: Packed, begin: int) -> Packed:
    """What the decoder reads when it predicts `target`: each sentence one place later, after `begin`."""
    ids = target.ids.roll(1)
    ids[target.layout.starts[:-1].long()] = begin
    return Packed(ids, target.layout)
