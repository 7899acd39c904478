"""Two passes' logits of the same tokens: row sums forward, gradients in place backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbmi.model.kernels.head import BLOCK


@triton.jit
def pair_rows(logits, gold, sums, tokens, size, N: tl.constexpr):
    """`sums` (4, 2, tokens): log p(gold), mean log p, log-sum-exp, expected difference.

    logits (2, tokens, size): z of the first pass, z' of the second. The expected difference is
    that of z - z', under each pass's own softmax. The divergence needs nothing else:
    KL(p ‖ p') = E_p[z - z'] - lse + lse'.
    """
    row = tl.program_id(0).to(tl.int64)
    first = logits + row * size
    second = logits + (tokens + row) * size
    highest_first = -1e30
    highest_second = -1e30
    added_first = tl.zeros([N], tl.float32)
    added_second = tl.zeros([N], tl.float32)
    moved_first = tl.zeros([N], tl.float32)  # sums of exp(z)·(z - z')
    moved_second = tl.zeros([N], tl.float32)
    plain_first = tl.zeros([N], tl.float32)
    plain_second = tl.zeros([N], tl.float32)
    for start in range(0, size, N):
        column = start + tl.arange(0, N)
        inside = column < size
        z = tl.load(first + column, inside, 0.0).to(tl.float32)
        w = tl.load(second + column, inside, 0.0).to(tl.float32)
        difference = z - w
        plain_first += z
        plain_second += w
        z = tl.where(inside, z, float("-inf"))
        w = tl.where(inside, w, float("-inf"))
        higher = tl.maximum(highest_first, tl.max(z, 0))
        shrink = tl.exp(highest_first - higher)
        weight = tl.exp(z - higher)
        added_first = added_first * shrink + weight
        moved_first = moved_first * shrink + weight * difference
        highest_first = higher
        higher = tl.maximum(highest_second, tl.max(w, 0))
        shrink = tl.exp(highest_second - higher)
        weight = tl.exp(w - higher)
        added_second = added_second * shrink + weight
        moved_second = moved_second * shrink + weight * difference
        highest_second = higher
    label = tl.load(gold + row)
    total = tl.sum(added_first, 0)
    lse = highest_first + tl.log(total)
    tl.store(sums + row, tl.load(first + label).to(tl.float32) - lse)
    tl.store(sums + 2 * tokens + row, tl.sum(plain_first, 0) / size - lse)
    tl.store(sums + 4 * tokens + row, lse)
    tl.store(sums + 6 * tokens + row, tl.sum(moved_first, 0) / total)
    total = tl.sum(added_second, 0)
    lse = highest_second + tl.log(total)
    tl.store(sums + tokens + row, tl.load(second + label).to(tl.float32) - lse)
    tl.store(sums + 3 * tokens + row, tl.sum(plain_second, 0) / size - lse)
    tl.store(sums + 5 * tokens + row, lse)
    tl.store(sums + 7 * tokens + row, tl.sum(moved_second, 0) / total)


@triton.jit
def pair_gradients(logits, gold, lse, expected, grads, tokens, size, N: tl.constexpr):
    """The gradient of both passes' logits, in their place.

    lse, expected (2, tokens): of `pair_rows`. grads (3, tokens): the gradients of log p(gold) and
    of mean log p, which both passes share, and of KL(p ‖ p') + KL(p' ‖ p). The last has, for z, the
    gradient p·(z - z' - E_p[z - z']) + p - p', and for z' the same with the passes exchanged.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * N + tl.arange(0, N)
    inside = column < size
    first = logits + row * size + column
    second = logits + (tokens + row) * size + column
    z = tl.load(first, inside, 0.0).to(tl.float32)
    w = tl.load(second, inside, 0.0).to(tl.float32)
    p = tl.exp(z - tl.load(lse + row))
    q = tl.exp(w - tl.load(lse + tokens + row))
    of_gold = tl.load(grads + row)
    of_mean = tl.load(grads + tokens + row)
    of_divergence = tl.load(grads + 2 * tokens + row)
    difference = z - w
    at_gold = tl.where(column == tl.load(gold + row), of_gold, 0.0) + of_mean / size
    apart = p - q
    grad_z = at_gold - (of_gold + of_mean) * p
    grad_z += of_divergence * (p * (difference - tl.load(expected + row)) + apart)
    grad_w = at_gold - (of_gold + of_mean) * q
    grad_w -= of_divergence * (q * (difference - tl.load(expected + tokens + row)) + apart)
    tl.store(first, grad_z.to(logits.dtype.element_ty), inside)
    tl.store(second, grad_w.to(logits.dtype.element_ty), inside)


def pair_sums(logits: Tensor, gold: Tensor) -> Tensor:
    """(4, 2, tokens): log p(gold), mean log p, log-sum-exp, expected z - z' of both passes.

    logits (2, tokens, vocabulary), contiguous; gold (tokens,).
    """
    _, tokens, size = logits.shape
    sums = logits.new_empty(4, 2, tokens, dtype=torch.float32)
    block = min(BLOCK, triton.next_power_of_2(size))
    pair_rows[(tokens,)](logits.contiguous(), gold, sums, tokens, size, N=block)
    return sums


def pair_grads_in_place(
    logits: Tensor, gold: Tensor, lse: Tensor, expected: Tensor, grads: Tensor
) -> Tensor:
    """The gradient of the logits, in their memory; lse, expected (2, tokens); grads (3, tokens)."""
    _, tokens, size = logits.shape
    block = min(BLOCK, triton.next_power_of_2(size))
    logits = logits.contiguous()
    pair_gradients[(tokens, triton.cdiv(size, block))](
        logits,
        gold,
        lse.contiguous(),
        expected.contiguous(),
        grads.float().contiguous(),
        tokens,
        size,
        N=block,
    )
    return logits
