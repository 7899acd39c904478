"""The one formula: w·ell + term, for every objective."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from cbmi.errors import UserError
from cbmi.model.distribution import States, distribution_terms
from cbmi.model.fusion import fused_scores
from cbmi.model.head import Head, token_log_probabilities
from cbmi.objectives.base import Objective, TokenScores


def head_for(
    objective: Objective,
    smoothing: float,
    lm: States | None = None,
    teacher: States | None = None,
    chunk: int | None = None,
) -> Head:
    """What the translator's hidden states are to be turned into: (log p of gold, its mean over the vocabulary), and
    the objective's term where it has one. `chunk`: tokens at a time."""
    if objective.fusion:
        return partial(fused_scores, lm=lm, fusion=objective.fusion, chunk=chunk)
    if "distribution" in objective.needs:
        others = {"lm": lm, "teacher": teacher, "chunk": chunk}
        return partial(distribution_terms, term=objective.term, smoothing=smoothing, **others)
    return partial(token_log_probabilities, chunk=chunk)


def token_losses(
    objective: Objective,
    scores: TokenScores,
    smoothing: float,
    term: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The losses (tokens,), 0 for tokens that do not count, and the weights, None for 1 everywhere; `weights`: those
    that are known beforehand.

    Their sum over the whole step divided by the number of its tokens is the training loss.
    """
    losses = scores.cross_entropy(smoothing)
    weights = objective.weights(scores) if weights is None else weights
    if weights is not None:
        if weights.shape != losses.shape:
            shape = tuple(weights.shape)
            raise UserError(f"{type(objective).__name__} gives weights of shape {shape} to {len(losses)} tokens.")
        losses = losses * weights
    if term is not None:
        losses = losses + term
    return losses.where(scores.mask, 0), weights
