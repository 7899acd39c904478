"""What all objectives that weigh tokens have in common: scaling, clipping and shuffling of the weights."""

from __future__ import annotations

import torch
from torch import Tensor

from cbmi.config import AboveZero, Bounds, Flag
from cbmi.objectives.base import Objective, TokenScores


class Weighting(Objective):
    """An objective whose w is not 1 everywhere. Subclasses say how in `token_weights`."""

    scale: AboveZero = 1.0  # all weights times this
    clip: Bounds | None = None  # then none below the first, none above the second
    shuffled: Flag = False  # then dealt out at random among the tokens of the mini-batch

    @property
    def weighs_together(self) -> bool:
        return self.shuffled

    def token_weights(self, scores: TokenScores) -> Tensor:
        """w (tokens,) before scaling, clipping and shuffling."""
        raise NotImplementedError

    def weights(self, scores: TokenScores) -> Tensor:
        weights = self.scaled_and_clipped(self.token_weights(scores))
        return shuffle(weights, scores) if self.shuffled else weights

    def scaled_and_clipped(self, weights: Tensor) -> Tensor:
        if self.scale != 1:
            weights = weights * self.scale
        return weights.clamp(*self.clip) if self.clip else weights


def shuffle(weights: Tensor, scores: TokenScores) -> Tensor:
    """The weights of the mini-batch, detached, dealt out anew among its tokens on all ranks.

    Tokens in the order of their places get the weights of tokens in a random order that is a function of step and
    places: the same however many ranks share the mini-batch. Tokens that do not count come last in both orders.
    """
    filler = torch.where(scores.mask, 0.0, torch.inf).double()  # places of a large corpus are not whole in float32
    mine = torch.stack([scores.place + filler, scores.uniform("shuffle") + filler, weights.detach().double()])
    place, key, weight = torch.cat(scores.ranks.gather(mine), dim=1)
    dealt = weight[key.argsort()]
    return dealt[torch.searchsorted(place.sort().values, mine[0])].to(weights.dtype)
