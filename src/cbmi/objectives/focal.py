"""Weights by the gold token's own probability p: focal loss (Lin et al.) and anti-focal loss."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cbmi.objectives.base import TokenScores
from cbmi.objectives.weighting import Weighting
from cbmi.schema import Flag, NonNegativeFloat


class _Focal(Weighting):
    sign: ClassVar[int]

    alpha: NonNegativeFloat = 0.1
    gamma: NonNegativeFloat = 1.0
    detach: Flag = False  # true: no gradient through the factor

    def token_weights(self, scores: TokenScores) -> Tensor:
        p = scores.nmt.exp()
        if self.detach:
            p = p.detach()
        base = 1 + self.sign * self.alpha * p
        # Keep it above 0, where the gradient of a root (gamma < 1) is infinite.
        return base.clamp(min=torch.finfo(p.dtype).eps) ** self.gamma


class Focal(_Focal):
    """Tokens that the model is sure of count less."""

    sign: ClassVar[int] = -1
    equation: ClassVar[str] = "w = (1 - alpha·p)^gamma"
    paper: ClassVar[str] = "Lin et al., 2017: Focal loss for dense object detection"

    # Above 1 the factor could be negative.
    alpha: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.1


class AntiFocal(_Focal):
    """Tokens that the model is sure of count more, as they do in beam search."""

    sign: ClassVar[int] = 1
    equation: ClassVar[str] = "w = (1 + alpha·p)^gamma"
    paper: ClassVar[str] = (
        "Raunak et al., 2020: On long-tailed phenomena in neural machine translation"
    )
