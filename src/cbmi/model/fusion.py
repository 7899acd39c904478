"""Translator and language model fused into one score for every next token.

prenorm:   log softmax(S_tm + log p_lm)
postnorm:  log softmax(S_tm) + log p_lm, not normalised: the gradient is the translator's alone
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cbmi.model.distribution import States, keep_states
from cbmi.model.head import Head, HeadOutput, token_log_probabilities, upcast
from cbmi.model.language_model import LanguageModel
from cbmi.model.packed import Packed
from cbmi.model.translator import Translator

FusionKind = Literal["prenorm", "postnorm"]


def fused_scores(
    hidden: Tensor,
    weight: Tensor,
    gold: Tensor,
    *,
    lm: States,
    fusion: FusionKind,
    chunk: int | None = None,
    fused: bool = True,
) -> HeadOutput:
    """Fused scores of the gold tokens, and their means over the vocabulary; both (tokens,).

    hidden (tokens, width); weight (vocabulary, width); gold (tokens,). `lm` gets no gradient.
    (`fused` speaks of kernels, `fusion` of networks.)
    """
    lm = lm.detached()
    if fusion == "prenorm":
        # Logits add up, and softmax ignores the constant between logits and log p_lm: one product
        # of the concatenated states and matrices gives the fused logits.
        both_hidden = torch.cat([hidden, lm.hidden.to(hidden.dtype)], 1)
        both_weights = torch.cat([weight, lm.weight.to(weight.dtype)], 1)
        return token_log_probabilities(both_hidden, both_weights, gold, chunk, fused=fused)
    own = token_log_probabilities(hidden, weight, gold, chunk, fused=fused)
    other = token_log_probabilities(lm.hidden, lm.weight, gold, chunk, fused=fused)
    return HeadOutput(own.log_p + other.log_p, own.mean_log_p + other.mean_log_p)


class GoldScores(NamedTuple):
    """Scores of the gold tokens, each (tokens,)."""

    nmt: Tensor  # log p, or the fused score
    mean: Tensor  # its mean over the vocabulary
    lm: Tensor | None  # log p_lm, where there is a language model


def gold_scores(
    translator: Translator,
    language_model: LanguageModel | None,
    source: Packed,
    inputs: Packed,
    gold: Tensor,
    fusion: FusionKind | None = None,
) -> GoldScores:
    """Score the gold tokens, without training."""
    head: Head = token_log_probabilities
    lm = None
    if language_model is not None:
        states: States = language_model(inputs, gold, head=keep_states)
        lm = states.log_probabilities(gold)
        if fusion:
            head = partial(fused_scores, lm=states, fusion=fusion)
    output: HeadOutput = translator(source, inputs, gold, head=head)
    return GoldScores(output.log_p, output.mean_log_p, lm)


def fuse(logits: Tensor, lm_logits: Tensor, fusion: FusionKind) -> Tensor:
    """Fused scores of the vocabulary: (rows, vocabulary), for the few rows of a decoding step."""
    logits = upcast(logits)
    log_lm = torch.log_softmax(upcast(lm_logits), dim=-1)
    if fusion == "prenorm":
        return torch.log_softmax(logits + log_lm, dim=-1)
    return torch.log_softmax(logits, dim=-1) + log_lm
