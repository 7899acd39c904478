"""What every objective receives and returns.

All systems share one formula. The loss of a step is

    sum(w·ell + term) / (number of real target tokens of the whole step)

where ell is label-smoothed cross-entropy. An objective supplies the weights w, or the extra term,
or neither. It says what it `needs`, and the training loop provides just that.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from cbmi.data.words import (
    CLOSES,
    LATER_BYTE,
    ONE_BYTE,
    OPENS,
    SPACE_ALONE,
    UNSPACED_FIRST,
    UNSPACED_LAST,
)
from cbmi.model.distribution import Distributions
from cbmi.model.fusion import FusionKind
from cbmi.objectives.ranks import SINGLE_RANK, Ranks
from cbmi.schema import Settings

CBMI_PAPER = (
    "Zhang et al., 2022: Conditional bilingual mutual information based adaptive training "
    "for neural machine translation"
)

Need = Literal[
    "lm",
    "lm-dropout",
    "teacher",
    "distribution",
    "samples",
    "frequency",
    "words",
    "groups",
    "bmi",
    "weights",
]

# What an objective may need, in the words in which a user is told.
NEEDS: dict[str, str] = {
    "lm": "a language model",
    "lm-dropout": "a language model whose dropout is on",
    "teacher": "the translator as it was when the stage began",
    "distribution": "whole distributions over the vocabulary",
    "samples": "predictions under several dropout masks",
    "frequency": "frequencies of the target pieces",
    "words": "which pieces begin a word",
    "groups": "steps that are made of groups of like length",
    "bmi": "bilingual mutual information of the corpus",
    "weights": "a file of weights",
}


@dataclass(frozen=True)
class TokenScores:
    """Scores of a mini-batch's target tokens, packed end to end. What was not needed is None."""

    nmt: Tensor  # (tokens,) log p(y_j | y_<j, x), with its graph
    mean: Tensor  # (tokens,) mean over the vocabulary of log p(v | y_<j, x), with its graph
    lm: Tensor | None  # (tokens,) log p(y_j | y_<j), detached
    mask: Tensor  # (tokens,) false for tokens that only fill up the batch: they count nowhere
    sentence: Tensor  # (tokens,) index of each token's sentence
    sentences: int
    # Tokens in the longest sentence of the whole mini-batch, or (groups,) of each of its groups.
    longest: int | Tensor
    gold: Tensor  # (tokens,) ids of the tokens
    corpus_index: Tensor  # (tokens,)
    group: Tensor | None = None  # (sentences,) of a mini-batch made of groups of like length
    ranks: Ranks = SINGLE_RANK
    seed: int | Tensor = 0  # of what is drawn at random in this step
    samples: Tensor | None = None  # (dropout masks, tokens) log p(y_j | y_<j, x)
    frequency: Tensor | None = None  # (vocabulary,) of each piece, relative to the median piece
    boundaries: Tensor | None = None  # (vocabulary,) flags of `cbmi.data.words.word_boundaries`
    bmi: Tensor | None = None  # (tokens,) bilingual mutual information with the source
    given: Tensor | None = None  # (tokens,) values from a file of weights

    def cross_entropy(self, smoothing: float) -> Tensor:
        """ell (tokens,): label-smoothed cross-entropy, uniform over the vocabulary."""
        if smoothing == 0:
            return -self.nmt  # 0 times an infinite mean, of masked logits, would be NaN
        return -((1 - smoothing) * self.nmt + smoothing * self.mean)

    def cbmi(self) -> Tensor:
        """c (tokens,): log p_NMT - log p_LM. Detached: weights made of it carry no gradient."""
        return self.nmt.detach() - required(self.lm, "lm")

    def per_sentence(self, values: Tensor) -> Tensor:
        """(..., tokens) → (..., sentences): sums over the real tokens of each sentence."""
        sums = values.new_zeros(*values.shape[:-1], self.sentences)
        return sums.index_add_(-1, self.sentence, torch.where(self.mask, values, 0))

    def word(self) -> Tensor:
        """(tokens,) index of each token's word."""
        return words_of_tokens(required(self.boundaries, "words")[self.gold], self.sentence)

    def uniform(self, purpose: str) -> Tensor:
        """(tokens,) random numbers in [0, 1).

        They are a function of step, place and purpose, hence the same on any number of ranks.
        """
        return hashed(self.corpus_index, self.seed + zlib.crc32(purpose.encode()))


