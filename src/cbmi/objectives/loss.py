"""The one formula: w·ell + term, for every objective."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

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
    """What turns the translator's hidden states into the scores that the objective needs.

    `lm` and `teacher` give the whole distributions of those networks; `chunk`: tokens at a time.
    """
    if objective.fusion:
        if lm is None:
            raise ValueError("fusion needs the language model's states")
        return partial(fused_scores, lm=lm, fusion=objective.fusion, chunk=chunk)
    if "distribution" in objective.needs():
        return partial(
            distribution_terms,
            term=objective.term,
            smoothing=smoothing,
            lm=lm,
            teacher=teacher,
            chunk=chunk,
        )
    return partial(token_log_probabilities, chunk=chunk)


class TokenLosses(NamedTuple):
    losses: Tensor  # (tokens,) 0 for tokens that do not count
    weights: Tensor | None  # (tokens,), or None for 1 everywhere


def token_losses(
    objective: Objective,
    scores: TokenScores,
    smoothing: float,
    term: Tensor | None = None,
    weights: Tensor | None = None,
) -> TokenLosses:
    """The loss of each token: w·ell + term; `weights` are those that are known beforehand.

    Their sum over the whole step, divided by the number of its tokens, is the training loss. (The
    normaliser is the number of tokens, not the sum of the weights.)
    """
    losses = scores.cross_entropy(smoothing)
    if weights is None:
        weights = objective.weights(scores)
    if weights is not None:
        if weights.shape != losses.shape:
            raise UserError(
                f"{type(objective).__name__} returned weights of shape {tuple(weights.shape)} "
                f"for {len(losses)} tokens."
            )
        losses = losses * weights
    if term is not None:
        losses = losses + term
    # `where`, not a product with the mask: a filler's loss may be NaN or infinite.
    return TokenLosses(losses.where(scores.mask, 0), weights)
