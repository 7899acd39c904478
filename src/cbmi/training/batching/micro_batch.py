"""A micro-batch: what one rank computes at once, from the corpus to the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cbmi.data.corpus import Corpus
from cbmi.data.vocabulary import BOS
from cbmi.model import Layout, Packed
from cbmi.model.dropout import seed_words
from cbmi.model.packed import layout_arrays
from cbmi.training.batching.plan import Groups

ALIGNMENT = 16  # bytes
TokenValues = Mapping[str, np.ndarray]  # by name: one value per target token of the corpus


@dataclass(frozen=True)
class MicroBatch:
    """What one rank computes in one forward and backward pass."""

    source: Packed
    inputs: Packed  # what the decoder reads
    target: Packed  # what it has to predict
    mask: Tensor  # (target tokens,) false for fillers: they count nowhere
    corpus_index: Tensor  # (target tokens,)
    token_values: dict[str, Tensor]  # (target tokens,) each: what is known of them beforehand
    # Target tokens in the longest sentence of the whole step, (), or of each of its groups.
    longest: Tensor
    group: Tensor | None  # (sentences,) of a step that is made of groups
    step_tokens: Tensor  # (): real target tokens of the whole step, on all ranks
    dropout_seed: Tensor  # (2,) int32: this rank's
    objective_seed: Tensor  # (): of what all ranks draw alike


class StepInfo(NamedTuple):
    """What a micro-batch has to know of its step, besides its pairs."""

    longest: int = 0
    groups: Groups | None = None  # those of the micro-batch's own pairs
    tokens: int = 1
    dropout_seed: int = 0
    objective_seed: int = 0
    counts: bool = True  # false where a rank gets no sentence and computes one that counts nowhere


class Capacity(NamedTuple):
    """The one shape that micro-batches are filled up to."""

    source: int  # tokens
    target: int  # tokens
    sentences: int
    longest: int  # tokens of a sentence


class _Slice(NamedTuple):
    """Where an array lies in a piece of memory."""

    start: int  # bytes
    dtype: np.dtype
    shape: tuple[int, ...]


class PinnedBatch:
    """A micro-batch's arrays in one piece of host memory, so that one copy takes them to a GPU."""

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        source_sizes: np.ndarray,
        target_sizes: np.ndarray,
        filled: bool,
        pinned: bool,
    ) -> None:
        """`source_sizes`, `target_sizes`: sentence lengths; `filled`: up to the one shape."""
        self.source_sizes = source_sizes
        self.target_sizes = target_sizes
        self.filled = filled
        self.slices: dict[str, _Slice] = {}
        end = 0
        for name, array in arrays.items():
            self.slices[name] = _Slice(end, array.dtype, array.shape)
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self.memory = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
        for name, view in self.views(self.memory).items():
            view.copy_(torch.from_numpy(arrays[name]))

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """The arrays as tensors in a piece of memory of the same layout."""
        views = {}
        for name, (start, dtype, shape) in self.slices.items():
            torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
            size = dtype.itemsize * int(np.prod(shape))
            views[name] = memory[start : start + size].view(torch_dtype).view(shape)
        return views

    def to_device(self, device: torch.device) -> MicroBatch:
        return self.micro_batch_in(self.memory.to(device, non_blocking=True))

    def micro_batch_in(self, memory: Tensor) -> MicroBatch:
        """The micro-batch as it lies in a piece of memory on a device."""
        views = self.views(memory)
        source = _packed(views, "source", self.source_sizes)
        target = _packed(views, "target", self.target_sizes)
        return MicroBatch(
            source=source,
            inputs=Packed(views.pop("inputs"), target.layout),
            target=target,
            mask=views.pop("mask"),
            corpus_index=views.pop("corpus_index"),
            longest=views.pop("longest"),
            group=views.pop("group", None),
            step_tokens=views.pop("step_tokens"),
            dropout_seed=views.pop("dropout_seed"),
            objective_seed=views.pop("objective_seed"),
            token_values=views,  # what is left
        )


