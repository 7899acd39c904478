"""Rare target pieces count more (Gu et al., EMNLP 2020).

c is a piece's count divided by that of the median piece: the middle one, by frequency, of the pieces of text that
occur in the training targets. Special pieces (the end of sentence) have weight 1.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from cbmi.config import NotNegative, Share
from cbmi.data.vocabulary import SPECIALS
from cbmi.objectives.base import TokenScores
from cbmi.objectives.weighting import Weighting


class _Frequency(Weighting):
    needs: ClassVar[frozenset[str]] = frozenset({"frequency"})
    paper: ClassVar[str] = "Gu et al., 2020: Token-level adaptive training for neural machine translation"

    amplitude: NotNegative = 1.0  # A
    decay: NotNegative  # T
    rescale: Annotated[float, Field(ge=1, strict=True)] | None = None  # f / max f onto [1, this]; "e": Euler's number
    weight_drop: Share = 0.0  # probability with which a token's weight is replaced by 1

    @field_validator("rescale", mode="before")
    @classmethod
    def _euler(cls, value: Any) -> Any:
        return math.e if value == "e" else value

    def curve(self, c: Tensor) -> Tensor:
        """f (c's shape): the weight less 1."""
        raise NotImplementedError

    def token_weights(self, scores: TokenScores) -> Tensor:
        extra = self.curve(scores.frequency[scores.gold])
        if self.rescale is not None:
            pieces = scores.frequency[SPECIALS:]
            highest = torch.where(pieces > 0, self.curve(pieces), 0.0).max()
            extra = (self.rescale - 1) * extra / highest.clamp(min=torch.finfo(highest.dtype).tiny)
        plain = scores.gold < SPECIALS
        if self.weight_drop:
            plain = plain | (scores.uniform("weight_drop") < self.weight_drop)
        return torch.where(plain, 1.0, extra + 1).to(scores.nmt.dtype)


class FrequencyExponential(_Frequency):
    """Rare pieces count more, the rarest most."""

    equation: ClassVar[str] = "w = amplitude·exp(-decay·c) + 1"
    presets: ClassVar = {"wmt14-en-de": {"decay": 1.75}, "wmt19-zh-en": {"decay": 0.35}}

    decay: NotNegative = 1.75

    def curve(self, c: Tensor) -> Tensor:
        return self.amplitude * torch.exp(-self.decay * c)


class FrequencyChiSquare(_Frequency):
    """Rare pieces count more, but not the rarest, which may be noise."""

    equation: ClassVar[str] = "w = amplitude·c²·exp(-decay·c) + 1"
    presets: ClassVar = {"wmt14-en-de": {"decay": 2.5}, "wmt19-zh-en": {"decay": 1.75}}

    decay: NotNegative = 2.5

    def curve(self, c: Tensor) -> Tensor:
        return self.amplitude * c**2 * torch.exp(-self.decay * c)
