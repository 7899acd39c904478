"""Dropout; and bias, ReLU and dropout together: one pass forward, one backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbmi.model import dropout as dropout_module
from cbmi.model.dropout import DropoutDraw
from cbmi.model.kernels.random import CHANGING, kept, row_state

ELEMENTS = 4096  # of a tile of rows
# Where columns are summed: programs at most that share the rows, and their tile.
PROGRAMS = 256
ROWS = 16
COLUMNS = 256


@triton.jit(do_not_specialize=CHANGING)
def drop(
    x, bias, out, seed, site, threshold, scale, rows,
    width: tl.constexpr, RELU: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """out = dropout(x), or with RELU dropout(max(x + bias, 0)); x and out (rows, width)."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, N)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + place, inside, 0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(
            value + tl.load(bias + column, column < width, 0.0).to(tl.float32)[None, :], 0.0
        )
    if DROP:
        keep = kept(row_state(seed, site, row)[:, None], column[None, :], threshold)
        value = tl.where(keep, value * scale, 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["rows"])
def relu_backward(
    grad, out, result, partial, scale, rows, width: tl.constexpr, R: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """result = the gradient of x + bias; partial (programs, width): the bias's, by program.

    out: the forward result. It is 0 wherever ReLU or dropout stopped the value, so it says where
    the gradient passes.
    """
    column = tl.program_id(1) * N + tl.arange(0, N)
    sums = tl.zeros([R, N], tl.float32)
    for first in range(tl.program_id(0) * R, rows, tl.num_programs(0) * R):
        row = first + tl.arange(0, R)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        passes = tl.load(out + place, inside, 0.0) > 0
        value = tl.where(passes, tl.load(grad + place, inside, 0.0).to(tl.float32) * scale, 0.0)
        tl.store(result + place, value.to(result.dtype.element_ty), inside)
        sums += value
    tl.store(partial + tl.program_id(0) * width + column, tl.sum(sums, 0), column < width)


def tile(width: int, elements: int = ELEMENTS) -> dict[str, int]:
    """R rows of N columns at a time, about so many elements."""
    columns = triton.next_power_of_2(width)
    return {"R": max(1, elements // columns), "N": columns}


def _launch_drop(x: Tensor, out: Tensor, bias: Tensor | None, draw: DropoutDraw) -> Tensor:
    """Dropout of x into `out`; with a bias, of max(x + bias, 0)."""
    rows, width = x.shape
    size = tile(width)
    drop[(triton.cdiv(rows, size["R"]),)](
        x,
        x if bias is None else bias,
        out,
        x if draw.seed is None else draw.seed,  # not read where nothing is dropped
        draw.site,
        dropout_module.threshold(draw.rate),
        1 / (1 - draw.rate),
        rows,
        width=width,
        RELU=bias is not None,
        DROP=draw.rate > 0,
        **size,
    )
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, draw: DropoutDraw) -> Tensor:
        ctx.draw = draw
        return _launch_drop(x.contiguous(), torch.empty_like(x), None, draw)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        return _launch_drop(grad, torch.empty_like(grad), None, ctx.draw), None


class _ReluDropout(torch.autograd.Function):
    """In place: the layer before does not need its own result.

    The gradient passes where the result is above 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, draw: DropoutDraw) -> Tensor:
        ctx.rate = draw.rate
        ctx.bias_dtype = bias.dtype
        ctx.mark_dirty(x)
        _launch_drop(x, x, bias, draw)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (out,) = ctx.saved_tensors
        rows, width = out.shape
        columns = min(COLUMNS, triton.next_power_of_2(width))
        programs = min(PROGRAMS, triton.cdiv(rows, ROWS))
        grad_x = torch.empty_like(out)
        partial = out.new_empty(programs, width, dtype=torch.float32)
        relu_backward[(programs, triton.cdiv(width, columns))](
            grad.contiguous(),
            out,
            grad_x,
            partial,
            1 / (1 - ctx.rate),
            rows,
            width=width,
            R=ROWS,
            N=columns,
        )
        return grad_x, partial.sum(0).to(ctx.bias_dtype), None


def dropout(x: Tensor, draw: DropoutDraw) -> Tensor:
    """x (rows, columns) with a share of `draw.rate` of its entries 0."""
    result: Tensor = _Dropout.apply(x, draw)
    return result


def relu_dropout(x: Tensor, bias: Tensor, draw: DropoutDraw) -> Tensor:
    """max(x + bias, 0) with dropout, in the memory of x (rows, columns), which is contiguous."""
    result: Tensor = _ReluDropout.apply(x, bias, draw)
    return result
