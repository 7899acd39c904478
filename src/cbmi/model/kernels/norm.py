"""x + dropout(y + b) and its LayerNorm: a sub-layer's end, in one pass forward, one backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbmi.model import dropout
from cbmi.model.dropout import DropoutDraw
from cbmi.model.kernels.elementwise import tile
from cbmi.model.kernels.random import CHANGING, kept, row_state

# Elements of a tile of rows.
FORWARD = 2048
BACKWARD = 1024
# Programs at most that share the rows in the backward pass: four per multiprocessor of a large GPU.
PROGRAMS = 528


@triton.jit(do_not_specialize=CHANGING)
def norm_forward(
    x, y, y_bias, total, out, mean, inverse_std, weight, bias, seed, site, threshold, scale, rows,
    eps, width: tl.constexpr, DROP: tl.constexpr, SUM: tl.constexpr, R: tl.constexpr, N:
    tl.constexpr,
):  # fmt: skip
    """total = x + dropout(y + y_bias), stored with SUM; out = LayerNorm(total)·weight + bias.

    x, y, total, out (rows, width); mean, inverse_std (rows,), in float32, for the backward pass. A
    program takes R rows; N is the width as a power of 2.
    """
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, N)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    z = tl.load(y + place, inside, 0.0).to(tl.float32)
    z += tl.load(y_bias + column, column < width, 0.0).to(tl.float32)[None, :]
    if DROP:
        keep = kept(row_state(seed, site, row)[:, None], column[None, :], threshold)
        z = tl.where(keep, z * scale, 0.0)
    z += tl.load(x + place, inside, 0.0).to(tl.float32)
    if SUM:
        tl.store(total + place, z.to(total.dtype.element_ty), inside)
    center = tl.sum(z, 1) / width
    z = tl.where(inside, z - center[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(z * z, 1) / width + eps)
    w = tl.load(weight + column, column < width, 0.0).to(tl.float32)
    b = tl.load(bias + column, column < width, 0.0).to(tl.float32)
    result = z * inverse[:, None] * w[None, :] + b[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), inside)
    tl.store(mean + row, center, row < rows)
    tl.store(inverse_std + row, inverse, row < rows)


@triton.jit(do_not_specialize=CHANGING)
def norm_backward(
    grad_out, grad_total, x, y, y_bias, grad_x, grad_y, partial, mean, inverse_std, weight, seed,
    site, threshold, scale, rows, width: tl.constexpr, DROP: tl.constexpr, SUM: tl.constexpr, R:
    tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The gradients of x and y, and of weight, bias and y_bias in parts.

    partial (programs, 3, width): each program's sum over its rows, to be added up by the caller;
    atomic sums would depend on the order. The sum x + dropout(y + y_bias) is computed again rather
    than stored. grad_total: with SUM, the gradient that reaches this sum past the norm.
    """
    column = tl.arange(0, N)
    w = tl.load(weight + column, column < width, 0.0).to(tl.float32)
    of_weight = tl.zeros([R, N], tl.float32)  # added up over rows at the end only
    of_bias = tl.zeros([R, N], tl.float32)
    of_y_bias = tl.zeros([R, N], tl.float32)
    added = tl.load(y_bias + column, column < width, 0.0).to(tl.float32)
    for first in range(tl.program_id(0) * R, rows, tl.num_programs(0) * R):
        row = first + tl.arange(0, R)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        z = tl.load(y + place, inside, 0.0).to(tl.float32) + added[None, :]
        if DROP:
            keep = kept(row_state(seed, site, row)[:, None], column[None, :], threshold)
            z = tl.where(keep, z * scale, 0.0)
        z += tl.load(x + place, inside, 0.0).to(tl.float32)
        inverse = tl.load(inverse_std + row, row < rows, 0.0)
        normal = tl.where(
            inside, (z - tl.load(mean + row, row < rows, 0.0)[:, None]) * inverse[:, None], 0.0
        )
        g = tl.load(grad_out + place, inside, 0.0).to(tl.float32)
        of_weight += g * normal
        of_bias += g
        g *= w[None, :]
        # Of LayerNorm, with n the normalised row: (g - mean(g) - n·mean(g·n)) / std.
        mean_of_g = tl.sum(g, 1) / width
        mean_of_product = tl.sum(g * normal, 1) / width
        result = inverse[:, None] * (g - mean_of_g[:, None] - normal * mean_of_product[:, None])
        if SUM:
            result += tl.load(grad_total + place, inside, 0.0).to(tl.float32)
        tl.store(grad_x + place, result.to(grad_x.dtype.element_ty), inside)
        if DROP:
            result = tl.where(keep, result * scale, 0.0)
            tl.store(grad_y + place, result.to(grad_y.dtype.element_ty), inside)
        of_y_bias += tl.where(inside, result, 0.0)
    sums = partial + tl.program_id(0) * 3 * width + column
    tl.store(sums, tl.sum(of_weight, 0), column < width)
    tl.store(sums + width, tl.sum(of_bias, 0), column < width)
    tl.store(sums + 2 * width, tl.sum(of_y_bias, 0), column < width)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        y_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        draw: DropoutDraw,
        keep_sum: bool,
    ) -> tuple[Tensor | None, Tensor]:
        x = x.contiguous()
        y = y.contiguous()
        rows, width = x.shape
        out = torch.empty_like(x)
        total = torch.empty_like(x) if keep_sum else None
        mean = x.new_empty(rows, dtype=torch.float32)
        inverse_std = x.new_empty(rows, dtype=torch.float32)
        size = tile(width, FORWARD)
        norm_forward[(triton.cdiv(rows, size["R"]),)](
            x,
            y,
            y_bias,
            x if total is None else total,  # not written without a sum
            out,
            mean,
            inverse_std,
            weight,
            bias,
            x if draw.seed is None else draw.seed,  # not read where nothing is dropped
            draw.site,
            dropout.threshold(draw.rate),
            1 / (1 - draw.rate),
            rows,
            eps,
            width=width,
            DROP=draw.rate > 0,
            SUM=keep_sum,
            **size,
        )
        ctx.save_for_backward(x, y, y_bias, weight, mean, inverse_std)
        ctx.draw = draw
        ctx.set_materialize_grads(False)  # a sum that nothing reads has no gradient
        return total, out

    @staticmethod
    def backward(
        ctx: Any, grad_total: Tensor | None, grad_out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None, None, None]:
        x, y, y_bias, weight, mean, inverse_std = ctx.saved_tensors
        draw: DropoutDraw = ctx.draw
        rows, width = x.shape
        size = tile(width, BACKWARD)
        programs = min(PROGRAMS, triton.cdiv(rows, size["R"]))
        grad_x = torch.empty_like(x)
        # Without dropout the two gradients are the same.
        grad_y = torch.empty_like(y) if draw.rate > 0 else grad_x
        partial = x.new_empty(programs, 3, width, dtype=torch.float32)
        norm_backward[(programs,)](
            grad_out.contiguous(),
            x if grad_total is None else grad_total.contiguous(),  # not read without a gradient
            x,
            y,
            y_bias,
            grad_x,
            grad_y,
            partial,
            mean,
            inverse_std,
            weight,
            x if draw.seed is None else draw.seed,
            draw.site,
            dropout.threshold(draw.rate),
            1 / (1 - draw.rate),
            rows,
            width=width,
            DROP=draw.rate > 0,
            SUM=grad_total is not None,
            **size,
        )
        grad_weight, grad_bias, grad_y_bias = partial.sum(0).to(weight.dtype)
        return grad_x, grad_y, grad_y_bias, grad_weight, grad_bias, None, None, None


def add_norm(
    x: Tensor,
    y: Tensor,
    y_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    draw: DropoutDraw,
    keep_sum: bool = False,
) -> tuple[Tensor, Tensor]:
    """x + dropout(y + y_bias) and its LayerNorm; x and y (rows, width), the others (width,).

    Without `keep_sum`, the norm takes the sum's place in the result.
    """
    total, normed = _AddNorm.apply(x, y, y_bias, weight, bias, eps, draw, keep_sum)
    return (total if keep_sum else normed), normed
