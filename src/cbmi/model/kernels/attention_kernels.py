"""Attention within and between packed sentences, with dropout: one kernel forward, one backward.

A program takes a block of consecutive tokens, whatever sentences they belong to, and goes through
the keys of just those sentences. Sentences are short: tiles are small, and nothing is spent on
padding.

The names in all kernels here:

    q (queries, heads, SIZE), k and v (keys, heads, SIZE); stride_q, stride_k: from token to token
    query_sentence, key_sentence (tokens,): each token's sentence
    query_starts, key_starts (sentences + 1,): where each sentence begins
    key_position (keys,): a key's place in its sentence, the column of its dropout draw
    scale: SIZE^-0.5 / ln 2, so that the softmax takes powers of 2; step: SIZE^-0.5
    total (heads, queries): log2 of the sum of 2^score, which the backward pass needs
    threshold, factor: of dropout; what is kept is multiplied by factor = 1 / (1 - rate)
    M, N: tokens in a tile of the program's own side and of the other; D: SIZE as a power of 2
"""

from __future__ import annotations

import triton
import triton.language as tl

from cbmi.model.kernels.random import DROPOUT_ARGUMENTS, kept, row_state

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
    """Where the other side's tokens of a block's sentences begin and end.

    Sentences follow one another on both sides, so those tokens are one range.
    """
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
    """out (queries, heads, SIZE) = dropout(softmax(step·q·kᵀ within the sentence))·v, and total.

    The softmax is computed in one pass over the keys: with the highest score so far, the sum of the
    powers and their mix of values, both of which shrink when a higher score comes.
    """
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
        s = tl.where(same, s, -1e30)  # finite: -inf - -inf would be NaN
        higher = tl.maximum(highest, tl.max(s, 1))
        p = tl.where(same, tl.exp2(s - higher[:, None]), 0.0)
        shrink = tl.exp2(highest - higher)
        sums = sums * shrink + tl.sum(p, 1)
        if DROP:
            # After the sum: dropout acts on the normalised probabilities.
            position = tl.load(key_position + key, there, 0).to(tl.int32)
            p = tl.where(kept(state[:, None], position[None, :], threshold), p, 0.0)
        values = _rows(v, key, there, stride_k, head, SIZE, D)
        mixed = mixed * shrink[:, None] + tl.dot(p.to(values.dtype), values, input_precision="ieee")
        highest = higher
    sums = tl.maximum(sums, 1e-30)  # 0 for a query without keys
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
    """Of a block of queries: the result's gradient, its product with the result, log-sum-exp.

    That product is the sum over the keys of p·(gradient of p), which the softmax's gradient
    subtracts.
    """
    g = _rows(grad_out, query, real, heads * SIZE, head, SIZE, D)
    o = _rows(out, query, real, heads * SIZE, head, SIZE, D)
    lse = tl.load(total + head.to(tl.int64) * queries + query, real, 0.0)
    return g, tl.sum(g.to(tl.float32) * o.to(tl.float32), 1), lse


@triton.jit
def _tile_grads(
    g, values, share, lse, s, same, state, position, threshold, factor, DROP: tl.constexpr
):
    """Of a tile: the probabilities after dropout, and the gradient of the scores.

    With p the softmax and g_p its gradient, the gradient of the scores is p·(g_p - Σ p·g_p); share
    is that sum (see `_output_grads`).
    """
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
