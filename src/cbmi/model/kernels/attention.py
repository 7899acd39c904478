"""Attention within and between packed sentences, with dropout: one kernel forward, one backward.

A program takes a block of consecutive tokens, whatever sentences they belong to, and goes through
the keys of just those sentences. Sentences are short: tiles are small, and nothing is spent on
padding.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cbmi.model import dropout
from cbmi.model.dropout import DropoutDraw
from cbmi.model.kernels.random import DROPOUT_ARGUMENTS, kept, row_state
from cbmi.model.packed import Layout

SIZES = ["queries", "keys"]

# Tokens in a tile of queries and of keys (and the other way round in the gradient of the keys),
# found by trial.
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
    tl.store(
        pointer + place,
        values.to(pointer.dtype.element_ty),
        inside[:, None] & (column < SIZE)[None, :],
    )


@triton.jit
def _span(sentence, starts, first, tokens, BLOCK: tl.constexpr):
    """Where the other side's tokens of a block's sentences begin and end."""
    last = tl.minimum(first + BLOCK, tokens) - 1
    return tl.load(starts + tl.load(sentence + first)), tl.load(
        starts + tl.load(sentence + last) + 1
    )


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
    """A block of queries: tokens, which are real, sentences, vectors, dropout state, key range."""
    query = first + tl.arange(0, M)
    real = query < queries
    begin, end = _span(sentence, key_starts, first, queries, M)
    if CAUSAL:
        end = tl.minimum(end, first + M)
    state = row_state(seed, site, query * heads + head) if DROP else query
    tile = _rows(q, query, real, stride, head, SIZE, D)
    return query, real, tl.load(sentence + query, real, -1), tile, state, begin, end


@triton.jit(do_not_specialize=[*DROPOUT_ARGUMENTS, *SIZES])
def attend_forward(
    q, k, v, out, total, query_sentence, key_sentence, key_starts, key_position, queries, keys,
    stride_q, stride_k, scale, seed, site, threshold, factor, heads: tl.constexpr, SIZE:
    tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D:
    tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * M
    head = tl.program_id(1)
    query, real, mine, tile, state, begin, end = _queries(
        q,
        query_sentence,
        key_starts,
        queries,
        stride_q,
        seed,
        site,
        first,
        head,
        heads,
        SIZE,
        CAUSAL,
        DROP,
        M,
        D,
    )
    highest = tl.full([M], -1e30, tl.float32)
    sums = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        there = key < end
        theirs = tl.load(key_sentence + key, there, -2)
        s, same = _scores(
            tile,
            _rows(k, key, there, stride_k, head, SIZE, D),
            query,
            key,
            mine,
            theirs,
            scale,
            CAUSAL,
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
def _output_grads(
    grad_out,
    out,
    total,
    query,
    real,
    queries,
    head,
    heads: tl.constexpr,
    SIZE: tl.constexpr,
    D: tl.constexpr,
):
    """Of a block of queries: the result's gradient, its product with the result, log-sum-exp."""
    g = _rows(grad_out, query, real, heads * SIZE, head, SIZE, D)
    o = _rows(out, query, real, heads * SIZE, head, SIZE, D)
    lse = tl.load(total + head.to(tl.int64) * queries + query, real, 0.0)
    return g, tl.sum(g.to(tl.float32) * o.to(tl.float32), 1), lse


@triton.jit
def _tile_grads(
    g, values, share, lse, s, same, state, position, threshold, factor, DROP: tl.constexpr
):
    """Of a tile: the probabilities after dropout and the gradient of the scores."""
    p = tl.where(same, tl.exp2(s - lse[:, None]), 0.0)
    grad_p = tl.dot(g, tl.trans(values), input_precision="ieee") * factor
    dropped = p * factor
    if DROP:
        keep = kept(state[:, None], position[None, :], threshold)
        grad_p = tl.where(keep, grad_p, 0.0)
        dropped = tl.where(keep, dropped, 0.0)
    return dropped, p * (grad_p - share[:, None])


