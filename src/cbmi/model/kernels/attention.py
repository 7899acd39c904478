"""Attention within and between packed sentences, with dropout: one kernel forward, one backward.

A program takes a block of consecutive tokens, whatever sentences they belong to, and goes through the keys of just
those sentences. Sentences are short: tiles are small, and nothing is spent on padding.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbmi.model import dropout as plain
from cbmi.model.kernels.random import CHANGING, kept, row_state

SIZES = ["queries", "keys"]

# Tokens in a tile of queries and of keys (and the other way round in the gradient of the keys), found by trial.
FORWARD = {"M": 64, "N": 32, "num_warps": 4, "num_stages": 1}
BACKWARD = {"M": 32, "N": 32, "num_warps": 2, "num_stages": 1}


@triton.jit
def _rows(pointer, token, inside, stride, head, SIZE: tl.constexpr, N: tl.constexpr):
    """(tokens, N): a head's vectors, 0 outside."""
    column = tl.arange(0, N)
    place = token.to(tl.int64)[:, None] * stride + head * SIZE + column[None, :]
    return tl.load(pointer + place, inside[:, None] & (column < SIZE)[None, :], 0.0)


@triton.jit
def _store(pointer, values, token, inside, stride, head, SIZE: tl.constexpr, N: tl.constexpr):
    column = tl.arange(0, N)
    place = token.to(tl.int64)[:, None] * stride + head * SIZE + column[None, :]
    tl.store(pointer + place, values.to(pointer.dtype.element_ty), inside[:, None] & (column < SIZE)[None, :])


@triton.jit
def _span(sentence, starts, first, tokens, BLOCK: tl.constexpr):
    """Where the other side's tokens of a block's sentences begin and end."""
    last = tl.minimum(first + BLOCK, tokens) - 1
    return tl.load(starts + tl.load(sentence + first)), tl.load(starts + tl.load(sentence + last) + 1)


@triton.jit
def _scores(q, k, query, key, of_query, of_key, scale, CAUSAL: tl.constexpr):
    """Scores to the base 2 of a tile, and which of them count."""
    same = of_query[:, None] == of_key[None, :]
    if CAUSAL:
        same = same & (query[:, None] >= key[None, :])
    return tl.dot(q, tl.trans(k), input_precision="ieee") * scale, same


