"""The two passes over a matrix of logits that a loss needs: sums of each row forward, gradients in place backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def head_sums(logits, gold, of_gold, of_mean, total, size, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    highest = -1e30
    added = tl.zeros([N], tl.float32)
    plain = tl.zeros([N], tl.float32)
    for start in range(0, size, N):
        column = start + tl.arange(0, N)
        value = tl.load(logits + row * size + column, column < size, float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(value, 0))
        added = added * tl.exp(highest - higher) + tl.exp(value - higher)
        plain += tl.where(column < size, value, 0.0)
        highest = higher
    lse = highest + tl.log(tl.sum(added, 0))
    label = tl.load(gold + row)
    tl.store(of_gold + row, tl.load(logits + row * size + label).to(tl.float32) - lse)
    tl.store(of_mean + row, tl.sum(plain, 0) / size - lse)
    tl.store(total + row, lse)


@triton.jit
def head_slopes(logits, gold, total, to_gold, to_mean, size, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * N + tl.arange(0, N)
    value = tl.load(logits + row * size + column, column < size, 0.0).to(tl.float32)
    g, m = tl.load(to_gold + row), tl.load(to_mean + row)
    slope = m / size - (g + m) * tl.exp(value - tl.load(total + row))
    slope += tl.where(column == tl.load(gold + row), g, 0.0)
    tl.store(logits + row * size + column, slope.to(logits.dtype.element_ty), column < size)


def row_sums(logits: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p(gold), mean over v of log p(v) and log-sum-exp of logits (tokens, vocabulary): (tokens,) in float32."""
    tokens, size = logits.shape
    of_gold, of_mean, total = (logits.new_empty(tokens, dtype=torch.float32) for _ in range(3))
    head_sums[(tokens,)](logits, gold, of_gold, of_mean, total, size, N=min(BLOCK, triton.next_power_of_2(size)))
    return of_gold, of_mean, total


def slopes_in_place(logits: Tensor, gold: Tensor, total: Tensor, to_gold: Tensor, to_mean: Tensor) -> Tensor:
    """The gradient with respect to the logits, in their memory; `to_gold`, `to_mean` (tokens,): those of the sums."""
    tokens, size = logits.shape
    block = min(BLOCK, triton.next_power_of_2(size))
    gradients = (to_gold.contiguous(), to_mean.contiguous())
    head_slopes[(tokens, triton.cdiv(size, block))](logits, gold, total, *gradients, size, N=block)
    return logits