@triton.jit
def _grad_of_queries(
    q, k, v, out, grad_out, total, grad_q, query_sentence, key_sentence, key_starts, key_position,
    queries, stride_q, stride_k, scale, step, seed, site, threshold, factor, first, head,
    heads: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries."""
    query, real, mine, tile, state, begin, end = _queries(
        q,
        query_sentence,
        key_starts,
        queries,
        stride_q,
        seed,
        site,
        first,
        head,
        heads,
        SIZE,
        CAUSAL,
        DROP,
        M,
        D,
    )
    g, share, lse = _output_grads(grad_out, out, total, query, real, queries, head, heads, SIZE, D)
    result = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        there = key < end
        theirs = tl.load(key_sentence + key, there, -2)
        position = tl.load(key_position + key, there, 0).to(tl.int32)
        their_keys = _rows(k, key, there, stride_k, head, SIZE, D)
        values = _rows(v, key, there, stride_k, head, SIZE, D)
        s, same = _scores(tile, their_keys, query, key, mine, theirs, scale, CAUSAL)
        _, grad_s = _tile_grads(
            g, values, share, lse, s, same, state, position, threshold, factor, DROP
        )
        result += tl.dot(grad_s.to(their_keys.dtype), their_keys, input_precision="ieee")
    _store(grad_q, result * step, query, real, stride_q, head, SIZE, D)


@triton.jit
def _grad_of_keys(
    q, k, v, out, grad_out, total, grad_k, grad_v, query_sentence, key_sentence, query_starts,
    key_position, queries, keys, stride_q, stride_k, scale, step, seed, site, threshold, factor,
    first, head, heads: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr,
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
    key_grads = tl.zeros([M, D], tl.float32)
    value_grads = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        query = start + tl.arange(0, N)
        real = query < end
        mine = tl.load(query_sentence + query, real, -1)
        tile = _rows(q, query, real, stride_q, head, SIZE, D)
        g, share, lse = _output_grads(
            grad_out, out, total, query, real, queries, head, heads, SIZE, D
        )
        state = row_state(seed, site, query * heads + head) if DROP else query
        s, same = _scores(tile, their_keys, query, key, mine, theirs, scale, CAUSAL)
        dropped, grad_s = _tile_grads(
            g, values, share, lse, s, same, state, position, threshold, factor, DROP
        )
        value_grads += tl.dot(tl.trans(dropped).to(g.dtype), g, input_precision="ieee")
        key_grads += tl.dot(tl.trans(grad_s).to(tile.dtype), tile, input_precision="ieee")
    _store(grad_k, key_grads * step, key, there, stride_k, head, SIZE, D)
    _store(grad_v, value_grads, key, there, stride_k, head, SIZE, D)


@triton.jit(do_not_specialize=[*DROPOUT_ARGUMENTS, *SIZES, "query_blocks"])
def attend_backward(
    q, k, v, out, grad_out, total, grad_q, grad_k, grad_v,
    query_sentence, key_sentence, query_starts, key_starts, key_position,
    queries, keys, stride_q, stride_k, scale, step, seed, site, threshold, factor, query_blocks,
    heads: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr, DROP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The first programs take blocks of queries, the others blocks of keys."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    if block < query_blocks:
        _grad_of_queries(
            q, k, v, out, grad_out, total, grad_q, query_sentence, key_sentence, key_starts,
            key_position, queries, stride_q, stride_k, scale, step, seed, site, threshold, factor,
            block * M, head, heads, SIZE, CAUSAL, DROP, M, N, D,
        )  # fmt: skip
    else:
        _grad_of_keys(
            q, k, v, out, grad_out, total, grad_k, grad_v, query_sentence, key_sentence,
            query_starts, key_position, queries, keys, stride_q, stride_k, scale, step, seed, site,
            threshold, factor, (block - query_blocks) * M, head, heads, SIZE, CAUSAL, DROP, M, N, D,
        )  # fmt: skip


class _Layouts(NamedTuple):
    """Of the queries and of the keys: the same in self-attention."""

    queries: Layout
    keys: Layout


def _launch_forward(
    ctx: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layouts: _Layouts,
    causal: bool,
    draw: DropoutDraw,
) -> tuple[Tensor, Tensor]:
    """The result (tokens, heads, size) and the log-sum-exp of the scores (heads, tokens)."""
    tokens, heads, size = query.shape
    out = query.new_empty(tokens, heads, size)
    lse = query.new_empty(heads, tokens, dtype=torch.float32)
    ctx.layouts = layouts
    ctx.draw = draw
    ctx.settings = {
        "heads": heads,
        "SIZE": size,
        "CAUSAL": causal,
        "DROP": draw.rate > 0,
        "D": max(16, triton.next_power_of_2(size)),
    }
    grid = (triton.cdiv(tokens, FORWARD["M"]), heads)
    attend_forward[grid](
        query,
        key,
        value,
        out,
        lse,
        layouts.queries.sentence,
        layouts.keys.sentence,
        layouts.keys.starts,
        layouts.keys.position,
        tokens,
        len(key),
        query.stride(0),
        key.stride(0),
        size**-0.5 / math.log(2),  # scores to the base 2
        *_dropout_arguments(draw, query),
        **ctx.settings,
        **FORWARD,
    )
    return out, lse


def _launch_backward(
    ctx: Any,
    inputs: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of query, key and value."""
    query, key, value = inputs
    layouts: _Layouts = ctx.layouts
    tokens, heads, size = query.shape
    query_blocks = triton.cdiv(tokens, BACKWARD["M"])
    key_blocks = triton.cdiv(len(key), BACKWARD["M"])
    attend_backward[(query_blocks + key_blocks, heads)](
        query,
        key,
        value,
        out,
        grad_out.contiguous(),
        lse,
        *grads,
        layouts.queries.sentence,
        layouts.keys.sentence,
        layouts.queries.starts,
        layouts.keys.starts,
        layouts.keys.position,
        tokens,
        len(key),
        query.stride(0),
        key.stride(0),
        size**-0.5 / math.log(2),
        size**-0.5,
        *_dropout_arguments(ctx.draw, query),
        query_blocks,
        **ctx.settings,
        **BACKWARD,
    )


def _dropout_arguments(draw: DropoutDraw, placeholder: Tensor) -> tuple[Any, ...]:
    """Seed, site, threshold and factor; a kernel that drops nothing does not read its seed."""
    seed = placeholder if draw.seed is None else draw.seed
    return seed, draw.site, dropout.threshold(draw.rate), 1 / (1 - draw.rate)


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Layout, causal: bool, draw: DropoutDraw) -> Tensor:
        query, key, value = qkv.unbind(1)
        out, lse = _launch_forward(ctx, query, key, value, _Layouts(layout, layout), causal, draw)
        ctx.save_for_backward(qkv, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, None, None]:
        qkv, out, lse = ctx.saved_tensors
        grad_qkv = torch.empty_like(qkv)
        query, key, value = qkv.unbind(1)
        grad_query, grad_key, grad_value = grad_qkv.unbind(1)
        grads = (grad_query, grad_key, grad_value)
        _launch_backward(ctx, (query, key, value), out, lse, grad_out, grads)
        return grad_qkv, None, None, None


