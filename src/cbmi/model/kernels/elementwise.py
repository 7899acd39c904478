"""Dropout; and bias, ReLU and dropout together: one pass forward, one backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbmi.model import dropout as plain
from cbmi.model.kernels.random import CHANGING, kept, row_state

ELEMENTS = 4096  # of a tile of rows
PROGRAMS, ROWS, COLUMNS = 256, 16, 256  # programs at most that share the rows where columns are summed, their tile


@triton.jit(do_not_specialize=CHANGING)
def drop(
    x, bias, out, seed, site, threshold, scale, rows,
    width: tl.constexpr, RELU: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, N)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + place, inside, 0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value + tl.load(bias + column, column < width, 0.0).to(tl.float32)[None, :], 0.0)
    if DROP:
        keep = kept(row_state(seed, site, row)[:, None], column[None, :], threshold)
        value = tl.where(keep, value * scale, 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["rows"])
def relu_backward(
    slope, out, result, partial, scale, rows, width: tl.constexpr, R: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    column = tl.program_id(1) * N + tl.arange(0, N)
    sums = tl.zeros([R, N], tl.float32)
    for first in range(tl.program_id(0) * R, rows, tl.num_programs(0) * R):
        row = first + tl.arange(0, R)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        passes = tl.load(out + place, inside, 0.0) > 0
        value = tl.where(passes, tl.load(slope + place, inside, 0.0).to(tl.float32) * scale, 0.0)
        tl.store(result + place, value.to(result.dtype.element_ty), inside)
        sums += value
    tl.store(partial + tl.program_id(0) * width + column, tl.sum(sums, 0), column < width)


def tile(width: int, elements: int = ELEMENTS) -> dict[str, int]:
    """R rows of N columns at a time, about so many elements."""
    columns = triton.next_power_of_2(width)
    return {"R": max(1, elements // columns), "N": columns}


def _dropped(x: Tensor, out: Tensor, bias: Tensor | None, seed: Tensor | None, site: int, rate: float) -> Tensor:
    rows, width = x.shape
    size, relu = tile(width), bias is not None
    settings = (x if seed is None else seed, site, plain.threshold(rate), 1 / (1 - rate), rows)
    grid = (triton.cdiv(rows, size["R"]),)
    drop[grid](x, bias if relu else x, out, *settings, width=width, RELU=relu, DROP=rate > 0, **size)
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, seed: Tensor, site: int, rate: float) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.site, ctx.rate = site, rate
        return _dropped(x.contiguous(), torch.empty_like(x), None, seed, site, rate)

    @staticmethod
    def backward(ctx, slope: Tensor):
        (seed,) = ctx.saved_tensors
        slope = slope.contiguous()
        return _dropped(slope, torch.empty_like(slope), None, seed, ctx.site, ctx.rate), None, None, None


class _ReluDropout(torch.autograd.Function):
    """In place: the layer before does not need its own result. Where the result is above 0, the gradient passes."""

    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor, seed: Tensor | None, site: int, rate: float) -> Tensor:
        ctx.rate, ctx.kind = rate, bias.dtype
        ctx.mark_dirty(x)
        _dropped(x, x, bias, seed, site, rate)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, slope: Tensor):
        (out,) = ctx.saved_tensors
        rows, width = out.shape
        size = {"R": ROWS, "N": min(COLUMNS, triton.next_power_of_2(width))}
        programs = min(PROGRAMS, triton.cdiv(rows, size["R"]))
        result, partial = torch.empty_like(out), out.new_empty(programs, width, dtype=torch.float32)
        grid = (programs, triton.cdiv(width, size["N"]))
        relu_backward[grid](slope.contiguous(), out, result, partial, 1 / (1 - ctx.rate), rows, width=width, **size)
        return result, partial.sum(0).to(ctx.kind), None, None, None


def dropout(x: Tensor, seed: Tensor, site: int, rate: float) -> Tensor:
    """x (rows, columns) with a share of `rate` of its entries 0."""
    return _Dropout.apply(x, seed, site, rate)


def relu_dropout(x: Tensor, bias: Tensor, seed: Tensor | None, site: int, rate: float) -> Tensor:
    """max(x + bias, 0) with dropout, in the memory of x (rows, columns), which has to be contiguous."""
    return _ReluDropout.apply(x, bias, seed, site, rate)
