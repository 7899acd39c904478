"""What every objective is given and gives back.

All systems share one formula: the loss of a step is sum(w·ell) / (number of real target tokens of the whole step),
where ell is label-smoothed cross-entropy. An objective supplies the weights w.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

# Adds a tensor up over all data-parallel ranks; with one process it gives its argument back.
Reduce = Callable[[Tensor], Tensor]


def alone(values: Tensor) -> Tensor:
    """The `Reduce` of a single process."""
    return values


@dataclass(frozen=True)
class TokenScores:
    """Scores of the target tokens of a batch, packed end to end."""

    nmt: Tensor  # (tokens,) log p(y_j | y_<j, x), with its graph
    mean: Tensor  # (tokens,) mean over the vocabulary of log p(v | y_<j, x), with its graph
    lm: Tensor | None  # (tokens,) log p(y_j | y_<j), detached; None where there is no language model
    mask: Tensor  # (tokens,) false for tokens that only fill the batch up: they count nowhere
    sentence: Tensor  # (tokens,) index of each token's sentence
    sentences: int
    longest: int  # tokens in the longest sentence of the batch, on any rank
    reduce: Reduce = alone

    def cross_entropy(self, smoothing: float) -> Tensor:
        """ell (tokens,): label-smoothed cross-entropy, uniform over the vocabulary."""
        return -((1 - smoothing) * self.nmt + smoothing * self.mean)

    def cbmi(self) -> Tensor:
        """c (tokens,): log p_NMT - log p_LM, detached."""
        return self.nmt.detach() - self.lm


class Objective(Protocol):
    """Maps token scores to weights. `needs` names what the training loop has to provide: "lm"."""

    needs: ClassVar[frozenset[str]]

    def weights(self, scores: TokenScores) -> Tensor | None:
        """w (tokens,), or None for 1 everywhere."""
