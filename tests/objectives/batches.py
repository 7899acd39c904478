"""Random ragged mini-batches with everything that any objective may need, in float64."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cbmi.data.words import CLOSES, OPENS
from cbmi.model.distribution import States
from cbmi.objectives import Objective, TokenScores
from cbmi.objectives.heads import head_for
from cbmi.objectives.loss import token_losses

LENGTHS = (5, 1, 8, 3, 12, 2)
SMOOTHING = 0.1


@dataclass(frozen=True)
class Batch:
    """What lies between the networks and the loss."""

    lengths: tuple[int, ...]
    hidden: Tensor  # (tokens, width), a leaf
    weight: Tensor  # (vocabulary, width), a leaf
    lm: States
    teacher: States
    gold: Tensor
    corpus_index: Tensor
    sentence: Tensor
    mask: Tensor
    samples: Tensor
    frequency: Tensor
    bmi: Tensor
    given: Tensor
    boundaries: Tensor

    def rows(self, chosen: Tensor, lengths: tuple[int, ...]) -> Batch:
        """Some of its tokens, in another order; `lengths` of the sentences that they make up."""
        tokens = {
            name: getattr(self, name)[chosen]
            for name in ("gold", "corpus_index", "mask", "bmi", "given")
        }
        states = {
            name: States(getattr(self, name).hidden[chosen], getattr(self, name).weight)
            for name in ("lm", "teacher")
        }
        leaves = {
            "hidden": self.hidden.detach()[chosen].requires_grad_(),
            "weight": leaf(self.weight),
        }
        sentence = torch.repeat_interleave(torch.tensor(lengths))
        return replace(
            self,
            lengths=lengths,
            sentence=sentence,
            samples=self.samples[:, chosen],
            **tokens,
            **states,
            **leaves,
        )

    def scores(self, nmt: Tensor, mean: Tensor, ranks=None) -> TokenScores:
        lm = self.lm.log_probabilities(self.gold, chunk=4)
        names = ("mask", "sentence", "gold", "corpus_index", "samples", "frequency", "bmi", "given")
        fields = {name: getattr(self, name) for name in (*names, "boundaries")}
        longest = max(self.lengths)
        more = {"ranks": ranks} if ranks else {}
        return TokenScores(
            nmt=nmt,
            mean=mean,
            lm=lm,
            sentences=len(self.lengths),
            longest=longest,
            seed=7,
            **fields,
            **more,
        )

    def losses(
        self, objective: Objective, chunk: int | None = None, ranks=None
    ) -> tuple[Tensor, Tensor | None]:
        """The losses and weights that the package gives."""
        head = head_for(objective, SMOOTHING, self.lm, self.teacher, chunk)
        output = head(self.hidden, self.weight, self.gold, fused=True)
        scores = self.scores(output.log_p, output.mean_log_p, ranks)
        return token_losses(objective, scores, SMOOTHING, output.term)

    def gradients(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        return torch.autograd.grad(losses.sum() / int(self.mask.sum()), (self.hidden, self.weight))


def leaf(values: Tensor) -> Tensor:
    return values.detach().clone().requires_grad_()


def batch(
    lengths: tuple[int, ...] = LENGTHS, vocabulary: int = 17, width: int = 5, seed: int = 0
) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    tokens = sum(lengths)
    lengths_tensor = torch.tensor(lengths)
    gold = torch.randint(4, vocabulary, (tokens,), generator=generator)
    gold[lengths_tensor.cumsum(0) - 1] = 2  # the end of each sentence
    return Batch(
        lengths=lengths,
        hidden=normal(tokens, width).requires_grad_(),
        weight=normal(vocabulary, width).requires_grad_(),
        lm=States(
            4 * normal(tokens, width), normal(vocabulary, width)
        ),  # sure enough to need its floor
        teacher=States(normal(tokens, width), normal(vocabulary, width)),
        gold=gold,
        corpus_index=torch.arange(tokens) + 1000,
        sentence=torch.repeat_interleave(lengths_tensor),
        mask=torch.ones(tokens, dtype=torch.bool),
        samples=-normal(5, tokens).exp(),
        frequency=torch.randint(1, 40, (vocabulary,), generator=generator).double() / 7,
        bmi=normal(tokens).abs(),
        given=normal(tokens).abs(),
        boundaries=boundaries(vocabulary),
    )


def boundaries(vocabulary: int) -> Tensor:
    """Every third piece opens a word; the end of sentence stands alone."""
    flags = torch.zeros(vocabulary, dtype=torch.uint8)
    flags[::3] = OPENS
    flags[2] = OPENS | CLOSES
    return flags


class Exchange:
    """Two threads that stand for two ranks."""

    def __init__(self):
        self.barrier, self.values = threading.Barrier(2), [None, None]

    def rank(self, number):
        return _Rank(self, number)

    def both(self, number, value):
        self.values[number] = value
        self.barrier.wait()
        result = list(self.values)
        self.barrier.wait()
        return result


class _Rank:
    def __init__(self, exchange, number):
        self.exchange, self.rank = exchange, number

    def sum(self, values):
        first, second = self.gather(values)
        return first + second

    def min(self, values):
        return torch.minimum(*self.gather(values))

    def gather(self, value):
        return self.exchange.both(self.rank, value)


def on_two_ranks(function):
    """[function(0, ranks), function(1, ranks)], at the same time."""
    exchange = Exchange()
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda number: function(number, exchange.rank(number)), (0, 1)))
