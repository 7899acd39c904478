"""Parts of mini-batches on their way from the corpus to an objective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbmi.data.corpus import Corpus
from cbmi.data.plan import share
from cbmi.data.vocabulary import BOS
from cbmi.model import Packed, Translator, pack, shift_right
from cbmi.objectives import TokenScores
from cbmi.training.supply import Supply
from cbmi.training.world import World


@dataclass(frozen=True)
class Part:
    """What one rank computes at once: its share of a step, or of an accumulated part of it."""

    source: Packed
    inputs: Packed  # what the decoder reads
    target: Packed  # what it is to predict
    mask: Tensor  # (target tokens,) false where the part is only there to keep the ranks in step
    longest: int  # target tokens in the longest sentence of this part on any rank
    place: Tensor  # (target tokens,) where each stands in the corpus
    numbers: dict[str, Tensor]  # (target tokens,) each: what is known of them beforehand


def make_part(
    corpus: Corpus,
    pairs: np.ndarray,
    device: torch.device,
    numbers: dict[str, np.ndarray] | None = None,
    longest: int = 0,
    real: bool = True,
) -> Part:
    ids, lengths, places = corpus.target.select(pairs)
    target = pack(ids, lengths, device)
    mask = torch.full_like(target.ids, real, dtype=torch.bool)
    source = pack(*corpus.source.select(pairs)[:2], device)
    known = {
        name: torch.from_numpy(array[places].astype(np.float32)).to(device, non_blocking=True)
        for name, array in (numbers or {}).items()
    }
    place = torch.from_numpy(places).to(device, non_blocking=True)
    longest = max(longest, target.layout.longest)
    return Part(source, shift_right(target, BOS), target, mask, longest, place, known)


def make_parts(
    corpus: Corpus, pairs: np.ndarray, accumulate: int, world: World, numbers: dict[str, np.ndarray]
) -> list[Part]:
    """This rank's parts of a step. A rank that gets no sentence computes one that counts nowhere."""
    lengths = corpus.target.lengths
    shares = share(pairs, lengths, accumulate * world.size)
    parts = []
    for number in range(accumulate):
        together = shares[number * world.size : (number + 1) * world.size]
        mine = together[world.rank]
        longest = max((int(lengths[one].max()) for one in together if len(one)), default=0)
        filler = len(mine) == 0
        chosen = pairs[:1] if filler else mine
        parts.append(make_part(corpus, chosen, world.device, numbers, longest, not filler))
    return parts


def token_scores(
    part: Part, supply: Supply, nmt: Tensor, mean: Tensor, lm: Tensor | None, **others: Any
) -> TokenScores:
    """What an objective is given of a part."""
    layout = part.target.layout
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
        frequency=supply.frequency,
        **part.numbers,
        **others,
    )


@torch.no_grad()
def dropout_samples(translator: Translator, part: Part, seeds: Iterable[int]) -> Tensor:
    """(draws, tokens): log p of the gold tokens under draws of dropout, one a seed."""
    samples = []
    for seed in seeds:
        torch.manual_seed(seed)
        samples.append(translator(part.source, part.inputs, part.target.ids)[0])
    return torch.stack(samples)
