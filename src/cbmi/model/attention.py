"""Attention within and between packed sentences.

Two ways that give the same result: on a GPU in half precision the variable-length flash kernel, elsewhere padded
rows through `scaled_dot_product_attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbmi.model.packed import Layout


class SelfAttention(nn.Module):
    """Projections around an attention among tokens of one kind."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (tokens, width) → queries, keys, values (tokens, heads, width / heads)."""
        return self.inputs(x).view(len(x), 3, self.heads, -1).unbind(1)


class CrossAttention(nn.Module):
    """Projections around an attention from target to source tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def project_query(self, x: Tensor) -> Tensor:
        return self.query(x).view(len(x), self.heads, -1)

    def project_memory(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder states (tokens, width) → keys, values (tokens, heads, width / heads)."""
        return self.memory(states).view(len(states), 2, self.heads, -1).unbind(1)


def attend(
    query: Tensor, key: Tensor, value: Tensor, queries: Layout, keys: Layout, causal: bool, dropout: float
) -> Tensor:
    """Attention of each sentence's queries to the same sentence's keys: (tokens, heads, size) → the same."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    way = attend_flash if query.is_cuda and half and fits else attend_padded
    return way(query, key, value, queries, keys, causal, dropout)


def attend_padded(
    query: Tensor, key: Tensor, value: Tensor, queries: Layout, keys: Layout, causal: bool, dropout: float
) -> Tensor:
    """The plain way: padded rows, a mask for the padding (a causal row sees only real tokens anyway)."""
    mask = None if causal else keys.filled[:, None, None, :]
    rows = F.scaled_dot_product_attention(
        to_rows(query, queries),
        to_rows(key, keys),
        to_rows(value, keys),
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
    )
    grid = rows.transpose(1, 2).reshape(queries.sentences * queries.longest, *query.shape[1:])
    return _Gather.apply(grid, queries.place)


def to_rows(x: Tensor, layout: Layout) -> Tensor:
    """(tokens, heads, size) → (sentences, heads, longest, size), zeros where there is no token."""
    grid = _Scatter.apply(x, layout.place, layout.sentences * layout.longest)
    return grid.view(layout.sentences, layout.longest, *x.shape[1:]).transpose(1, 2)


def attend_flash(
    query: Tensor, key: Tensor, value: Tensor, queries: Layout, keys: Layout, causal: bool, dropout: float
) -> Tensor:
    """The fast way: PyTorch's own variable-length flash attention, which needs no padding at all."""
    result = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        queries.starts,
        keys.starts,
        queries.longest,
        keys.longest,
        dropout,
        causal,
        False,
    )
    return result[0]


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
