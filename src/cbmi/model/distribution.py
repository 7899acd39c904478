"""Whole distributions over the vocabulary, a chunk of tokens at a time.

Some losses need more of p(· | y_<j, x) than the gold token's share. `distribution_terms` makes the logits of a chunk
of tokens, hands them to a function, and lets them go; the backward pass makes them anew. So tokens × vocabulary in
float32 exist for a chunk only, whatever the vocabulary. On a GPU in half precision the function is compiled: it and
its gradient take a few passes over the logits. All chunks have one shape then, so that this happens once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.model import kernels
from cbmi.model.head import exact, fitting_chunk, to_autocast

MATRICES = 12  # (tokens, vocabulary) that a term and its gradient hold at a time, about
COMPILED_ELEMENTS = 1 << 26  # logits at a time where the term is compiled
Term = Callable[["Distributions"], Tensor]


class States(NamedTuple):
    """A network's last hidden states and output matrix: logits before they are made."""

    hidden: Tensor  # (tokens, width)
    weight: Tensor  # (vocabulary, width)

    def logits(self, rows: slice) -> Tensor:
        return self.hidden[rows] @ self.weight.T


def keep_states(hidden: Tensor, weight: Tensor, gold: Tensor) -> States:
    """A network's head that leaves its logits for later."""
    return States(hidden, weight)


@dataclass(frozen=True)
class Distributions:
    """The distributions of a chunk of target tokens. What was not given is None."""

    logits: Tensor  # (tokens, vocabulary) of the translator
    log_p: Tensor  # (tokens, vocabulary) log p of the translator
    gold: Tensor  # (tokens,)
    smoothing: float
    lm: Tensor | None  # (tokens, vocabulary) log p of the language model, a constant
    teacher: Tensor | None  # (tokens, vocabulary) log p of the teacher, a constant

    def of_gold(self, values: Tensor) -> Tensor:
        """(tokens, vocabulary) → (tokens,): the gold tokens' entries."""
        return values.gather(1, self.gold[:, None])[:, 0]

    def cross_entropy(self) -> Tensor:
        """ell (tokens,): label-smoothed cross-entropy."""
        return -((1 - self.smoothing) * self.of_gold(self.log_p) + self.smoothing * self.log_p.mean(1))

    def cbmi(self) -> Tensor:
        """c (tokens,): log p - log p_lm of the gold tokens, detached."""
        return (self.of_gold(self.log_p) - self.of_gold(self.lm)).detach()


def distribution_terms(
    hidden: Tensor,
    weight: Tensor,
    gold: Tensor,
    *,
    term: Term,
    smoothing: float,
    lm: States | None = None,
    teacher: States | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """log p(gold), mean over v of log p(v), and `term` of each chunk's distributions: all (tokens,), differentiable.

    hidden (tokens, width); weight (vocabulary, width); gold (tokens,). `lm` and `teacher` get no gradient.
    """
    hidden, weight = to_autocast(hidden, weight)
    others = [None if other is None else States(*to_autocast(*other)) for other in (lm, teacher)]
    compiled, tokens = kernels.fused(hidden), len(hidden)
    if compiled:
        most = max(64, COMPILED_ELEMENTS // len(weight))
        chunk = min(chunk or most, most)
        hidden, gold = _filled(hidden, chunk), _filled(gold, chunk)
        others = [other and States(_filled(other.hidden, chunk), other.weight) for other in others]
    chunk = chunk or fitting_chunk(hidden, weight, matrices=MATRICES)
    function = _compiled_values() if compiled else chunk_values

    def outputs(logits: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        return function(logits, gold[rows], *(other and other.logits(rows) for other in others), smoothing, term)

    return tuple(values[:tokens] for values in _Chunked.apply(hidden, weight, chunk, outputs))


def chunk_values(
    logits: Tensor, gold: Tensor, lm: Tensor | None, teacher: Tensor | None, smoothing: float, term: Term
) -> tuple[Tensor, Tensor, Tensor]:
    """What `distribution_terms` gives, of a chunk; logits (tokens, vocabulary) of the three networks."""
    logits = exact(logits)
    log_others = [None if other is None else torch.log_softmax(exact(other), dim=1) for other in (lm, teacher)]
    part = Distributions(logits, torch.log_softmax(logits, dim=1), gold, smoothing, *log_others)
    return part.of_gold(part.log_p), part.log_p.mean(1), term(part)


@cache
def _compiled_values() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    return torch.compile(chunk_values, dynamic=False)


def _filled(rows: Tensor, chunk: int) -> Tensor:
    """With zero rows up to a whole number of chunks."""
    missing = -len(rows) % chunk
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


class _Chunked(torch.autograd.Function):
    """Functions of (logits of a chunk, its rows) → several (tokens,) tensors, one chunk after another."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, chunk: int, outputs: Callable):
        parts = []
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            parts.append(outputs(States(hidden, weight).logits(rows), rows))
        ctx.save_for_backward(hidden, weight)
        ctx.chunk, ctx.outputs = chunk, outputs
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        hidden, weight = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=gradients[0].dtype)
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            with torch.enable_grad():
                logits = States(hidden, weight).logits(rows).detach().requires_grad_()
                values = ctx.outputs(logits, rows)
            wanted = [(v, g[rows]) for v, g in zip(values, gradients, strict=True) if v.requires_grad]
            (slope,) = torch.autograd.grad([v for v, _ in wanted], logits, [g for _, g in wanted])
            torch.mm(slope, weight, out=of_hidden[rows])
            of_weight += slope.T @ hidden[rows]
        return of_hidden, of_weight.to(weight.dtype), None, None
