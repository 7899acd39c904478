"""LayerNorm(x + dropout(y + b)): a sub-layer's end, in one pass forward and one backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbmi.model import dropout as plain
from cbmi.model.kernels.elementwise import tile
from cbmi.model.kernels.random import CHANGING, kept, row_state

FORWARD, BACKWARD = 2048, 1024  # elements of a tile of rows
PROGRAMS = 528  # at most, that share the rows in the backward pass: four for each multiprocessor of a large GPU


@triton.jit(do_not_specialize=CHANGING)
def norm_forward(
    x, y, y_bias, out, mean, spread, weight, bias, seed, site, threshold, scale, rows, eps,
    width: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
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
    center = tl.sum(z, 1) / width
    z = tl.where(inside, z - center[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(z * z, 1) / width + eps)
    w = tl.load(weight + column, column < width, 0.0).to(tl.float32)
    b = tl.load(bias + column, column < width, 0.0).to(tl.float32)
    result = z * inverse[:, None] * w[None, :] + b[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), inside)
    tl.store(mean + row, center, row < rows)
    tl.store(spread + row, inverse, row < rows)


@triton.jit(do_not_specialize=CHANGING)
def norm_backward(
    slope, x, y, y_bias, to_x, to_y, partial, mean, spread, weight, seed, site, threshold, scale, rows,
    width: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
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
        inverse = tl.load(spread + row, row < rows, 0.0)
        normal = tl.where(inside, (z - tl.load(mean + row, row < rows, 0.0)[:, None]) * inverse[:, None], 0.0)
        g = tl.load(slope + place, inside, 0.0).to(tl.float32)
        of_weight += g * normal
        of_bias += g
        g *= w[None, :]
        first_mean, second_mean = tl.sum(g, 1) / width, tl.sum(g * normal, 1) / width
        result = inverse[:, None] * (g - first_mean[:, None] - normal * second_mean[:, None])
        tl.store(to_x + place, result.to(to_x.dtype.element_ty), inside)
        if DROP:
            result = tl.where(keep, result * scale, 0.0)
            tl.store(to_y + place, result.to(to_y.dtype.element_ty), inside)
        of_y_bias += tl.where(inside, result, 0.0)
    sums = partial + tl.program_id(0) * 3 * width + column
    tl.store(sums, tl.sum(of_weight, 0), column < width)
    tl.store(sums + width, tl.sum(of_bias, 0), column < width)
    tl.store(sums + 2 * width, tl.sum(of_y_bias, 0), column < width)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, y_bias, weight, bias, eps, seed, site, rate):
        x, y = x.contiguous(), y.contiguous()
        rows, width = x.shape
        out = torch.empty_like(x)
        mean, spread = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
        size = tile(width, FORWARD)
        draw = (x if seed is None else seed, site, plain.threshold(rate), 1 / (1 - rate), rows)
        grid = (triton.cdiv(rows, size["R"]),)
        norm_forward[grid](
            x, y, y_bias, out, mean, spread, weight, bias, *draw, eps, width=width, DROP=rate > 0, **size
        )
        ctx.save_for_backward(x, y, y_bias, weight, mean, spread, *([] if seed is None else [seed]))
        ctx.settings = (site, rate)
        return out

    @staticmethod
    def backward(ctx, slope):
        x, y, y_bias, weight, mean, spread, *seed = ctx.saved_tensors
        site, rate = ctx.settings
        rows, width = x.shape
        size = tile(width, BACKWARD)
        programs = min(PROGRAMS, triton.cdiv(rows, size["R"]))
        to_x = torch.empty_like(x)
        to_y = torch.empty_like(y) if rate > 0 else to_x
        partial = x.new_empty(programs, 3, width, dtype=torch.float32)
        draw = (*(seed or [x]), site, plain.threshold(rate), 1 / (1 - rate), rows)
        pointers = (slope.contiguous(), x, y, y_bias, to_x, to_y, partial, mean, spread, weight)
        norm_backward[(programs,)](*pointers, *draw, width=width, DROP=rate > 0, **size)
        of_weight, of_bias, of_y_bias = partial.sum(0).to(weight.dtype)
        return to_x, to_y, of_y_bias, of_weight, of_bias, None, None, None, None


def add_norm(
    x: Tensor,
    y: Tensor,
    y_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    seed: Tensor | None,
    site: int,
    rate: float,
) -> Tensor:
    """LayerNorm(x + dropout(y + y_bias)); x, y (rows, width) in one precision, the others (width,)."""
    return _AddNorm.apply(x, y, y_bias, weight, bias, eps, seed, site, rate)
