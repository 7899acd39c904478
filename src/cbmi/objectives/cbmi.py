"""CBMI-adaptive training (Zhang et al., ACL 2022): what depends on the source counts more.

    c    = log p_NMT(y_j) - log p_LM(y_j)
    w_t  = max(0, scale_token · (c - mean_b) / std_b + 1)       over the tokens of sentence b
    w_s  = max(0, scale_sentence · (s_b - mean) / std + 1)      s_b = mean_b; over the sentences of
                                                                the mini-batch
    w    = w_t · w_s

The mini-batch is the whole step's: all data-parallel ranks and all accumulated micro-batches. So
the weights do not depend on how many share it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from cbmi.config import NonNegativeFloat
from cbmi.objectives.base import CBMI_PAPER, SINGLE_RANK, Need, Ranks, TokenScores
from cbmi.objectives.weighting import Weighting

Std = Literal["population", "official"]

# A spread below this share of the values' size is rounding, not information: the normalised value
# is 0, as for a standard deviation of exactly 0. Statistics are taken in float64, where rounding
# stays far below it.
ROUNDING = 64 * torch.finfo(torch.float64).eps


class Cbmi(Weighting):
    """Tokens and pairs that depend on the source count more."""

    equation: ClassVar[str] = (
        "w = max(0, scale_token·norm_sentence(c) + 1) · "
        "max(0, scale_sentence·norm_batch(mean c) + 1), c = log p - log p_lm"
    )
    paper: ClassVar[str] = CBMI_PAPER
    presets: ClassVar = {
        name: {"scale_token": 0.1, "scale_sentence": 0.3} for name in ("wmt14-en-de", "wmt19-zh-en")
    }

    scale_token: NonNegativeFloat = 0.1
    scale_sentence: NonNegativeFloat = 0.3
    std: Std = "population"  # "official": variances over the padded length, as in the public code

    def needs(self) -> frozenset[Need]:
        return frozenset({"lm"})

    def weighs_together(self) -> bool:
        return self.shuffled == "batch" or self.scale_sentence > 0

    def token_weights(self, scores: TokenScores) -> Tensor:
        weights = packed_cbmi_weights(
            scores.cbmi(),
            scores.mask,
            scores.sentence,
            scores.sentences,
            self,
            padded_length=scores.longest,
            ranks=scores.ranks,
        )
        return weights.token * weights.sentence[scores.sentence]


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
    ranks: Ranks = SINGLE_RANK,
) -> CbmiWeights:
    """Weights of packed tokens: cbmi, mask and sentence (each token's sentence) are (tokens,)."""
    c = torch.where(mask, cbmi, 0).double()

    # Token weights: normalise within each sentence.
    count, total, squares = _sums_per_sentence(
        torch.stack([mask.double(), c, c**2]), sentence, sentences
    )
    tokens = count.clamp(min=1)  # fillers may be sentences without a token
    mean = total / tokens  # s_b
    mean_square = squares / tokens
    deviation = (c - mean[sentence]) * mask
    (squared_deviation,) = _sums_per_sentence((deviation**2)[None], sentence, sentences)
    # The public code divides by the padded length, not by the number of tokens.
    variance = squared_deviation / (padded_length if settings.std == "official" else tokens)
    factor = _scale_over_std(variance, mean_square, settings.scale_token)
    token_weight = (deviation * factor[sentence] + 1).clamp(min=0)

    # Sentence weights: normalise the sentences' means over the mini-batch, on all ranks.
    present = (count > 0).double()
    statistics = torch.stack([present, mean, mean_square]).sum(1)
    number, total_mean, total_square = ranks.sum(statistics)
    number = number.clamp(min=1)
    deviation = (mean - total_mean / number) * present
    squared_deviation = ranks.sum((deviation**2).sum())
    # Not a slip: the public code divides this variance, too, by the padded target length.
    variance = squared_deviation / (padded_length if settings.std == "official" else number)
    factor = _scale_over_std(variance, total_square / number, settings.scale_sentence)
    sentence_weight = (deviation * factor + 1).clamp(min=0)
    return CbmiWeights(sentence_weight.to(cbmi.dtype), token_weight.to(cbmi.dtype))


def _sums_per_sentence(values: Tensor, sentence: Tensor, sentences: int) -> Tensor:
    """values (rows, tokens) → (rows, sentences)."""
    return values.new_zeros(len(values), sentences).index_add_(1, sentence, values)


def _scale_over_std(variance: Tensor, mean_square: Tensor, scale: float) -> Tensor:
    """scale / std, or 0 where the values do not differ by more than rounding.

    `mean_square` is that of the token values c: it sets the scale of their rounding errors.
    """
    differs = variance > ROUNDING**2 * mean_square
    return torch.where(differs, scale * variance.rsqrt(), 0.0)


def cbmi_weights(
    nmt: Tensor,
    lm: Tensor,
    mask: Tensor,
    scale_token: float = 0.1,
    scale_sentence: float = 0.3,
    std: Std = "population",
) -> Tensor:
    """CBMI weights of a padded batch.

    nmt, lm, mask (sentences, length) → w (sentences, length), 0 at padding. `nmt` and `lm` are
    natural logarithms of the gold tokens' probabilities; `mask` is true for real tokens. The end of
    sentence is a token, the begin of sentence is not. The result carries no gradient.
    """
    settings = Cbmi(scale_token=scale_token, scale_sentence=scale_sentence, std=std)
    mask = mask.bool()
    sentence = mask.nonzero()[:, 0]
    cbmi = (nmt.detach().double() - lm.detach().double())[mask]
    weights = packed_cbmi_weights(
        cbmi,
        torch.ones_like(sentence, dtype=torch.bool),
        sentence,
        len(mask),
        settings,
        padded_length=mask.shape[1],
    )
    padded = torch.zeros_like(nmt)
    padded[mask] = (weights.token * weights.sentence[sentence]).to(nmt.dtype)
    return padded
