"""Self-paced learning (Wan et al., EMNLP 2020): stable predictions under dropout count more.

    token confidence     a_j = (1 - var_k p_k(y_j))^power
    sentence confidence  s_b = (1 - var_k (L_k(b) / lowest L in the mini-batch))^power,
                         L_k(b) = sum_j log p_k(y_j)
    w = softmax over the mini-batch's tokens of (a_j·s_b) × number of its tokens

k = 1..samples are dropout masks; variances divide by their number. The mini-batch is the whole
step's, on all ranks and in all micro-batches. The lowest log-likelihood is that of any sentence
under any mask.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cbmi.objectives.base import Need, TokenScores, required
from cbmi.objectives.weighting import Weighting
from cbmi.schema import NonNegativeFloat


class SelfPaced(Weighting):
    """Tokens and sentences that the model predicts stably under dropout count more."""

    equation: ClassVar[str] = (
        "w = tokens·softmax((1 - var_k p_k)^power · (1 - var_k(L_k / min L))^power), "
        "L = sum_j log p"
    )
    paper: ClassVar[str] = "Wan et al., 2020: Self-paced learning for neural machine translation"

    samples: Annotated[int, Field(ge=2, strict=True)] = 5  # K
    power: NonNegativeFloat = 2.0

    def needs(self) -> frozenset[Need]:
        return frozenset({"samples"})

    def weighs_together(self) -> bool:
        return True

    def token_weights(self, scores: TokenScores) -> Tensor:
        samples = required(scores.samples, "samples").double()
        token_confidence = (1 - samples.exp().var(0, correction=0)) ** self.power
        likelihood = scores.per_sentence(samples)
        # Below 0 even if every token is certain: it is a divisor.
        lowest = scores.ranks.min(likelihood.min()).clamp(max=-torch.finfo(likelihood.dtype).tiny)
        sentence_confidence = (1 - (likelihood / lowest).var(0, correction=0)) ** self.power
        # Confidences are at most 1, so the softmax needs no maximum subtracted.
        exponentials = (token_confidence * sentence_confidence[scores.sentence]).exp() * scores.mask
        sums = torch.stack([exponentials.sum(), scores.mask.sum()])
        total, tokens = scores.ranks.sum(sums)
        return (exponentials * (tokens / total)).to(scores.nmt.dtype)
