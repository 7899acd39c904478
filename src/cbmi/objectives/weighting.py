"""What all objectives that weight tokens have in common: scaling, clipping, shuffling."""

from __future__ import annotations

import torch
from torch import Tensor

from cbmi.config import Bounds, Flag, PositiveFloat
from cbmi.objectives.base import Objective, TokenScores


class Weighting(Objective):
    """An objective whose w is not 1 everywhere. Subclasses say how in `token_weights`."""

    scale: PositiveFloat = 1.0  # every weight is multiplied by this
    clip: Bounds | None = None  # then clipped to [low, high]
    shuffled: Flag = False  # then dealt out at random among the tokens of the mini-batch

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
        if self.clip is not None:
            low, high = self.clip
            weights = weights.clamp(low, high)
        return weights


def shuffle(weights: Tensor, scores: TokenScores) -> Tensor:
    """The weights of the mini-batch, detached, dealt out at random among its tokens on all ranks.

    Tokens in corpus order receive the weights of tokens in a random order. That order is a function
    of step and corpus index, so it is the same however many ranks share the mini-batch.
    """
    # Tokens that only fill up the batch come last in both orders: they get each other's weights.
    filler = torch.where(scores.mask, 0.0, torch.inf).double()
    place = (
        scores.corpus_index + filler
    )  # float64: float32 cannot hold every index of a large corpus
    random_key = scores.uniform("shuffle") + filler
    mine = torch.stack([place, random_key, weights.detach().double()])
    everyone = torch.cat(scores.ranks.gather(mine), dim=1)
    all_places, all_keys, all_weights = everyone.unbind()
    shuffled_weights = all_weights[all_keys.argsort()]
    rank_in_corpus_order = torch.searchsorted(all_places.sort().values, place)
    return shuffled_weights[rank_in_corpus_order].to(weights.dtype)
