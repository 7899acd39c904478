"""Attention within and between packed sentences as differentiable functions: kernels, launched."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from cbmi.model import dropout
from cbmi.model.dropout import DropoutDraw
from cbmi.model.kernels.attention_kernels import BACKWARD, FORWARD, attend_backward, attend_forward
from cbmi.model.packed import Layout


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
