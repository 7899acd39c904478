"""Rare target pieces count more (Gu et al., EMNLP 2020).

c is a piece's count divided by the count of the median piece: the middle one, by frequency, of the
pieces of text that occur in the training targets. Special pieces (the end of sentence) have weight
1.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from cbmi.data.vocabulary import SPECIALS
from cbmi.objectives.base import Need, TokenScores, required
from cbmi.objectives.weighting import Weighting
from cbmi.schema import Fraction, NonNegativeFloat


class _Frequency(Weighting):
    paper: ClassVar[str] = (
        "Gu et al., 2020: Token-level adaptive training for neural machine translation"
    )

    amplitude: NonNegativeFloat = 1.0  # A
    decay: NonNegativeFloat  # T
    # Maps f / max f onto [1, rescale], as the public code does; "e" is Euler's number.
    rescale: Annotated[float, Field(ge=1, strict=True)] | None = None
    weight_drop: Fraction = 0.0  # probability with which a token's weight is replaced by 1

    @field_validator("rescale", mode="before")
    @classmethod
    def _euler(cls, value: Any) -> Any:
        return math.e if value == "e" else value

    def needs(self) -> frozenset[Need]:
        return frozenset({"frequency"})

    def curve(self, c: Tensor) -> Tensor:
        """f (c's shape): the weight minus 1."""
        raise NotImplementedError

    def token_weights(self, scores: TokenScores) -> Tensor:
        frequency = required(scores.frequency, "frequency")
        extra = self.curve(frequency[scores.gold])
        if self.rescale is not None:
            pieces = frequency[SPECIALS:]
            highest = torch.where(pieces > 0, self.curve(pieces), 0.0).max()
            highest = highest.clamp(min=torch.finfo(highest.dtype).tiny)
            extra = (self.rescale - 1) * extra / highest
        weight_is_one = scores.gold < SPECIALS
        if self.weight_drop:
            dropped = scores.uniform("weight_drop") < self.weight_drop
            weight_is_one = weight_is_one | dropped
        return torch.where(weight_is_one, 1.0, extra + 1).to(scores.nmt.dtype)


class FrequencyExponential(_Frequency):
    """Rare pieces count more, the rarest most."""

    equation: ClassVar[str] = "w = amplitude·exp(-decay·c) + 1"
    presets: ClassVar = {"wmt14-en-de": {"decay": 1.75}, "wmt19-zh-en": {"decay": 0.35}}

    decay: NonNegativeFloat = 1.75

    def curve(self, c: Tensor) -> Tensor:
        return self.amplitude * torch.exp(-self.decay * c)


class FrequencyChiSquare(_Frequency):
    """Rare pieces count more, but not the rarest, which may be noise."""

    equation: ClassVar[str] = "w = amplitude·c²·exp(-decay·c) + 1"
    presets: ClassVar = {"wmt14-en-de": {"decay": 2.5}, "wmt19-zh-en": {"decay": 1.75}}

    decay: NonNegativeFloat = 2.5

    def curve(self, c: Tensor) -> Tensor:
        return self.amplitude * c**2 * torch.exp(-self.decay * c)
