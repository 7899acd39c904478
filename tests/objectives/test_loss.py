"""The weights of a step's micro-batches, which an objective of one's own may get wrong."""

from __future__ import annotations

import pytest
import torch

from cbmi.errors import UserError
from cbmi.objectives import Objective, TokenScores
from cbmi.objectives.loss import token_losses, weights_together


def scores(tokens: int) -> TokenScores:
    return TokenScores(
        nmt=-torch.rand(tokens),
        mean=-torch.rand(tokens),
        lm=None,
        mask=torch.ones(tokens, dtype=torch.bool),
        sentence=torch.zeros(tokens, dtype=torch.int64),
        sentences=1,
        longest=torch.tensor(tokens),
        gold=torch.zeros(tokens, dtype=torch.int64),
        corpus_index=torch.arange(tokens),
    )


class Plain(Objective):
    pass


class TooFew(Objective):
    def weights(self, scores: TokenScores) -> torch.Tensor:
        return torch.ones(2)


def test_no_weights_are_ones():
    weights = weights_together(Plain(), scores(5), [2, 3])
    assert [part.tolist() for part in weights] == [[1, 1], [1, 1, 1]]


def test_weights_of_another_shape_are_refused():
    message = r"TooFew returned weights of shape \(2,\) for 5 tokens"
    with pytest.raises(UserError, match=message):
        weights_together(TooFew(), scores(5), [2, 3])
    with pytest.raises(UserError, match=message):
        token_losses(TooFew(), scores(5), 0.1)
