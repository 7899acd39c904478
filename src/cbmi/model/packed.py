"""Sentences laid end to end: the one batch layout.

Everything except attention works on flat (tokens, ...) tensors, so no arithmetic is spent on
padding; per-sentence statistics go by sentence index. Attention asks the `Layout` where sentences
begin and end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

# Tokens of sentences that are padded together where they have to be.
GROUP_TOKENS = {"cpu": 512, "cuda": 8192}


@dataclass(frozen=True)
class Layout:
    """Where the sentences of a flat tensor lie."""

    lengths: Tensor  # (sentences,)
    starts: Tensor  # (sentences + 1,) int32: cumulative lengths
    sentence: Tensor  # (tokens,): index of each token's sentence
    position: Tensor  # (tokens,): position of each token in its sentence, from 0
    sizes: np.ndarray  # the lengths again, on the host: readable without waiting for a GPU

    @property
    def sentences(self) -> int:
        return len(self.sizes)

    @cached_property
    def longest(self) -> int:
        return int(self.sizes.max(initial=0))

    @cached_property
    def grid_index(self) -> Tensor:
        """(tokens,) index of each token in a padded (sentences × longest) grid."""
        return self.sentence * self.longest + self.position

    @cached_property
    def filled(self) -> Tensor:
        """(sentences, longest) true where the padded grid holds a token."""
        return torch.arange(self.longest, device=self.lengths.device) < self.lengths[:, None]

    @cached_property
    def cuts(self) -> list[int]:
        """Where groups that are best padded together begin; last, the number of sentences."""
        tokens = GROUP_TOKENS.get(self.lengths.device.type, 512)
        group_of_sentence = np.cumsum(self.sizes) // tokens
        changes = 1 + np.flatnonzero(np.diff(group_of_sentence))
        return [0, *(int(cut) for cut in changes), self.sentences]

    def groups(self, cuts: list[int]) -> list[Layout]:
        """The layouts of consecutive groups of sentences, each as if it stood alone."""
        if cuts == [0, self.sentences]:
            return [self]
        return [self._group(first, last) for first, last in pairwise(cuts)]

    def _group(self, first: int, last: int) -> Layout:
        first_token = int(self.sizes[:first].sum())
        last_token = first_token + int(self.sizes[first:last].sum())
        return Layout(
            lengths=self.lengths[first:last],
            starts=self.starts[first : last + 1] - first_token,
            sentence=self.sentence[first_token:last_token] - first,
            position=self.position[first_token:last_token],
            sizes=self.sizes[first:last],
        )


@dataclass(frozen=True)
class Packed:
    """Ids of several sentences with their layout."""

    ids: Tensor  # (tokens,)
    layout: Layout


def layout_arrays(lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a layout, by the names of its fields."""
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(starts[-1]) - starts[sentence]
    return {"lengths": lengths, "starts": starts, "sentence": sentence, "position": position}


def pack(
    ids: np.ndarray | Tensor, lengths: np.ndarray | Tensor, device: torch.device | str = "cpu"
) -> Packed:
    """Lay out flat ids; `lengths` says how many belong to each sentence."""
    sizes = np.asarray(lengths, dtype=np.int64)
    tensors = {
        name: torch.from_numpy(array).to(device) for name, array in layout_arrays(sizes).items()
    }
    return Packed(torch.as_tensor(ids).to(device), Layout(**tensors, sizes=sizes))


def pack_sentences(
    sentences: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> Packed:
    """Lay out sentences that are lists of ids."""
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    ids = np.concatenate([np.asarray(sentence, dtype=np.int64) for sentence in sentences])
    return pack(ids, lengths, device)


def twice(packed: Packed) -> Packed:
    """The sentences, and after the last of them all of them once more."""
    layout = packed.layout
    sizes = np.concatenate([layout.sizes, layout.sizes])
    tokens = len(packed.ids)
    doubled = Layout(
        lengths=torch.cat([layout.lengths, layout.lengths]),
        starts=torch.cat([layout.starts[:-1], layout.starts + tokens]),
        sentence=torch.cat([layout.sentence, layout.sentence + layout.sentences]),
        position=torch.cat([layout.position, layout.position]),
        sizes=sizes,
    )
    return Packed(torch.cat([packed.ids, packed.ids]), doubled)


def shift_right(target: Packed, begin: int) -> Packed:
    """What the decoder reads to predict `target`: `begin`, then each sentence without its end."""
    ids = torch.where(target.layout.position == 0, begin, target.ids.roll(1))
    return Packed(ids, target.layout)
