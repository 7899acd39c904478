"""Parts of mini-batches on their way from the corpus to an objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cbmi.data.corpus import Corpus
from cbmi.data.vocabulary import BOS
from cbmi.model import Layout, Packed, Translator
from cbmi.model.dropout import seed_words
from cbmi.model.packed import lay_out
from cbmi.objectives import TokenScores
from cbmi.training.supply import Supply


@dataclass(frozen=True)
class Part:
    """What one rank computes at once: its share of a step, or of an accumulated part of it."""

    source: Packed
    inputs: Packed  # what the decoder reads
    target: Packed  # what it is to predict
    mask: Tensor  # (target tokens,) false where a token is only there to fill the part up or to keep ranks in step
    place: Tensor  # (target tokens,) where each stands in the corpus
    numbers: dict[str, Tensor]  # (target tokens,) each: what is known of them beforehand
    longest: Tensor  # (): target tokens in the longest sentence of the whole step
    tokens: Tensor  # (): real target tokens of the whole step, on all ranks
    seed: Tensor  # (2,) int32: of this rank's dropout
    draw: Tensor  # (): seed of what all ranks draw alike


class Capacity(NamedTuple):
    """The one shape that parts are filled up to."""

    source: int  # tokens
    target: int  # tokens
    sentences: int
    longest: int  # tokens of a sentence


class Facts(NamedTuple):
    """What a part has to know besides its pairs."""

    longest: int = 0
    tokens: int = 1
    seed: int = 0
    draw: int = 0
    real: bool = True  # false where a rank gets no sentence and computes one that counts nowhere


class Parcel:
    """Arrays in one piece of memory, so that they travel to a GPU in one go."""

    def __init__(
        self, arrays: dict[str, np.ndarray], sizes: tuple[np.ndarray, np.ndarray], filled: bool, pinned: bool
    ) -> None:
        """`sizes`: lengths of the source and target sentences; `filled`: up to the one shape."""
        self.sizes, self.filled, self.table, end = sizes, filled, {}, 0
        for name, array in arrays.items():
            self.table[name] = (end, array.dtype, array.shape)
            end += -(-array.nbytes // 16) * 16
        self.memory = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
        for name, view in self.views(self.memory).items():
            view.copy_(torch.from_numpy(arrays[name]))

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """The arrays as tensors in a piece of memory."""
        views = {}
        for name, (start, dtype, shape) in self.table.items():
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
            views[name] = memory[start : start + dtype.itemsize * int(np.prod(shape))].view(kind).view(shape)
        return views

    def part(self, device: torch.device) -> Part:
        return self.part_in(self.memory.to(device, non_blocking=True))

    def part_in(self, memory: Tensor) -> Part:
        """The part as it lies in a piece of memory on a device."""
        views = self.views(memory)
        sides = []
        for side, sizes in zip(("source", "target"), self.sizes, strict=True):
            fields = {name: views.pop(f"{side}.{name}") for name in ("lengths", "starts", "sentence", "position")}
            sides.append(Packed(views.pop(f"{side}.ids"), Layout(**fields, sizes=sizes)))
        source, target = sides
        inputs = Packed(views.pop("inputs"), target.layout)
        known = {name: views.pop(name) for name in ("mask", "place", "longest", "tokens", "seed", "draw")}
        return Part(source, inputs, target, numbers=views, **known)


def make_parcel(
    corpus: Corpus,
    pairs: np.ndarray,
    facts: Facts,
    numbers: dict[str, np.ndarray],
    capacity: Capacity | None = None,
    pinned: bool = False,
) -> Parcel:
    """The given pairs; filled up to the capacity where they fit into it."""
    source, target = corpus.source.select(pairs), corpus.target.select(pairs)
    sizes, spare = (source.lengths, target.lengths), (0, 0)
    filled = fill(sizes, capacity) if capacity else None
    if filled is not None:
        spare = tuple(int(new.sum() - old.sum()) for new, old in zip(filled, sizes, strict=True))
        sizes = filled
    arrays = {}
    for name, side, lengths, more in zip(("source", "target"), (source, target), sizes, spare, strict=True):
        arrays[f"{name}.ids"] = np.pad(side.ids, (0, more))
        arrays |= {f"{name}.{field}": array for field, array in lay_out(lengths).items()}
    arrays["inputs"] = np.where(arrays["target.position"] == 0, BOS, np.roll(arrays["target.ids"], 1))
    arrays["mask"] = np.pad(np.full(len(target.ids), facts.real), (0, spare[1]))
    arrays["place"] = np.pad(target.places, (0, spare[1]))
    for name, array in numbers.items():
        arrays[name] = np.pad(array[target.places].astype(np.float32), (0, spare[1]))
    longest = max(facts.longest, int(target.lengths.max(initial=0)))
    arrays["longest"] = np.array(longest, np.int64)
    arrays["tokens"] = np.array(facts.tokens, np.float32)
    arrays["seed"] = np.array(seed_words(facts.seed), np.int32)
    arrays["draw"] = np.array(facts.draw, np.int64)
    return Parcel(arrays, sizes, filled is not None, pinned)


def make_part(
    corpus: Corpus,
    pairs: np.ndarray,
    facts: Facts,
    numbers: dict[str, np.ndarray],
    device: torch.device,
) -> Part:
    """Pairs as they are, for scoring."""
    return make_parcel(corpus, pairs, facts, numbers).part(device)


def fill(sizes: tuple[np.ndarray, np.ndarray], capacity: Capacity) -> tuple[np.ndarray, np.ndarray] | None:
    """Lengths of source and target sentences with those of fillers after them, so that tokens and sentences come to
    just the capacity; None where they do not fit."""
    places = capacity.sentences - len(sizes[0])
    free = [room - int(lengths.sum()) for room, lengths in zip(capacity[:2], sizes, strict=True)]
    longest = max(capacity.longest, 1)
    if places < 0 or min(free) < 0 or max(free) > places * longest:
        return None
    begun = np.arange(places) * longest
    return tuple(
        np.concatenate([lengths, np.clip(room - begun, 0, longest)])
        for lengths, room in zip(sizes, free, strict=True)
    )


def token_scores(
    part: Part, supply: Supply, nmt: Tensor, mean: Tensor, lm: Tensor | None, **others: Any
) -> TokenScores:
    """What an objective is given of a part."""
    layout = part.target.layout
    numbers = {name: values for name, values in part.numbers.items() if name != "lm"}  # those are `lm`
    return TokenScores(
        nmt=nmt,
        mean=mean,
        lm=lm,
        mask=part.mask,
        sentence=layout.sentence,
        sentences=layout.sentences,
        longest=part.longest,
        gold=part.target.ids,
        place=part.place,
        seed=part.draw,
        frequency=supply.frequency,
        **numbers,
        **others,
    )


@torch.no_grad()
def dropout_samples(translator: Translator, part: Part, count: int) -> Tensor:
    """(count, tokens): log p of the gold tokens under draws of dropout."""
    samples = []
    translator.draws.seed = part.seed
    for draw in range(count):
        translator.draws.sample = draw + 1
        samples.append(translator(part.source, part.inputs, part.target.ids)[0])
    translator.draws.sample = 0
    return torch.stack(samples)
