"""What every objective is given and gives back.

All systems share one formula: the loss of a step is

    sum(w·ell + term) / (number of real target tokens of the whole step)

where ell is label-smoothed cross-entropy. An objective supplies the weights w, or the further term, or neither; and
it says what it `needs`, which the training loop then provides.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from cbmi.config import Settings
from cbmi.model.distribution import Distributions

CBMI_PAPER = (
    "Zhang et al., 2022: Conditional bilingual mutual information based adaptive training "
    "for neural machine translation"
)

# What an objective may need, and in which words a user is told.
NEEDS = {
    "lm": "a language model",
    "teacher": "the translator as it was when the stage began",
    "distribution": "whole distributions over the vocabulary",
    "samples": "predictions under several draws of dropout",
    "frequency": "frequencies of the target pieces",
    "bmi": "bilingual mutual information of the corpus",
    "weights": "a file of weights",
}


class Ranks(Protocol):
    """The data-parallel processes that share a mini-batch."""

    def sum(self, values: Tensor) -> Tensor: ...
    def min(self, values: Tensor) -> Tensor: ...
    def gather(self, value: Any) -> list[Any]: ...


class Alone:
    """The `Ranks` of a single process."""

    def sum(self, values: Tensor) -> Tensor:
        return values

    def min(self, values: Tensor) -> Tensor:
        return values

    def gather(self, value: Any) -> list[Any]:
        return [value]


ALONE = Alone()


@dataclass(frozen=True)
class TokenScores:
    """Scores of the target tokens of a mini-batch, packed end to end. What was not asked for is None."""

    nmt: Tensor  # (tokens,) log p(y_j | y_<j, x), with its graph
    mean: Tensor  # (tokens,) mean over the vocabulary of log p(v | y_<j, x), with its graph
    lm: Tensor | None  # (tokens,) log p(y_j | y_<j), detached
    mask: Tensor  # (tokens,) false for tokens that only fill the batch up: they count nowhere
    sentence: Tensor  # (tokens,) index of each token's sentence
    sentences: int
    longest: int | Tensor  # tokens in the longest sentence of the whole mini-batch
    gold: Tensor  # (tokens,) ids of the tokens
    place: Tensor  # (tokens,) where each token stands in the corpus
    ranks: Ranks = ALONE
    seed: int | Tensor = 0  # of what is drawn at random in this step
    samples: Tensor | None = None  # (draws of dropout, tokens) log p(y_j | y_<j, x)
    frequency: Tensor | None = None  # (vocabulary,) of each piece, relative to that of the median piece
    bmi: Tensor | None = None  # (tokens,) bilingual mutual information with the source
    given: Tensor | None = None  # (tokens,) numbers from a file of weights

    def cross_entropy(self, smoothing: float) -> Tensor:
        """ell (tokens,): label-smoothed cross-entropy, uniform over the vocabulary."""
        return -((1 - smoothing) * self.nmt + smoothing * self.mean)

    def cbmi(self) -> Tensor:
        """c (tokens,): log p_NMT - log p_LM, detached."""
        return self.nmt.detach() - self.lm

    def per_sentence(self, values: Tensor) -> Tensor:
        """(..., tokens) → (..., sentences): sums over the real tokens of each sentence."""
        sums = values.new_zeros(*values.shape[:-1], self.sentences)
        return sums.index_add_(-1, self.sentence, torch.where(self.mask, values, 0))

    def uniform(self, purpose: str) -> Tensor:
        """(tokens,) random numbers in [0, 1), a function of step, place and purpose: the same on any ranks."""
        return hashed(self.place, self.seed + zlib.crc32(purpose.encode()))


def join(parts: Sequence[TokenScores]) -> TokenScores:
    """Parts of a mini-batch as one."""
    first, *others = parts
    if not others:
        return first
    begin = accumulate((part.sentences for part in parts), initial=0)
    together = {"sentence": torch.cat([part.sentence + begun for part, begun in zip(parts, begin, strict=False)])}
    for name in ("nmt", "mean", "lm", "mask", "gold", "place", "samples", "bmi", "given"):
        values = [getattr(part, name) for part in parts]
        together[name] = None if values[0] is None else torch.cat(values, dim=-1)
    return replace(first, sentences=sum(part.sentences for part in parts), **together)


def hashed(values: Tensor, seed: int | Tensor) -> Tensor:
    """Integers to pseudo-random numbers in [0, 1), in float64 (the mixing function of SplitMix64)."""
    x = values * -7046029254386353131 + (seed & (2**62 - 1))
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return ((x >> 11) & ((1 << 53) - 1)).double() / (1 << 53)


class Objective(Settings):
    """Maps token scores to losses. Fields of a subclass are its settings in the run file."""

    needs: ClassVar[frozenset[str]] = frozenset()  # names out of NEEDS
    fusion: ClassVar[Literal["prenorm", "postnorm"] | None] = None  # how translator and language model are fused
    equation: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # settings by language pair
    # Whether a token's weight depends on other sentences of the mini-batch: the accumulated parts of a step are then
    # scored once more beforehand, and weighed as one.
    weighs_together: ClassVar[bool] = False

    def weights(self, scores: TokenScores) -> Tensor | None:
        """w (tokens,), or None for 1 everywhere."""
        return None

    def term(self, chunk: Distributions) -> Tensor:
        """(tokens of the chunk,): what is added to w·ell. Asked of objectives that need "distribution"."""
        raise NotImplementedError
