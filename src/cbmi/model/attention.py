"""Attention within and between packed sentences.

Two ways that give the same result: a fused kernel on a GPU in half precision, padded rows
elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbmi.model.dropout import Dropout
from cbmi.model.packed import Layout
from cbmi.model.runtime import Runtime

LARGEST_FUSED_HEAD = 128  # head dimension (width / heads) that the fused kernel supports


class SelfAttention(nn.Module):
    """Projections around attention among the tokens of one side."""

    def __init__(self, width: int, heads: int, dropout: float, runtime: Runtime) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = Dropout(dropout, runtime)

    def project(self, x: Tensor) -> Tensor:
        """x (tokens, width) → query, key and value (tokens, 3, heads, width / heads)."""
        return self.inputs(x).view(len(x), 3, self.heads, -1)


class CrossAttention(nn.Module):
    """Projections around attention from target to source tokens."""

    def __init__(self, width: int, heads: int, dropout: float, runtime: Runtime) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.dropout = Dropout(dropout, runtime)

    def project_query(self, x: Tensor) -> Tensor:
        return self.query(x).view(len(x), self.heads, -1)

    def project_memory(self, states: Tensor) -> Tensor:
        """Encoder states (tokens, width) → key and value (tokens, 2, heads, width / heads)."""
        return self.memory(states).view(len(states), 2, self.heads, -1)


def self_attend(qkv: Tensor, layout: Layout, causal: bool, dropout: Dropout) -> Tensor:
    """Attention of each sentence's tokens to the same sentence's: (tokens, heads, size).

    qkv (tokens, 3, heads, size): query, key and value of each token.
    """
    if dropout.runtime.fused(qkv) and qkv.shape[-1] <= LARGEST_FUSED_HEAD:
        from cbmi.model.kernels.attention import fused_self_attention

        return fused_self_attention(qkv, layout, causal, dropout.draw())
    query, key, value = qkv.unbind(1)
    return attend_padded(query, key, value, layout, layout, causal, dropout)


def cross_attend(
    query: Tensor, memory: Tensor, queries: Layout, keys: Layout, dropout: Dropout
) -> Tensor:
    """Attention of each target sentence's tokens to its source sentence: (tokens, heads, size).

    query (target tokens, heads, size); memory (source tokens, 2, heads, size): key and value.
    """
    if dropout.runtime.fused(query) and query.shape[-1] <= LARGEST_FUSED_HEAD:
        from cbmi.model.kernels.attention import fused_cross_attention

        return fused_cross_attention(query, memory, queries, keys, dropout.draw())
    key, value = memory.unbind(1)
    return attend_padded(query, key, value, queries, keys, False, dropout)


def attend_padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Layout,
    keys: Layout,
    causal: bool,
    dropout: Dropout,
) -> Tensor:
    """The plain way: padded rows, in groups of consecutive sentences (best: of similar length)."""
    query_layouts = queries.groups(queries.cuts)
    key_layouts = keys.groups(queries.cuts)
    query_sizes = [int(layout.sizes.sum()) for layout in query_layouts]
    key_sizes = [int(layout.sizes.sum()) for layout in key_layouts]
    groups = zip(
        query.split(query_sizes),
        key.split(key_sizes),
        value.split(key_sizes),
        query_layouts,
        key_layouts,
        strict=True,
    )
    results = []
    first_token = 0
    for group in groups:
        results.append(_attend_rows(*group, causal, dropout, first_token))
        first_token += len(group[0])
    return results[0] if len(results) == 1 else torch.cat(results)


def _attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Layout,
    keys: Layout,
    causal: bool,
    dropout: Dropout,
    first_token: int,
) -> Tensor:
    """One group of sentences; `first_token`: the index of its first query in the whole batch.

    A mask covers the padding. (A causal row sees only real tokens anyway.) A sentence without keys
    gets zeros.
    """
    q = to_rows(query, queries)
    k = to_rows(key, keys)
    v = to_rows(value, keys)
    if causal:
        mask = None
    else:
        # A row without any key would be masked altogether, and its softmax NaN: let it see zeros.
        mask = (keys.filled | (keys.lengths == 0)[:, None])[:, None, None, :]
    if dropout.active:
        scores = (q @ k.transpose(2, 3)) * query.shape[-1] ** -0.5
        if mask is None:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        probabilities = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        heads = query.shape[1]
        factors = _attention_factors(
            queries, heads, keys.longest, first_token, dropout, probabilities.dtype
        )
        rows = factors * probabilities @ v
    else:
        rows = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    grid = rows.transpose(1, 2).reshape(queries.sentences * queries.longest, *query.shape[1:])
    return gather_rows(grid, queries.grid_index)


def _attention_factors(
    queries: Layout, heads: int, keys: int, first_token: int, dropout: Dropout, dtype: torch.dtype
) -> Tensor:
    """(sentences, heads, queries, keys): dropout by query token, head, and key position."""
    device = queries.starts.device
    position = torch.arange(queries.longest, device=device)
    token = queries.starts[:-1, None] + first_token + position
    rows = token[:, None, :] * heads + torch.arange(heads, device=device)[:, None]
    return dropout.factors(rows, keys, dtype)


def to_rows(x: Tensor, layout: Layout) -> Tensor:
    """(tokens, heads, size) → (sentences, heads, longest, size), zeros where there is no token."""
    grid = scatter_rows(x, layout.grid_index, layout.sentences * layout.longest)
    return grid.view(layout.sentences, layout.longest, *x.shape[1:]).transpose(1, 2)


def scatter_rows(rows: Tensor, place: Tensor, size: int) -> Tensor:
    """Rows at their places in a larger, zero-filled tensor."""
    result: Tensor = _Scatter.apply(rows, place, size)  # type: ignore[no-untyped-call]
    return result


def gather_rows(grid: Tensor, place: Tensor) -> Tensor:
    """The rows at given places: the reverse of `scatter_rows`."""
    result: Tensor = _Gather.apply(grid, place)  # type: ignore[no-untyped-call]
    return result


class _Scatter(torch.autograd.Function):
    """Places differ, so nothing is added up: the backward pass is a plain gather, deterministic on
    every device."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(place)
        return _scatter(rows, place, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return grad[place], None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.size = len(grid)
        return grid[place]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        return _scatter(grad, place, ctx.size), None


def _scatter(rows: Tensor, place: Tensor, size: int) -> Tensor:
    grid = rows.new_zeros(size, *rows.shape[1:])
    grid[place] = rows
    return grid
