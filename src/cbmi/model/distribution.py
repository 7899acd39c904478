"""Whole distributions over the vocabulary, a chunk of tokens at a time.

Some losses need more of p(· | y_<j, x) than the gold token's share. `distribution_terms` computes
the logits of a chunk of tokens, passes them to a function, and frees them; the backward pass
computes them again. So tokens × vocabulary in float32 exist for one chunk only, whatever the
vocabulary. On a GPU in half precision the function is compiled: it and its gradient take a few
passes over the logits. All chunks have one shape then, so that it is compiled once.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.model import kernels
from cbmi.model.head import (
    HeadOutput,
    fitting_chunk,
    to_autocast,
    token_log_probabilities,
    upcast,
)

MATRICES = 12  # (tokens, vocabulary) that a term and its gradient hold at a time, roughly
COMPILED_ELEMENTS = 1 << 26  # logits at a time where the term is compiled
Term = Callable[["Distributions"], Tensor]
ChunkValues = tuple[Tensor, Tensor, Tensor]


class States(NamedTuple):
    """A network's last hidden states and output matrix: logits before they are computed."""

    hidden: Tensor  # (tokens, width)
    weight: Tensor  # (vocabulary, width)
    fused: bool = True  # whether the network allows fused kernels

    def logits(self, rows: slice) -> Tensor:
        return self.hidden[rows] @ self.weight.T

    def log_probabilities(self, gold: Tensor, chunk: int | None = None) -> Tensor:
        """log p(gold) (tokens,)."""
        output = token_log_probabilities(self.hidden, self.weight, gold, chunk, fused=self.fused)
        return output.log_p

    def detached(self) -> States:
        return States(self.hidden.detach(), self.weight.detach(), self.fused)

    def in_autocast(self) -> States:
        return States(*to_autocast(self.hidden, self.weight), self.fused)

    def padded(self, chunk: int) -> States:
        return States(_padded(self.hidden, chunk), self.weight, self.fused)


def keep_states(hidden: Tensor, weight: Tensor, gold: Tensor, *, fused: bool) -> States:
    """A network's head that leaves its logits for later."""
    return States(hidden, weight, fused)


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
        of_gold = self.of_gold(self.log_p)
        return -((1 - self.smoothing) * of_gold + self.smoothing * self.log_p.mean(1))

    def cbmi(self) -> Tensor:
        """c (tokens,): log p - log p_lm of the gold tokens, detached."""
        if self.lm is None:
            raise ValueError("CBMI needs the language model's distributions")
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
    fused: bool = True,
) -> HeadOutput:
    """log p(gold), mean over v of log p(v), and `term` of each chunk's distributions: (tokens,)
    each.

    hidden (tokens, width); weight (vocabulary, width); gold (tokens,). `lm` and `teacher` get no
    gradient.
    """
    hidden, weight = to_autocast(hidden, weight)
    lm = None if lm is None else lm.in_autocast()
    teacher = None if teacher is None else teacher.in_autocast()
    tokens = len(hidden)
    compiled = fused and kernels.usable(hidden)
    if compiled:
        # Every chunk gets the same shape: fill up to a whole number of chunks.
        most = max(64, COMPILED_ELEMENTS // len(weight))
        chunk = min(chunk or most, most)
        hidden = _padded(hidden, chunk)
        gold = _padded(gold, chunk)
        lm = None if lm is None else lm.padded(chunk)
        teacher = None if teacher is None else teacher.padded(chunk)
    chunk = chunk or fitting_chunk(hidden, weight, matrices=MATRICES)
    function = _compiled_values(getattr(term, "__self__", term)) if compiled else chunk_values

    def outputs(logits: Tensor, rows: slice) -> ChunkValues:
        lm_logits = None if lm is None else lm.logits(rows)
        teacher_logits = None if teacher is None else teacher.logits(rows)
        return function(logits, gold[rows], lm_logits, teacher_logits, smoothing, term)

    values = _Chunked.apply(hidden, weight, chunk, outputs)  # type: ignore[no-untyped-call]
    log_p, mean_log_p, term_values = (value[:tokens] for value in values)
    return HeadOutput(log_p, mean_log_p, term_values)


def chunk_values(
    logits: Tensor,
    gold: Tensor,
    lm: Tensor | None,
    teacher: Tensor | None,
    smoothing: float,
    term: Term,
) -> ChunkValues:
    """What `distribution_terms` returns, for one chunk; logits are (tokens, vocabulary)."""
    logits = upcast(logits)
    log_lm = None if lm is None else torch.log_softmax(upcast(lm), dim=1)
    log_teacher = None if teacher is None else torch.log_softmax(upcast(teacher), dim=1)
    log_p = torch.log_softmax(logits, dim=1)
    chunk = Distributions(logits, log_p, gold, smoothing, log_lm, log_teacher)
    return chunk.of_gold(log_p), log_p.mean(1), term(chunk)


@cache
def _compiled_values(owner: object) -> Callable[..., ChunkValues]:
    """`chunk_values`, compiled for one objective."""
    # A copy with a code object of its own: TorchDynamo counts recompilations per code object, so
    # objectives do not use up each other's limit.
    own = types.FunctionType(chunk_values.__code__.replace(), chunk_values.__globals__)
    return torch.compile(own, dynamic=False)


def _padded(rows: Tensor, chunk: int) -> Tensor:
    """With zero rows up to a whole number of chunks."""
    missing = -len(rows) % chunk
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


class _Chunked(torch.autograd.Function):
    """Functions of (logits of a chunk, its rows) → several (tokens,) tensors, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        chunk: int,
        outputs: Callable[[Tensor, slice], ChunkValues],
    ) -> tuple[Tensor, ...]:
        states = States(hidden, weight)
        chunks = []
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            chunks.append(outputs(states.logits(rows), rows))
        ctx.save_for_backward(hidden, weight)
        ctx.chunk = chunk
        ctx.outputs = outputs
        return tuple(torch.cat(values) for values in zip(*chunks, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight = ctx.saved_tensors
        states = States(hidden, weight)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=grads[0].dtype)
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            with torch.enable_grad():
                logits = states.logits(rows).detach().requires_grad_()
                values = ctx.outputs(logits, rows)
            # A term that is constant (e.g. where nothing is selected) has no gradient.
            differentiable = []
            grads_of_chunk = []
            for value, grad in zip(values, grads, strict=True):
                if value.requires_grad:
                    differentiable.append(value)
                    grads_of_chunk.append(grad[rows])
            (grad_logits,) = torch.autograd.grad(differentiable, logits, grads_of_chunk)
            torch.mm(grad_logits, weight, out=grad_hidden[rows])
            grad_weight += grad_logits.T @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype), None, None
