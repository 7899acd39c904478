"""Translator and language model fused into one score for every next token.

prenorm:   log softmax(S_tm + log p_lm)
postnorm:  log softmax(S_tm) + log p_lm, not normalised: its gradient is that of the translator alone
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from cbmi.model.distribution import States, keep_states
from cbmi.model.head import exact, token_log_probabilities
from cbmi.model.language_model import LanguageModel
from cbmi.model.packed import Packed
from cbmi.model.translator import Translator


def fused_scores(
    hidden: Tensor, weight: Tensor, gold: Tensor, *, lm: States, fusion: str, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Fused scores of the gold tokens, and their means over the vocabulary; both (tokens,).

    hidden (tokens, width); weight (vocabulary, width); gold (tokens,). `lm` gets no gradient.
    """
    lm = States(*(part.detach() for part in lm))
    if fusion == "prenorm":
        # Logits add up, and softmax does not see what log p_lm lacks to logits: one wider product gives them all.
        both = torch.cat([hidden, lm.hidden.to(hidden.dtype)], 1), torch.cat([weight, lm.weight.to(weight.dtype)], 1)
        return token_log_probabilities(*both, gold, chunk)
    own = token_log_probabilities(hidden, weight, gold, chunk)
    other = token_log_probabilities(*lm, gold, chunk)
    return own[0] + other[0], own[1] + other[1]


def gold_scores(
    translator: Translator,
    language_model: LanguageModel | None,
    source: Packed,
    inputs: Packed,
    gold: Tensor,
    fusion: str | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(log p of the gold tokens, its mean over the vocabulary, log p_lm), each (tokens,), without training.

    With `fusion` the first two are fused scores; the last is None where there is no language model.
    """
    head, of_lm = token_log_probabilities, None
    if language_model is not None:
        states = language_model(inputs, gold, head=keep_states)
        of_lm = token_log_probabilities(*states, gold)[0]
        head = partial(fused_scores, lm=states, fusion=fusion) if fusion else head
    return *translator(source, inputs, gold, head=head), of_lm


def fuse(logits: Tensor, lm_logits: Tensor, fusion: str) -> Tensor:
    """The fused scores of the whole vocabulary: (rows, vocabulary), for the few rows of a decoding step."""
    logits, log_lm = exact(logits), torch.log_softmax(exact(lm_logits), dim=-1)
    if fusion == "prenorm":
        return torch.log_softmax(logits + log_lm, dim=-1)
    return torch.log_softmax(logits, dim=-1) + log_lm