@triton.jit
def _queries(
    q, sentence, key_starts, queries, stride, seed, site, first, head,
    heads: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """A block of queries: tokens, which are real, sentences, vectors, dropout's state; where their keys lie."""
    query = first + tl.arange(0, M)
    real = query < queries
    begin, end = _span(sentence, key_starts, first, queries, M)
    if CAUSAL:
        end = tl.minimum(end, first + M)
    state = row_state(seed, site, query * heads + head) if DROP else query
    tile = _rows(q, query, real, stride, head, SIZE, D)
    return query, real, tl.load(sentence + query, real, -1), tile, state, begin, end


@triton.jit(do_not_specialize=[*CHANGING[:2], *SIZES])
def attend_forward(
    q, k, v, out, total, query_sentence, key_sentence, key_starts, key_position, queries, keys, stride_q, stride_k,
    scale, seed, site, threshold, factor, heads: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr,
    DROP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    first, head = tl.program_id(0) * M, tl.program_id(1)
    query, real, mine, tile, state, begin, end = _queries(
        q, query_sentence, key_starts, queries, stride_q, seed, site, first, head, heads, SIZE, CAUSAL, DROP, M, D
    )
    highest = tl.full([M], -1e30, tl.float32)
    sums = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        there = key < end
        theirs = tl.load(key_sentence + key, there, -2)
        s, same = _scores(
            tile, _rows(k, key, there, stride_k, head, SIZE, D), query, key, mine, theirs, scale, CAUSAL
        )
        s = tl.where(same, s, -1e30)
        higher = tl.maximum(highest, tl.max(s, 1))
        p = tl.where(same, tl.exp2(s - higher[:, None]), 0.0)
        shrink = tl.exp2(highest - higher)
        sums = sums * shrink + tl.sum(p, 1)
        if DROP:
            position = tl.load(key_position + key, there, 0).to(tl.int32)
            p = tl.where(kept(state[:, None], position[None, :], threshold), p, 0.0)
        values = _rows(v, key, there, stride_k, head, SIZE, D)
        mixed = mixed * shrink[:, None] + tl.dot(p.to(values.dtype), values, input_precision="ieee")
        highest = higher
    sums = tl.maximum(sums, 1e-30)
    _store(out, mixed * (factor / sums)[:, None], query, real, heads * SIZE, head, SIZE, D)
    tl.store(total + head.to(tl.int64) * queries + query, highest + tl.log2(sums), real)


@triton.jit
def _slopes(slope, out, total, query, real, queries, head, heads: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr):
    """Of a block of queries: the gradient of the result, its product with the result, the scores' log-sum."""
    g = _rows(slope, query, real, heads * SIZE, head, SIZE, D)
    o = _rows(out, query, real, heads * SIZE, head, SIZE, D)
    lse = tl.load(total + head.to(tl.int64) * queries + query, real, 0.0)
    return g, tl.sum(g.to(tl.float32) * o.to(tl.float32), 1), lse


@triton.jit
def _tile_slopes(g, values, share, lse, s, same, state, position, threshold, factor, DROP: tl.constexpr):
    """Of a tile: the probabilities after dropout and the gradient of the scores."""
    p = tl.where(same, tl.exp2(s - lse[:, None]), 0.0)
    to_p = tl.dot(g, tl.trans(values), input_precision="ieee") * factor
    dropped = p * factor
    if DROP:
        keep = kept(state[:, None], position[None, :], threshold)
        to_p = tl.where(keep, to_p, 0.0)
        dropped = tl.where(keep, dropped, 0.0)
    return dropped, p * (to_p - share[:, None])


@triton.jit
def _to_queries(
    q, k, v, out, slope, total, to_q, query_sentence, key_sentence, key_starts, key_position,
    queries, stride_q, stride_k, scale, step, seed, site, threshold, factor, first, head,
    heads: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries."""
    query, real, mine, tile, state, begin, end = _queries(
        q, query_sentence, key_starts, queries, stride_q, seed, site, first, head, heads, SIZE, CAUSAL, DROP, M, D
    )
    g, share, lse = _slopes(slope, out, total, query, real, queries, head, heads, SIZE, D)
    result = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        there = key < end
        theirs = tl.load(key_sentence + key, there, -2)
        position = tl.load(key_position + key, there, 0).to(tl.int32)
        their_keys = _rows(k, key, there, stride_k, head, SIZE, D)
        values = _rows(v, key, there, stride_k, head, SIZE, D)
        s, same = _scores(tile, their_keys, query, key, mine, theirs, scale, CAUSAL)
        _, to_s = _tile_slopes(g, values, share, lse, s, same, state, position, threshold, factor, DROP)
        result += tl.dot(to_s.to(their_keys.dtype), their_keys, input_precision="ieee")
    _store(to_q, result * step, query, real, stride_q, head, SIZE, D)


@triton.jit
def _to_keys(
    q, k, v, out, slope, total, to_k, to_v, query_sentence, key_sentence, query_starts, key_position,
    queries, keys, stride_q, stride_k, scale, step, seed, site, threshold, factor, first, head,
    heads: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and their values."""
    key = first + tl.arange(0, M)
    there = key < keys
    theirs = tl.load(key_sentence + key, there, -2)
    position = tl.load(key_position + key, there, 0).to(tl.int32)
    begin, end = _span(key_sentence, query_starts, first, keys, M)
    if CAUSAL:
        begin = tl.maximum(begin, first)
    their_keys = _rows(k, key, there, stride_k, head, SIZE, D)
    values = _rows(v, key, there, stride_k, head, SIZE, D)
    of_keys = tl.zeros([M, D], tl.float32)
    of_values = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        query = start + tl.arange(0, N)
        real = query < end
        mine = tl.load(query_sentence + query, real, -1)
        tile = _rows(q, query, real, stride_q, head, SIZE, D)
        g, share, lse = _slopes(slope, out, total, query, real, queries, head, heads, SIZE, D)
        state = row_state(seed, site, query * heads + head) if DROP else query
        s, same = _scores(tile, their_keys, query, key, mine, theirs, scale, CAUSAL)
        dropped, to_s = _tile_slopes(g, values, share, lse, s, same, state, position, threshold, factor, DROP)
        of_values += tl.dot(tl.trans(dropped).to(g.dtype), g, input_precision="ieee")
        of_keys += tl.dot(tl.trans(to_s).to(tile.dtype), tile, input_precision="ieee")
    _store(to_k, of_keys * step, key, there, stride_k, head, SIZE, D)
    _store(to_v, of_values, key, there, stride_k, head, SIZE, D)


@triton.jit(do_not_specialize=[*CHANGING[:2], *SIZES, "query_blocks"])
def attend_backward(
    q, k, v, out, slope, total, to_q, to_k, to_v,
    query_sentence, key_sentence, query_starts, key_starts, key_position,
    queries, keys, stride_q, stride_k, scale, step, seed, site, threshold, factor, query_blocks,
    heads: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The first programs take blocks of queries, the others blocks of keys."""
    block, head = tl.program_id(0), tl.program_id(1)
    if block < query_blocks:
        _to_queries(
            q, k, v, out, slope, total, to_q, query_sentence, key_sentence, key_starts, key_position,
            queries, stride_q, stride_k, scale, step, seed, site, threshold, factor, block * M, head,
            heads, SIZE, CAUSAL, DROP, M, N, D,
        )  # fmt: skip
    else:
        _to_keys(
            q, k, v, out, slope, total, to_k, to_v, query_sentence, key_sentence, query_starts, key_position,
            queries, keys, stride_q, stride_k, scale, step, seed, site, threshold, factor, (block - query_blocks) * M,
            head, heads, SIZE, CAUSAL, DROP, M, N, D,
        )  # fmt: skip


class _Attention(torch.autograd.Function):
    """`first` and `second`: (queries, keys and values in one tensor, None) or (queries, keys and values)."""

    @staticmethod
    def forward(ctx, first, second, layouts, causal, seed, site, rate):
        query, key, value = _parts(first, second)
        tokens, heads, size = query.shape
        out = query.new_empty(tokens, heads, size)
        total = query.new_empty(heads, tokens, dtype=torch.float32)
        queries, keys = layouts
        ctx.settings = {"heads": heads, "SIZE": size, "CAUSAL": causal, "DROP": rate > 0}
        ctx.settings["D"] = max(16, triton.next_power_of_2(size))
        ctx.layouts = layouts
        ctx.draw = (seed, site, plain.threshold(rate), 1 / (1 - rate))
        where = (queries.sentence, keys.sentence, keys.starts, keys.position)
        sizes = (tokens, len(key), query.stride(0), key.stride(0), size**-0.5 / math.log(2))
        draw = (query if seed is None else seed, *ctx.draw[1:])
        grid = (triton.cdiv(tokens, FORWARD["M"]), heads)
        attend_forward[grid](query, key, value, out, total, *where, *sizes, *draw, **ctx.settings, **FORWARD)
        ctx.save_for_backward(first, second, out, total)
        return out

    @staticmethod
    def backward(ctx, slope):
        first, second, out, total = ctx.saved_tensors
        query, key, value = _parts(first, second)
        queries, keys = ctx.layouts
        to_first, to_second = torch.empty_like(first), None if second is None else torch.empty_like(second)
        tokens, heads, size = query.shape
        where = (queries.sentence, keys.sentence, queries.starts, keys.starts, keys.position)
        sizes = (tokens, len(key), query.stride(0), key.stride(0), size**-0.5 / math.log(2), size**-0.5)
        draw = (query if ctx.draw[0] is None else ctx.draw[0], *ctx.draw[1:])
        blocks = triton.cdiv(tokens, BACKWARD["M"])
        grid = (blocks + triton.cdiv(len(key), BACKWARD["M"]), heads)
        tensors = (query, key, value, out, slope.contiguous(), total, *_parts(to_first, to_second))
        attend_backward[grid](*tensors, *where, *sizes, *draw, blocks, **ctx.settings, **BACKWARD)
        return to_first, to_second, None, None, None, None, None


def _parts(first: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return first.unbind(1) if second is None else (first, *second.unbind(1))


def attention(first: Tensor, second: Tensor | None, layouts, causal: bool, seed, site: int, rate: float) -> Tensor:
    """(tokens, heads, size) from `first` (tokens, 3, heads, size) with queries, keys and values; or from queries
    `first` (tokens, heads, size) and `second` (other tokens, 2, heads, size) with keys and values.

    layouts: those of the queries and of the keys. `seed` is None where nothing is dropped.
    """
    second = None if second is None else second.contiguous()
    return _Attention.apply(first.contiguous(), second, layouts, causal, seed, site, rate)
