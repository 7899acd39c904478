"""Self-paced learning (Wan et al., EMNLP 2020): what the model predicts steadily under dropout counts more.

    token confidence     a_j = (1 - var_k p_k(y_j))^power
    sentence confidence  s_b = (1 - var_k (L_k(b) / lowest L in the mini-batch))^power,  L_k(b) = sum_j log p_k(y_j)
    w = softmax over the mini-batch's tokens of (a_j·s_b) × number of its tokens

k = 1..samples are draws of dropout; variances divide by their number. The mini-batch is the whole
step's, on all ranks and in all accumulated parts; the lowest log-likelihood is that of any sentence and draw in it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cbmi.config import NotNegative
from cbmi.objectives.base import TokenScores
from cbmi.objectives.weighting import Weighting


class SelfPaced(Weighting):
    """Tokens and sentences that the model predicts steadily under dropout count more."""

    needs: ClassVar[frozenset[str]] = frozenset({"samples"})
    weighs_together: ClassVar[bool] = True
    equation: ClassVar[str] = (
        "w = tokens·softmax((1 - var_k p_k)^power · (1 - var_k(L_k / min L))^power), L = sum_j log p"
    )
    paper: ClassVar[str] = "Wan et al., 2020: Self-paced learning for neural machine translation"

    samples: Annotated[int, Field(ge=2, strict=True)] = 5  # K
    power: NotNegative = 2.0

    def token_weights(self, scores: TokenScores) -> Tensor:
        samples = scores.samples.double()
        token = (1 - samples.exp().var(0, correction=0)) ** self.power
        likelihood = scores.per_sentence(samples)
        lowest = scores.ranks.min(likelihood.min()).clamp(max=-torch.finfo(likelihood.dtype).tiny)
        sentence = (1 - (likelihood / lowest).var(0, correction=0)) ** self.power
        confidence = (token * sentence[scores.sentence]).exp() * scores.mask
        total, tokens = scores.ranks.sum(torch.stack([confidence.sum(), scores.mask.sum()]))
        return (confidence * (tokens / total)).to(scores.nmt.dtype)
