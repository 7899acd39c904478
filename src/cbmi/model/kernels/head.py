"""Two passes over a matrix of logits: sums of each row forward, gradients in place backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def head_sums(logits, gold, of_gold, of_mean, lse_of_row, size, N: tl.constexpr):
    """One pass over logits (rows, size): log p(gold), mean over v of log p(v), log-sum-exp.

    The mean needs no second pass: it is the mean of the logits minus log-sum-exp.
    """
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
    tl.store(lse_of_row + row, lse)


@triton.jit
def head_grads(logits, gold, lse_of_row, grad_gold, grad_mean, size, N: tl.constexpr):
    """The gradient of the logits, in their place.

    With g and m the gradients of log p(gold) and of the mean, it is
    g·[v is gold] + m/size - (g + m)·p(v).
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * N + tl.arange(0, N)
    value = tl.load(logits + row * size + column, column < size, 0.0).to(tl.float32)
    g = tl.load(grad_gold + row)
    m = tl.load(grad_mean + row)
    grad = m / size - (g + m) * tl.exp(value - tl.load(lse_of_row + row))
    grad += tl.where(column == tl.load(gold + row), g, 0.0)
    tl.store(logits + row * size + column, grad.to(logits.dtype.element_ty), column < size)


def row_sums(logits: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p(gold), mean over v of log p(v), and log-sum-exp: (tokens,) each, in float32.

    logits (tokens, vocabulary); gold (tokens,).
    """
    tokens, size = logits.shape
    of_gold, of_mean, lse_of_row = (logits.new_empty(tokens, dtype=torch.float32) for _ in range(3))
    head_sums[(tokens,)](
        logits, gold, of_gold, of_mean, lse_of_row, size, N=min(BLOCK, triton.next_power_of_2(size))
    )
    return of_gold, of_mean, lse_of_row


def grads_in_place(
    logits: Tensor, gold: Tensor, lse_of_row: Tensor, grad_gold: Tensor, grad_mean: Tensor
) -> Tensor:
    """The gradient of the logits, in their memory.

    grad_gold, grad_mean (tokens,): the gradients of what `row_sums` gave.
    """
    tokens, size = logits.shape
    block = min(BLOCK, triton.next_power_of_2(size))
    gradients = (grad_gold.contiguous(), grad_mean.contiguous())
    head_grads[(tokens, triton.cdiv(size, block))](
        logits, gold, lse_of_row, *gradients, size, N=block
    )
    return logits