def _packed(views: dict[str, Tensor], side: str, sizes: np.ndarray) -> Packed:
    """One side's tensors, taken out of `views`."""
    layout = Layout(
        lengths=views.pop(f"{side}.lengths"),
        starts=views.pop(f"{side}.starts"),
        sentence=views.pop(f"{side}.sentence"),
        position=views.pop(f"{side}.position"),
        sizes=sizes,
    )
    return Packed(views.pop(f"{side}.ids"), layout)


def pin_micro_batch(
    corpus: Corpus,
    pairs: np.ndarray,
    info: StepInfo,
    token_values: TokenValues,
    capacity: Capacity | None = None,
    pinned: bool = False,
) -> PinnedBatch:
    """The given pairs, filled up to the capacity if they fit into it."""
    source = corpus.source.select(pairs)
    target = corpus.target.select(pairs)
    source_sizes = source.lengths
    target_sizes = target.lengths
    filled = fill_sizes(source_sizes, target_sizes, capacity) if capacity else None
    if filled is not None:
        source_sizes, target_sizes = filled
    extra_source = int(source_sizes.sum() - source.lengths.sum())
    extra_target = int(target_sizes.sum() - target.lengths.sum())

    arrays = {"source.ids": np.pad(source.ids, (0, extra_source))}
    for field, array in layout_arrays(source_sizes).items():
        arrays[f"source.{field}"] = array
    arrays["target.ids"] = np.pad(target.ids, (0, extra_target))
    for field, array in layout_arrays(target_sizes).items():
        arrays[f"target.{field}"] = array
    # The decoder reads each sentence one position later, after the begin of sentence.
    previous = np.roll(arrays["target.ids"], 1)
    arrays["inputs"] = np.where(arrays["target.position"] == 0, BOS, previous)
    arrays["mask"] = np.pad(np.full(len(target.ids), info.counts), (0, extra_target))
    arrays["corpus_index"] = np.pad(target.places, (0, extra_target))
    for name, values in token_values.items():
        own = values[target.places].astype(np.float32)
        arrays[name] = np.pad(own, (0, extra_target))
    if info.groups is None:
        longest = max(info.longest, int(target.lengths.max(initial=0)))
        arrays["longest"] = np.array(longest, np.int64)
    else:
        arrays["longest"] = info.groups.longest.astype(np.int64)
        fillers = len(target_sizes) - len(target.lengths)
        arrays["group"] = np.pad(info.groups.of_pairs.astype(np.int64), (0, fillers))
    arrays["step_tokens"] = np.array(info.tokens, np.float32)
    arrays["dropout_seed"] = np.array(seed_words(info.dropout_seed), np.int32)
    arrays["objective_seed"] = np.array(info.objective_seed, np.int64)
    return PinnedBatch(arrays, source_sizes, target_sizes, filled is not None, pinned)


def make_micro_batch(
    corpus: Corpus,
    pairs: np.ndarray,
    info: StepInfo,
    token_values: TokenValues,
    device: torch.device,
) -> MicroBatch:
    """Pairs as they are, without fillers: for scoring."""
    return pin_micro_batch(corpus, pairs, info, token_values).to_device(device)


def fill_sizes(
    source_sizes: np.ndarray, target_sizes: np.ndarray, capacity: Capacity
) -> tuple[np.ndarray, np.ndarray] | None:
    """Sentence lengths of both sides, followed by fillers that bring them up to the capacity.

    None if the sentences do not fit.
    """
    fillers = capacity.sentences - len(source_sizes)
    source_room = capacity.source - int(source_sizes.sum())
    target_room = capacity.target - int(target_sizes.sum())
    longest = max(capacity.longest, 1)
    if fillers < 0 or min(source_room, target_room) < 0:
        return None
    if max(source_room, target_room) > fillers * longest:
        return None
    # The first fillers are as long as a sentence may be; the rest are empty.
    begins = np.arange(fillers) * longest
    source_fillers = np.clip(source_room - begins, 0, longest)
    target_fillers = np.clip(target_room - begins, 0, longest)
    return (
        np.concatenate([source_sizes, source_fillers]),
        np.concatenate([target_sizes, target_fillers]),
    )