class _CrossAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, memory: Tensor, layouts: _Layouts, draw: DropoutDraw
    ) -> Tensor:
        key, value = memory.unbind(1)
        out, lse = _launch_forward(ctx, query, key, value, layouts, False, draw)
        ctx.save_for_backward(query, memory, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, None, None]:
        query, memory, out, lse = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        grad_memory = torch.empty_like(memory)
        key, value = memory.unbind(1)
        grad_key, grad_value = grad_memory.unbind(1)
        grads = (grad_query, grad_key, grad_value)
        _launch_backward(ctx, (query, key, value), out, lse, grad_out, grads)
        return grad_query, grad_memory, None, None


def fused_self_attention(qkv: Tensor, layout: Layout, causal: bool, draw: DropoutDraw) -> Tensor:
    """`cbmi.model.attention.self_attend`: qkv (tokens, 3, heads, size) → (tokens, heads, size)."""
    result: Tensor = _SelfAttention.apply(qkv.contiguous(), layout, causal, draw)
    return result


def fused_cross_attention(
    query: Tensor, memory: Tensor, queries: Layout, keys: Layout, draw: DropoutDraw
) -> Tensor:
    """`cbmi.model.attention.cross_attend`.

    query (tokens, heads, size); memory (other tokens, 2, heads, size).
    """
    layouts = _Layouts(queries, keys)
    result: Tensor = _CrossAttention.apply(query.contiguous(), memory.contiguous(), layouts, draw)
    return result
