"""What a step of beam search needs: attention of one token, and one pass over its logits."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

KEYS = 16  # of a tile
BLOCK = 2048  # logits at a time


@triton.jit
def decode_attend(
    query, cache, holders, lengths, out, stride, longest, scale,
    heads: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, TABLE: tl.constexpr,
    N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Attention of one token of each hypothesis over a cache of keys and values.

    query (hypotheses, heads, SIZE), `stride` from one to the next; out likewise. A slot holds ROWS
    hypotheses, and lengths (slots,) says how many tokens each has so far.
    cache (holders, longest, 2, heads, SIZE): keys, then values. Without TABLE, a slot's hypotheses
    share one holder (the encoded source), and `holders` is not read. With it, every hypothesis has
    its own, and holders (hypotheses, longest) says which one of its slot has the token of each
    place: beams change places without moving their keys. scale: SIZE^-0.5 / ln 2, for powers of 2.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    group = row // ROWS
    keys = tl.load(lengths + group)
    column = tl.arange(0, D)
    q = tl.load(query + row.to(tl.int64) * stride + head * SIZE + column, column < SIZE, 0.0).to(
        tl.float32
    )
    highest = -1e30
    total = 0.0
    mixed = tl.zeros([D], tl.float32)
    for start in range(0, keys, N):
        key = start + tl.arange(0, N)
        there = key < keys
        holder = group
        if TABLE:
            holder = group * ROWS + tl.load(holders + row.to(tl.int64) * longest + key, there, 0)
        place = (holder.to(tl.int64) * longest + key) * (2 * heads * SIZE) + head * SIZE
        inside = there[:, None] & (column < SIZE)[None, :]
        k = tl.load(cache + place[:, None] + column[None, :], inside, 0.0).to(tl.float32)
        s = tl.where(there, tl.sum(k * q[None, :], 1) * scale, -1e30)
        higher = tl.maximum(highest, tl.max(s, 0))
        p = tl.where(there, tl.exp2(s - higher), 0.0)
        v = tl.load(cache + place[:, None] + heads * SIZE + column[None, :], inside, 0.0).to(
            tl.float32
        )
        shrink = tl.exp2(highest - higher)
        mixed = mixed * shrink + tl.sum(p[:, None] * v, 0)
        total = total * shrink + tl.sum(p, 0)
        highest = higher
    result = (mixed / tl.maximum(total, 1e-30)).to(out.dtype.element_ty)
    tl.store(out + (row.to(tl.int64) * heads + head) * SIZE + column, result, column < SIZE)


@triton.jit
def decode_survey(logits, total, maxima, size, chunks, CHUNK: tl.constexpr, N: tl.constexpr):
    """Of each row of logits (rows, size): log-sum-exp, and the highest of every CHUNK entries.

    total (rows,); maxima (rows, chunks).
    """
    row = tl.program_id(0).to(tl.int64)
    highest = -1e30
    added = tl.zeros([N], tl.float32)
    for start in range(0, size, N):
        column = start + tl.arange(0, N)
        value = tl.load(logits + row * size + column, column < size, float("-inf")).to(tl.float32)
        tops = tl.max(tl.reshape(value, (N // CHUNK, CHUNK)), 1)
        chunk = start // CHUNK + tl.arange(0, N // CHUNK)
        tl.store(maxima + row * chunks + chunk, tops, chunk < chunks)
        higher = tl.maximum(highest, tl.max(tops, 0))
        added = added * tl.exp(highest - higher) + tl.exp(value - higher)
        highest = higher
    tl.store(total + row, highest + tl.log(tl.sum(added, 0)))


def fused_attend_cache(
    query: Tensor, cache: Tensor, lengths: Tensor, rows: int, holders: Tensor | None
) -> Tensor:
    """`cbmi.decoding.slots.attend_cache` in one kernel."""
    hypotheses, heads, size = query.shape
    out = query.new_empty(hypotheses, heads, size)
    settings = {"heads": heads, "SIZE": size, "ROWS": rows, "TABLE": holders is not None, "N": KEYS}
    decode_attend[(hypotheses, heads)](
        query, cache, cache if holders is None else holders, lengths, out, query.stride(0),
        cache.shape[1], size**-0.5 / math.log(2), **settings, D=triton.next_power_of_2(size),
        num_warps=1,
    )  # fmt: skip
    return out


def fused_survey(logits: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """`cbmi.decoding.candidates.survey` in one pass."""
    rows, size = logits.shape
    chunks = triton.cdiv(size, chunk)
    total = logits.new_empty(rows, dtype=torch.float32)
    maxima = logits.new_empty(rows, chunks, dtype=torch.float32)
    decode_survey[(rows,)](logits, total, maxima, size, chunks, CHUNK=chunk, N=BLOCK)
    return total, maxima
