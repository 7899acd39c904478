"""The one formula: w·ell + term, for every objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cbmi.errors import UserError
from cbmi.objectives.base import Objective, TokenScores


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
        if weights is not None and objective.weighs_together():
            # As with several micro-batches, where they are computed beforehand, without a graph.
            weights = weights.detach()
    if weights is not None:
        _check_shape(objective, weights, scores)
        # Mask the weights, too: 0·NaN in the backward pass would be NaN.
        losses = losses * weights.where(scores.mask, 0)
    if term is not None:
        losses = losses + term
    # `where`, not a product with the mask: a filler's loss may be NaN or infinite.
    return TokenLosses(losses.where(scores.mask, 0), weights)


def weights_together(
    objective: Objective, scores: TokenScores, counts: Sequence[int]
) -> tuple[Tensor, ...]:
    """The weights of a step's micro-batches, whose `scores` are joined; `counts`: their tokens."""
    weights = objective.weights(scores)
    if weights is None:
        weights = torch.ones_like(scores.nmt)
    _check_shape(objective, weights, scores)
    return weights.split(list(counts))


def _check_shape(objective: Objective, weights: Tensor, scores: TokenScores) -> None:
    if weights.shape != scores.nmt.shape:
        raise UserError(
            f"{type(objective).__name__} returned weights of shape {tuple(weights.shape)} "
            f"for {len(scores.nmt)} tokens."
        )