def words_of_tokens(flags: Tensor, sentence: Tensor) -> Tensor:
    """(tokens,) index of each token's word; a word ends with its sentence at the latest.

    flags (tokens,): those of `cbmi.data.words.word_boundaries`; sentence (tokens,).
    """
    flags = flags.int()
    later_byte = ((flags & LATER_BYTE) > 0) & ((flags.roll(1) & ONE_BYTE) > 0)
    for _ in range(3):  # the bytes of a character end as its first one does
        flags = flags | torch.where(later_byte, flags.roll(1) & UNSPACED_LAST, 0)
    before = flags.roll(1)
    unspaced = ((flags & UNSPACED_FIRST) | (before & UNSPACED_LAST)) > 0
    starts = ((flags & OPENS) | (before & CLOSES)) > 0
    starts |= unspaced & ((before & SPACE_ALONE) == 0)
    starts &= (flags & before & ONE_BYTE) == 0  # neighbouring bytes stay together
    starts |= sentence != sentence.roll(1)
    # The last token does not come before the first.
    starts = torch.cat([torch.ones_like(starts[:1]), starts[1:]])
    return starts.cumsum(0) - 1


def required(values: Tensor | None, need: Need) -> Tensor:
    """Values that an objective asked for in `needs`."""
    if values is None:
        raise ValueError(f"the scores have no '{need}': the objective has to name it in needs()")
    return values


def join(micro_batches: Sequence[TokenScores]) -> TokenScores:
    """The scores of a step's micro-batches as those of one mini-batch."""
    first = micro_batches[0]
    if len(micro_batches) == 1:
        return first
    sentence_indices = []
    sentences = 0
    for scores in micro_batches:
        # Sentences are numbered on through the micro-batches.
        sentence_indices.append(scores.sentence + sentences)
        sentences += scores.sentences
    joined: dict[str, Any] = {"sentence": torch.cat(sentence_indices), "sentences": sentences}
    of_tokens = ("nmt", "mean", "lm", "mask", "gold", "corpus_index", "samples", "bmi", "given")
    for name in (*of_tokens, "group"):
        values = [getattr(scores, name) for scores in micro_batches]
        joined[name] = None if values[0] is None else torch.cat(values, dim=-1)
    return replace(first, **joined)


def hashed(values: Tensor, seed: int | Tensor) -> Tensor:
    """Integers to pseudo-random numbers in [0, 1), in float64 (the mixing function of SplitMix64).

    PyTorch has no unsigned 64-bit arithmetic: products wrap around as they should, and the masks
    take off the sign bits that `>>` drags in.
    """
    x = values * -7046029254386353131 + (seed & (2**62 - 1))
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return ((x >> 11) & ((1 << 53) - 1)).double() / (1 << 53)


class Objective(Settings):
    """Maps token scores to losses. The fields of a subclass are its settings in the run file."""

    fusion: ClassVar[FusionKind | None] = None  # of translator and language model
    equation: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # settings by language pair

    def needs(self) -> frozenset[Need]:
        """What the training loop has to provide: names from `NEEDS`."""
        return frozenset()

    def files(self) -> tuple[str, ...]:
        """The files that it reads: what is trained with it depends on their content.

        By default, the file of weights, if it needs one.
        """
        file = getattr(self, "file", None)
        return (file,) if file and "weights" in self.needs() else ()

    def weighs_together(self) -> bool:
        """Whether a token's weight depends on other sentences of the mini-batch.

        If so, the micro-batches of a step are scored once more beforehand, and weighted as one.
        """
        return False

    def weights(self, scores: TokenScores) -> Tensor | None:
        """w (tokens,), or None for 1 everywhere."""
        return None

    def term(self, chunk: Distributions) -> Tensor:
        """(tokens of the chunk,): what is added to w·ell. Called if "distribution" is needed."""
        raise NotImplementedError
