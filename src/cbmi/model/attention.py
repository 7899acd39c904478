"""Attention within and between packed sentences.

Two ways that give the same result: a fused kernel on a GPU in half precision, elsewhere padded rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbmi.model import kernels
from cbmi.model.dropout import Draws, Dropout
from cbmi.model.packed import Layout


class SelfAttention(nn.Module):
    """Projections around an attention among tokens of one kind."""

    def __init__(self, width: int, heads: int, dropout: float, draws: Draws) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = Dropout(dropout, draws)

    def project(self, x: Tensor) -> Tensor:
        """x (tokens, width) → queries, keys and values (tokens, 3, heads, width / heads)."""
        return self.inputs(x).view(len(x), 3, self.heads, -1)


class CrossAttention(nn.Module):
    """Projections around an attention from target to source tokens."""

    def __init__(self, width: int, heads: int, dropout: float, draws: Draws) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.dropout = Dropout(dropout, draws)

    def project_query(self, x: Tensor) -> Tensor:
        return self.query(x).view(len(x), self.heads, -1)

    def project_memory(self, states: Tensor) -> Tensor:
        """Encoder states (tokens, width) → keys and values (tokens, 2, heads, width / heads)."""
        return self.memory(states).view(len(states), 2, self.heads, -1)


def attend(
    first: Tensor, second: Tensor | None, queries: Layout, keys: Layout, causal: bool, dropout: Dropout
) -> Tensor:
    """Attention of each sentence's queries to the same sentence's keys: (tokens, heads, size).

    `first` holds queries, keys and values (tokens, 3, heads, size); or queries alone (tokens, heads, size), and
    `second` keys and values (other tokens, 2, heads, size).
    """
    if kernels.fused(first) and first.shape[-1] <= 128:
        from cbmi.model.kernels.attention import attention

        return attention(first, second, (queries, keys), causal, *dropout.draw())
    query, key, value = first.unbind(1) if second is None else (first, *second.unbind(1))
    return attend_padded(query, key, value, queries, keys, causal, dropout)


def attend_padded(
    query: Tensor, key: Tensor, value: Tensor, queries: Layout, keys: Layout, causal: bool, dropout: Dropout
) -> Tensor:
    """The plain way: padded rows, in groups of sentences that stand together (best: of like length)."""
    cuts = queries.cuts
    groups = list(zip(queries.groups(cuts), keys.groups(cuts), strict=True))
    sizes = [[int(layout.sizes.sum()) for layout in side] for side in zip(*groups, strict=True)]
    parts = zip(query.split(sizes[0]), key.split(sizes[1]), value.split(sizes[1]), groups, strict=True)
    offsets = [0, *torch.tensor(sizes[0]).cumsum(0).tolist()]
    mixed = [
        _attend_rows(q, k, v, *layouts, causal, dropout, offset)
        for (q, k, v, layouts), offset in zip(parts, offsets[:-1], strict=True)
    ]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Layout,
    keys: Layout,
    causal: bool,
    dropout: Dropout,
    offset: int,
) -> Tensor:
    """One group; a mask covers the padding (a causal row sees only real tokens anyway). Without keys: zeros."""
    q, k, v = to_rows(query, queries), to_rows(key, keys), to_rows(value, keys)
    mask = None if causal else (keys.filled | (keys.lengths == 0)[:, None])[:, None, None, :]
    if dropout.drops:
        scores = (q @ k.transpose(2, 3)) * query.shape[-1] ** -0.5
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        shares = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        rows = _attend_factors(queries, query.shape[1], keys.longest, offset, dropout, shares.dtype) * shares @ v
    else:
        rows = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    grid = rows.transpose(1, 2).reshape(queries.sentences * queries.longest, *query.shape[1:])
    return _Gather.apply(grid, queries.place)


def _attend_factors(
    queries: Layout, heads: int, keys: int, offset: int, dropout: Dropout, dtype: torch.dtype
) -> Tensor:
    """(sentences, heads, queries, keys): dropout by query token, head, and place of the key in its sentence."""
    token = queries.starts[:-1, None] + offset + torch.arange(queries.longest, device=queries.starts.device)
    rows = token[:, None, :] * heads + torch.arange(heads, device=token.device)[:, None]
    return dropout.factors(rows, keys, dtype)


def to_rows(x: Tensor, layout: Layout) -> Tensor:
    """(tokens, heads, size) → (sentences, heads, longest, size), zeros where there is no token."""
    grid = _Scatter.apply(x, layout.place, layout.sentences * layout.longest)
    return grid.view(layout.sentences, layout.longest, *x.shape[1:]).transpose(1, 2)


class _Scatter(torch.autograd.Function):
    """Rows to their places in a larger, zero-filled tensor. Places differ, so nothing is added up: the backward
    pass is a plain gather, deterministic on every device."""

    @staticmethod
    def forward(ctx, rows: Tensor, place: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(place)
        return _scatter(rows, place, size)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (place,) = ctx.saved_tensors
        return gradient[place], None, None


class _Gather(torch.autograd.Function):
    """The rows at given places: the reverse of `_Scatter`."""

    @staticmethod
    def forward(ctx, grid: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.size = len(grid)
        return grid[place]

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (place,) = ctx.saved_tensors
        return _scatter(gradient, place, ctx.size), None


def _scatter(rows: Tensor, place: Tensor, size: int) -> Tensor:
    grid = rows.new_zeros(size, *rows.shape[1:])
    grid[place] = rows
    return grid
