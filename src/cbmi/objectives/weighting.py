"""What all objectives that weight tokens share: mirroring, scaling, clipping, shuffling."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor

from cbmi.objectives.base import Objective, TokenScores
from cbmi.schema import Bounds, Flag, PositiveFloat


def _whole_batch(value: Any) -> Any:
    """true and false are short for "batch" and nothing."""
    if isinstance(value, bool):
        return "batch" if value else None
    return value


Among = Annotated[Literal["sentence", "batch"] | None, BeforeValidator(_whole_batch)]


class Weighting(Objective):
    """An objective whose w is not 1 everywhere. Subclasses say how in `token_weights`."""

    mirrored: Flag = False  # at 1: max(0, 2 - w) takes the place of w
    scale: PositiveFloat = 1.0  # every weight is then multiplied by this
    clip: Bounds | None = None  # then clipped to [low, high]
    shuffled: Among = None  # then dealt out at random among the tokens of the sentence or batch

    def weighs_together(self) -> bool:
        return self.shuffled == "batch"

    def token_weights(self, scores: TokenScores) -> Tensor:
        """w (tokens,) before mirroring, scaling, clipping and shuffling."""
        raise NotImplementedError

    def weights(self, scores: TokenScores) -> Tensor:
        weights = self.adjusted(self.token_weights(scores))
        if self.shuffled == "batch":
            return shuffle(weights, scores)
        if self.shuffled == "sentence":
            return shuffle_within_sentences(weights, scores)
        return weights

    def adjusted(self, weights: Tensor) -> Tensor:
        """Mirrored, scaled and clipped as the settings say."""
        if self.mirrored:
            weights = (2 - weights).clamp(min=0)
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
    gathered = scores.ranks.gather(mine)
    all_places, all_keys, all_weights = torch.cat(gathered, dim=1).unbind()
    shuffled_weights = torch.empty_like(all_weights)
    # Sorted, not searched for: places of tokens may be equal, and each still gets a weight.
    shuffled_weights[all_places.argsort(stable=True)] = all_weights[all_keys.argsort()]
    first = sum(other.shape[1] for other in gathered[: scores.ranks.rank])
    return shuffled_weights[first : first + len(weights)].to(weights.dtype)


def shuffle_within_sentences(weights: Tensor, scores: TokenScores) -> Tensor:
    """The weights, detached, dealt out at random among the tokens of each sentence."""
    # Fillers may lie between the tokens of two sentences: they are dealt each other's weights.
    dealt = torch.empty_like(weights.detach())
    by_sentence = scores.sentence.argsort(stable=True)
    random_order = (scores.sentence + scores.uniform("shuffle")).argsort()
    dealt[by_sentence] = weights.detach()[random_order]
    return dealt
