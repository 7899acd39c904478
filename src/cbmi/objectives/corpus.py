"""Weights that come from the corpus or from a file: one number a target token, known before training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cbmi.config import NotNegative
from cbmi.data.vocabulary import SPECIALS
from cbmi.objectives.base import TokenScores
from cbmi.objectives.weighting import Weighting


class Bmi(Weighting):
    """Pieces that go together with the source's, by counts over the corpus, count more."""

    needs: ClassVar[frozenset[str]] = frozenset({"bmi"})
    equation: ClassVar[str] = (
        "w = slope·BMI + base, 0 where BMI ≤ threshold, 1 for the end of sentence; "
        "BMI = mean_i log(1 + N·f(x_i,y)/(f(x_i)·f(y)))"
    )
    paper: ClassVar[str] = (
        "Xu et al., 2021: Bilingual mutual information based adaptive training for neural machine translation"
    )
    presets: ClassVar = {"wmt14-en-de": {"slope": 0.15, "base": 0.8}, "wmt19-zh-en": {"slope": 0.1, "base": 1.0}}

    slope: NotNegative = 0.15  # S
    base: NotNegative = 0.8  # B
    threshold: Annotated[float, Field(strict=True)] | None = 0.4

    def token_weights(self, scores: TokenScores) -> Tensor:
        weights = self.slope * scores.bmi + self.base
        if self.threshold is not None:
            weights = torch.where(scores.bmi <= self.threshold, 0.0, weights)
        return torch.where(scores.gold < SPECIALS, 1.0, weights)


class WeightsFile(Weighting):
    """Weights from a text file: a line a training pair, one number for the pair or one a target token."""

    needs: ClassVar[frozenset[str]] = frozenset({"weights"})
    equation: ClassVar[str] = "w = the number in the file"
    paper: ClassVar[str] = "Chen et al., 2017: Cost weighting for neural machine translation domain adaptation"

    file: str
    per: Literal["token", "pair"] = "token"

    def token_weights(self, scores: TokenScores) -> Tensor:
        return scores.given
