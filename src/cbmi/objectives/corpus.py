"""Weights from the corpus or from a file: one value per target token, known in advance."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cbmi.data.vocabulary import SPECIALS
from cbmi.objectives.base import Need, TokenScores, required
from cbmi.objectives.weighting import Weighting
from cbmi.schema import NonNegativeFloat


class Bmi(Weighting):
    """Pieces that go together with the source's, by counts over the corpus, count more."""

    equation: ClassVar[str] = (
        "w = slope·BMI + base, 0 where BMI ≤ threshold, 1 for the end of sentence; "
        "BMI = mean_i log(1 + N·f(x_i,y)/(f(x_i)·f(y)))"
    )
    paper: ClassVar[str] = (
        "Xu et al., 2021: Bilingual mutual information based adaptive training for neural machine "
        "translation"
    )
    presets: ClassVar = {
        "wmt14-en-de": {"slope": 0.15, "base": 0.8},
        "wmt19-zh-en": {"slope": 0.1, "base": 1.0},
    }

    slope: NonNegativeFloat = 0.15  # S of the linear function w = S·BMI + B
    base: NonNegativeFloat = 0.8  # B
    threshold: Annotated[float, Field(strict=True)] | None = 0.4

    def needs(self) -> frozenset[Need]:
        return frozenset({"bmi"})

    def token_weights(self, scores: TokenScores) -> Tensor:
        bmi = required(scores.bmi, "bmi")
        weights = self.slope * bmi + self.base
        if self.threshold is not None:
            weights = torch.where(bmi <= self.threshold, 0.0, weights)
        return torch.where(scores.gold < SPECIALS, 1.0, weights)


class WeightsFile(Weighting):
    """Weights from a text file: one line per training pair, one value per pair or per token."""

    equation: ClassVar[str] = "w = the value in the file"
    paper: ClassVar[str] = (
        "Chen et al., 2017: Cost weighting for neural machine translation domain adaptation"
    )

    file: str
    per: Literal["token", "pair"] = "token"

    def needs(self) -> frozenset[Need]:
        return frozenset({"weights"})

    def token_weights(self, scores: TokenScores) -> Tensor:
        return required(scores.given, "weights")
