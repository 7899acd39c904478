"""CBMI-adaptive training (Zhang et al., ACL 2022): what depends on the source counts more.

    c    = log p_NMT(y_j) - log p_LM(y_j)
    w_t  = max(0, scale_token · (c - mean_b) / std_b + 1)       over the tokens of sentence b
    w_s  = max(0, scale_sentence · (s_b - mean) / std + 1)      s_b = mean_b; over the sentences of
                                                                the mini-batch
    w    = w_t · w_s

The mini-batch is the whole step's: all data-parallel ranks and all accumulated micro-batches. So
the weights do not depend on how many share it.

With `unit: word`, the c of a word is the sum over its pieces, and w_t is that of its word. With
`compare: lengths`, mean and std of w_s are those of the sentences of like length.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import model_validator
from torch import Tensor

from cbmi.config import NonNegativeFloat
from cbmi.objectives.base import CBMI_PAPER, SINGLE_RANK, Need, Ranks, TokenScores
from cbmi.objectives.weighting import Weighting

Std = Literal["population", "official"]

# A spread below this share of the values' size is rounding, not information: the normalised value
# is 0, as for a standard deviation of exactly 0. Statistics are taken in float64, where rounding
# stays far below it.
ROUNDING = 64 * torch.finfo(torch.float64).eps

# Of `compare: lengths`.
CLASSES_PER_OCTAVE = 2
CLASSES = 32  # up to sentences of 2^16 tokens
HANDFUL = 5


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
    unit: Literal["piece", "word"] = "piece"  # what token weights are of
    # The sentences that sentence weights compare: all of the mini-batch, or those of like length.
    compare: Literal["batch", "lengths"] = "batch"

    @model_validator(mode="after")
    def _has_a_spread(self) -> Cbmi:
        if self.std == "official" and self.compare == "lengths":
            raise ValueError(
                "std: official divides by the padded length of the mini-batch; it cannot be "
                "combined with compare: lengths"
            )
        return self

    def needs(self) -> frozenset[Need]:
        return frozenset({"lm", "words"}) if self.unit == "word" else frozenset({"lm"})

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
            word=scores.word() if self.unit == "word" else None,
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
    word: Tensor | None = None,
) -> CbmiWeights:
    """Weights of packed tokens: cbmi, mask and sentence (each token's sentence) are (tokens,).

    word (tokens,): each token's word, for `unit: word`.
    """
    c = torch.where(mask, cbmi, 0).double()

    # Token weights: normalise within each sentence.
    count, total, squares = _sums_per_sentence(
        torch.stack([mask.double(), c, c**2]), sentence, sentences
    )
    tokens = count.clamp(min=1)  # fillers may be sentences without a token
    mean = total / tokens  # s_b
    mean_square = squares / tokens
    token_mean = mean
    token_mean_square = mean_square
    value = c  # what a token's weight is made of
    if word is not None:
        value = c.new_zeros(len(c)).index_add_(0, word, c)[word] * mask
        sums = _sums_per_sentence(torch.stack([value, value**2]), sentence, sentences)
        token_mean, token_mean_square = sums / tokens
    deviation = (value - token_mean[sentence]) * mask
    (squared_deviation,) = _sums_per_sentence((deviation**2)[None], sentence, sentences)
    # The public code divides by the padded length, not by the number of tokens.
    variance = squared_deviation / (padded_length if settings.std == "official" else tokens)
    factor = _scale_over_std(variance, token_mean_square, settings.scale_token)
    token_weight = (deviation * factor[sentence] + 1).clamp(min=0)

    # Sentence weights: normalise the sentences' means over the mini-batch, on all ranks.
    present = (count > 0).double()
    if settings.compare == "lengths":
        normalised = normalised_by_length(mean, mean_square, count, ranks)
        sentence_weight = (normalised * settings.scale_sentence + 1).clamp(min=0)
        return CbmiWeights(sentence_weight.to(cbmi.dtype), token_weight.to(cbmi.dtype))
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


def normalised_by_length(mean: Tensor, mean_square: Tensor, count: Tensor, ranks: Ranks) -> Tensor:
    """(mean - mean of its class) / std of its class, for each sentence; 0 if it has no token.

    mean, mean_square, count (sentences,): of the tokens of each. Sentences of like length are a
    class: `CLASSES_PER_OCTAVE` classes from one length to its double. A class with fewer than
    `HANDFUL` sentences takes in its neighbours on both sides, as far as needed.
    """
    present = count > 0
    length_class = (count.clamp(min=1).log2() * CLASSES_PER_OCTAVE).floor().long()
    length_class = length_class.clamp(max=CLASSES - 1)
    # Around the mean of all: squares of small numbers lose no digits.
    all_sums = ranks.sum(torch.stack([present.double(), mean]).sum(1))
    centered = (mean - all_sums[1] / all_sums[0].clamp(min=1)) * present
    columns = torch.stack([present.double(), centered, centered**2, mean_square * present])
    table = columns.new_zeros(len(columns), CLASSES).index_add_(1, length_class, columns)
    number, total, squares, token_squares = _with_neighbours(ranks.sum(table))
    number = number.clamp(min=1)
    class_mean = total / number
    variance = (squares / number - class_mean**2).clamp(min=0)
    # Squares of equal numbers cancel up to rounding only, so the threshold is not squared here.
    differs = variance > ROUNDING * token_squares / number
    inverse = torch.where(differs, variance.rsqrt(), 0.0)
    return (centered - class_mean[length_class]) * inverse[length_class] * present


def _with_neighbours(table: Tensor) -> Tensor:
    """Sums over each class and as many neighbours as make up a handful: (rows, classes) → same.

    The first row counts the sentences.
    """
    device = table.device
    places = torch.arange(CLASSES, device=device)
    reach = places[:, None]  # how far to both sides: a row for each
    low = (places - reach).clamp(min=0)
    high = (places + reach + 1).clamp(max=CLASSES)
    running = torch.cat([table.new_zeros(len(table), 1), table.cumsum(1)], dim=1)
    enough = running[0][high] - running[0][low] >= HANDFUL
    enough[-1] = True  # all classes together, if there is no handful
    first_enough = enough.int().argmax(0)
    return running[:, high[first_enough, places]] - running[:, low[first_enough, places]]


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
    compare: Literal["batch", "lengths"] = "batch",
    word_starts: Tensor | None = None,
) -> Tensor:
    """CBMI weights of a padded batch.

    nmt, lm, mask (sentences, length) → w (sentences, length), 0 at padding. `nmt` and `lm` are
    natural logarithms of the gold tokens' probabilities; `mask` is true for real tokens. The end of
    sentence is a token, the begin of sentence is not. word_starts (sentences, length): with it,
    token weights are those of words, and it is true where one begins. The result carries no
    gradient.
    """
    settings = Cbmi(
        scale_token=scale_token, scale_sentence=scale_sentence, std=std, compare=compare
    )
    mask = mask.bool()
    word = None
    if word_starts is not None:
        starts = word_starts.bool().clone()
        starts[:, 0] = True  # a word ends with its sentence
        word = starts[mask].cumsum(0) - 1
    sentence = mask.nonzero()[:, 0]
    cbmi = (nmt.detach().double() - lm.detach().double())[mask]
    weights = packed_cbmi_weights(
        cbmi,
        torch.ones_like(sentence, dtype=torch.bool),
        sentence,
        len(mask),
        settings,
        padded_length=mask.shape[1],
        word=word,
    )
    padded = torch.zeros_like(nmt)
    padded[mask] = (weights.token * weights.sentence[sentence]).to(nmt.dtype)
    return padded
