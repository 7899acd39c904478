"""CBMI-adaptive training (Zhang et al., ACL 2022): what depends on the source counts more.

    c    = log p_NMT(y_j) - log p_LM(y_j)
    w_t  = max(0, scale_token · (c - mean_b) / std_b + 1)       over the tokens of sentence b
    w_s  = max(0, scale_sentence · (s_b - mean) / std + 1)      s_b = mean_b; over the sentences of
                                                                the mini-batch
    w    = w_t · w_s

The mini-batch is the whole step's: all data-parallel ranks and all accumulated micro-batches. So
the weights do not depend on how many share it.

With `unit: word`, the c of a word is the sum over its pieces, and w_t is that of its word. With
`compare: lengths`, mean and std of w_s are those of the sentences of like length. With `compare:
groups`, they are those of the sentence's group: steps are then made of groups of like length.

The public code departs from the paper, and `std: official` does as it does:

    c is log(p_NMT / (p_LM + 1e-9))
    both variances are divided by the padded length
    0/0, where all values are equal, is a weight of 0
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import model_validator
from torch import Tensor

from cbmi.objectives.base import CBMI_PAPER, Need, TokenScores, required
from cbmi.objectives.ranks import SINGLE_RANK, Ranks
from cbmi.objectives.weighting import Weighting
from cbmi.schema import Flag, NonNegativeFloat

Std = Literal["population", "official"]
Compare = Literal["batch", "lengths", "groups"]

# A spread below this share of the values' size is rounding, not information: the normalised value
# is 0, as for a standard deviation of exactly 0. Statistics are taken in float64, where rounding
# stays far below it.
ROUNDING = 64 * torch.finfo(torch.float64).eps

OFFICIAL_FLOOR = math.log(1e-9)  # what the public code adds to p_LM

# Of `compare: lengths`.
CLASSES_PER_OCTAVE = 2
CLASSES = 32  # up to sentences of 2^16 tokens
HANDFUL = 5


PAPER: dict[str, Any] = {
    "scale_token": 0.1,
    "scale_sentence": 0.3,
    "std": "population",
    "unit": "piece",
    "compare": "batch",
    "lm_dropout": False,
}


class Cbmi(Weighting):
    """Tokens and pairs that depend on the source count more."""

    equation: ClassVar[str] = (
        "w = max(0, scale_token·norm_sentence(c) + 1) · "
        "max(0, scale_sentence·norm_batch(mean c) + 1), c = log p - log p_lm"
    )
    paper: ClassVar[str] = CBMI_PAPER
    presets: ClassVar = {
        "paper": PAPER,
        "wmt14-en-de": PAPER,
        "wmt19-zh-en": PAPER,
        # What the public code trains with, to the letter.
        "public": PAPER | {"std": "official", "compare": "groups", "lm_dropout": True},
    }

    scale_token: NonNegativeFloat = 0.1
    scale_sentence: NonNegativeFloat = 0.3
    std: Std = "population"  # "official": the arithmetic of the public code
    unit: Literal["piece", "word"] = "piece"  # what token weights are of
    # The sentences that sentence weights compare: all of the mini-batch, those of like length, or
    # those of a group of the stage's `groups`.
    compare: Compare = "batch"
    lm_dropout: Flag = False  # a frozen language model keeps its dropout, as in the public code

    @model_validator(mode="after")
    def _has_a_spread(self) -> Cbmi:
        if self.std == "official" and self.compare == "lengths":
            raise ValueError(
                "std: official divides by the padded length of the mini-batch; it cannot be "
                "combined with compare: lengths"
            )
        return self

    def needs(self) -> frozenset[Need]:
        needs: set[Need] = {"lm"}
        if self.unit == "word":
            needs.add("words")
        if self.compare == "groups":
            needs.add("groups")
        if self.lm_dropout:
            needs.add("lm-dropout")
        return frozenset(needs)

    def weighs_together(self) -> bool:
        # The public code gives the weight 0 to sentences that do not differ, whatever the scale.
        return self.shuffled == "batch" or self.scale_sentence > 0 or self.std == "official"

    def token_weights(self, scores: TokenScores) -> Tensor:
        group = None
        padded_length = scores.longest
        if self.compare == "groups":
            group = required(scores.group, "groups")
        elif isinstance(padded_length, Tensor):
            padded_length = padded_length.max()
        weights = packed_cbmi_weights(
            cbmi_of(scores.nmt.detach(), required(scores.lm, "lm"), self.std),
            scores.mask,
            scores.sentence,
            scores.sentences,
            self,
            padded_length=padded_length,
            ranks=scores.ranks,
            word=scores.word() if self.unit == "word" else None,
            group=group,
        )
        return weights.token * weights.sentence[scores.sentence]


def cbmi_of(nmt: Tensor, lm: Tensor, std: Std) -> Tensor:
    """c: log p_NMT - log p_LM, or what the public code takes for it."""
    if std == "official":
        lm = torch.logaddexp(lm, torch.full_like(lm, OFFICIAL_FLOOR))
    return nmt - lm


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
    group: Tensor | None = None,
) -> CbmiWeights:
    """Weights of packed tokens: cbmi, mask and sentence (each token's sentence) are (tokens,).

    word (tokens,): each token's word, for `unit: word`. group (sentences,): each sentence's group,
    for `compare: groups`; padded_length is then (groups,).
    """
    c = torch.where(mask, cbmi, 0).double()
    count, total, squares = _sums_per_sentence(
        torch.stack([mask.double(), c, c**2]), sentence, sentences
    )
    tokens = count.clamp(min=1)  # fillers may be sentences without a token
    of_pieces = Moments(count, total / tokens, squares / tokens)
    value = c  # what a token's weight is made of
    of_values = of_pieces
    if word is not None:
        value = c.new_zeros(len(c)).index_add_(0, word, c)[word] * mask
        sums = _sums_per_sentence(torch.stack([value, value**2]), sentence, sentences)
        of_values = Moments(count, *(sums / tokens))
    # The public code divides by the padded length, not by the number of tokens.
    padded = padded_length if group is None else torch.as_tensor(padded_length)[group]
    divisor = padded if settings.std == "official" else tokens
    token_weight = _token_weights(value, mask, sentence, of_values, divisor, settings)
    if settings.compare == "lengths":
        normalised = normalised_by_length(
            of_pieces.mean, of_pieces.mean_square, of_pieces.number, ranks
        )
        sentence_weight = (normalised * settings.scale_sentence + 1).clamp(min=0)
    else:
        sentence_weight = _sentence_weights(of_pieces, padded_length, group, ranks, settings)
    return CbmiWeights(sentence_weight.to(cbmi.dtype), token_weight.to(cbmi.dtype))


class Moments(NamedTuple):
    """Of the tokens of each sentence, (sentences,) each."""

    number: Tensor  # of tokens
    mean: Tensor  # s_b, where they are those of c
    mean_square: Tensor


def _token_weights(
    value: Tensor,
    mask: Tensor,
    sentence: Tensor,
    moments: Moments,
    divisor: Tensor | int,
    settings: Cbmi,
) -> Tensor:
    """(tokens,) w_t: values normalised within each sentence; divisor: of the variance."""
    deviation = (value - moments.mean[sentence]) * mask
    (squared_deviation,) = _sums_per_sentence((deviation**2)[None], sentence, len(moments.number))
    variance = squared_deviation / divisor
    differs = _differs(variance, moments.mean_square)
    factor = torch.where(differs, settings.scale_token * variance.rsqrt(), 0.0)
    weight = (deviation * factor[sentence] + 1).clamp(min=0)
    if settings.std == "official":
        weight = torch.where(differs[sentence], weight, 0.0)
    return weight


def _sentence_weights(
    moments: Moments,
    padded_length: int | Tensor,
    group: Tensor | None,
    ranks: Ranks,
    settings: Cbmi,
) -> Tensor:
    """(sentences,) w_s: means normalised over the mini-batch or group, on all ranks."""
    is_official = settings.std == "official"
    present = (moments.number > 0).double()
    groups = 1 if group is None else len(torch.as_tensor(padded_length))
    statistics = torch.stack([present, moments.mean, moments.mean_square])
    number, total_mean, total_square = ranks.sum(_sums_per_group(statistics, group, groups))
    number = number.clamp(min=1)
    deviation = (moments.mean - _of_group(total_mean / number, group)) * present
    squared_deviation = ranks.sum(_sums_per_group((deviation**2)[None], group, groups)[0])
    # Not a slip: the public code divides this variance, too, by the padded target length.
    variance = squared_deviation / (padded_length if is_official else number)
    differs = _differs(variance, total_square / number)
    factor = torch.where(differs, settings.scale_sentence * variance.rsqrt(), 0.0)
    weight = (deviation * _of_group(factor, group) + 1).clamp(min=0)
    if is_official:
        weight = torch.where(_of_group(differs, group), weight, 0.0)
    return weight


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


def _sums_per_group(values: Tensor, group: Tensor | None, groups: int) -> Tensor:
    """values (rows, sentences) → (rows, groups); without groups, all sentences are one."""
    if group is None:
        return values.sum(1, keepdim=True)
    return values.new_zeros(len(values), groups).index_add_(1, group, values)


def _of_group(values: Tensor, group: Tensor | None) -> Tensor:
    """(groups,) → (sentences,), or the one value of all."""
    return values if group is None else values[group]


def _differs(variance: Tensor, mean_square: Tensor) -> Tensor:
    """Whether values differ by more than rounding.

    `mean_square` is that of the token values c: it sets the scale of their rounding errors.
    """
    return variance > ROUNDING**2 * mean_square


def cbmi_weights(
    nmt: Tensor,
    lm: Tensor,
    mask: Tensor,
    scale_token: float = 0.1,
    scale_sentence: float = 0.3,
    std: Std = "population",
    compare: Compare = "batch",
    word_starts: Tensor | None = None,
) -> Tensor:
    """CBMI weights of a padded batch.

    nmt, lm, mask (sentences, length) → w (sentences, length), 0 at padding. `nmt` and `lm` are
    natural logarithms of the gold tokens' probabilities; `mask` is true for real tokens. The end of
    sentence is a token, the begin of sentence is not. word_starts (sentences, length): with it,
    token weights are those of words, and it is true where one begins. For `compare="groups"`, the
    batch is one group. The result carries no gradient.
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
    cbmi = cbmi_of(nmt.detach().double(), lm.detach().double(), std)[mask]
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
