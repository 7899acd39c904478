"""CBMI-adaptive training (Zhang et al., ACL 2022): tokens and pairs that depend on the source count more.

    c    = log p_NMT(y_j) - log p_LM(y_j)
    w_t  = max(0, scale_token · (c - mean_b) / std_b + 1)          over the tokens of the sentence b
    w_s  = max(0, scale_sentence · (s_b - mean) / std + 1)         s_b = mean_b; over the sentences of the mini-batch
    w    = w_t · w_s

The mini-batch is the whole step's, on all data-parallel ranks and in all accumulated parts, so the weights do not
depend on how many share it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from cbmi.config import NotNegative
from cbmi.objectives.base import ALONE, CBMI_PAPER, Ranks, TokenScores
from cbmi.objectives.weighting import Weighting

Std = Literal["population", "official"]

# A spread below this share of the values' size is rounding, not information: the normalised value is 0, as for a
# standard deviation of exactly 0. Statistics are taken in float64, where rounding stays far below it.
ROUNDING = 64 * torch.finfo(torch.float64).eps


class Cbmi(Weighting):
    """Tokens and pairs that depend on the source count more."""

    needs: ClassVar[frozenset[str]] = frozenset({"lm"})
    equation: ClassVar[str] = (
        "w = max(0, scale_token·norm_sentence(c) + 1) · max(0, scale_sentence·norm_batch(mean c) + 1), "
        "c = log p - log p_lm"
    )
    paper: ClassVar[str] = CBMI_PAPER
    presets: ClassVar = {name: {"scale_token": 0.1, "scale_sentence": 0.3} for name in ("wmt14-en-de", "wmt19-zh-en")}

    scale_token: NotNegative = 0.1
    scale_sentence: NotNegative = 0.3
    std: Std = "population"  # "official": variances divided by the padded length, as the public code does

    @property
    def weighs_together(self) -> bool:
        return self.shuffled or self.scale_sentence > 0

    def token_weights(self, scores: TokenScores) -> Tensor:
        sentence, token = packed_cbmi_weights(
            scores.cbmi(),
            scores.mask,
            scores.sentence,
            scores.sentences,
            self,
            padded_length=scores.longest,
            ranks=scores.ranks,
        )
        return token * sentence[scores.sentence]


class CbmiWeights(NamedTuple):
    sentence: Tensor  # (sentences,) w_s
    token: Tensor  # (tokens,) w_t


def packed_cbmi_weights(
    cbmi: Tensor,
    mask: Tensor,
    sentence: Tensor,
    sentences: int,
    settings: Cbmi,
    padded_length: int | Tensor,
    ranks: Ranks = ALONE,
) -> CbmiWeights:
    """Weights of packed tokens: cbmi, mask (tokens,), sentence (tokens,) index of each token's sentence."""
    c = torch.where(mask, cbmi, 0).double()
    official = settings.std == "official"

    def per_sentence(*values: Tensor) -> tuple[Tensor, ...]:
        return c.new_zeros(len(values), sentences).index_add_(1, sentence, torch.stack(values)).unbind()

    count, total, size = per_sentence(mask.double(), c, c**2)
    tokens = count.clamp(min=1)
    mean = total / tokens
    deviation = (c - mean[sentence]) * mask
    (variance,) = per_sentence(deviation**2)
    factor = _factor(variance / (padded_length if official else tokens), size / tokens, settings.scale_token)
    token = (deviation * factor[sentence] + 1).clamp(min=0)

    present = (count > 0).double()
    number, total, squares = ranks.sum(torch.stack([present, mean, size / tokens]).sum(1))
    number = number.clamp(min=1)
    deviation = (mean - total / number) * present
    spread = ranks.sum((deviation**2).sum()) / (padded_length if official else number)
    whole = (deviation * _factor(spread, squares / number, settings.scale_sentence) + 1).clamp(min=0)
    return CbmiWeights(whole.to(cbmi.dtype), token.to(cbmi.dtype))


def _factor(variance: Tensor, size: Tensor, scale: float) -> Tensor:
    """scale / std; 0 where the values do not differ. `size`: the mean square of what they were computed from."""
    return torch.where(variance > ROUNDING**2 * size, scale * variance.rsqrt(), 0.0)


def cbmi_weights(
    nmt: Tensor,
    lm: Tensor,
    mask: Tensor,
    scale_token: float = 0.1,
    scale_sentence: float = 0.3,
    std: Std = "population",
) -> Tensor:
    """Weights of a padded batch: nmt, lm, mask (sentences, length) → w (sentences, length), 0 at padding.

    `nmt` and `lm` are natural logarithms of the gold tokens' probabilities; `mask` is true for real tokens.
    """
    settings = Cbmi(scale_token=scale_token, scale_sentence=scale_sentence, std=std)
    mask = mask.bool()
    sentence = mask.nonzero()[:, 0]
    cbmi = (nmt.detach().double() - lm.detach().double())[mask]
    real = torch.ones_like(sentence, dtype=torch.bool)
    whole, token = packed_cbmi_weights(cbmi, real, sentence, len(mask), settings, padded_length=mask.shape[1])
    weights = torch.zeros_like(nmt)
    weights[mask] = (token * whole[sentence]).to(nmt.dtype)
    return weights
