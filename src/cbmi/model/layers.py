"""Transformer layers: post-norm, ReLU, as in the paper's base and big models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cbmi.model import kernels
from cbmi.model.attention import CrossAttention, SelfAttention
from cbmi.model.dropout import Draws, Dropout

# (what attends, number of the layer) → mixed values (tokens, heads, size). Self-attention gives queries, keys and
# values, attention to the source queries alone. How tokens see one another, and the source, is the caller's: packed
# sentences in training, one new token and a cache in decoding.
Attend = Callable[[Tensor, int], Tensor]
POSITIONS = 2048  # whose waves are kept


@dataclass(frozen=True)
class Shape:
    """The size of a network and its dropout rates."""

    width: int
    feed_forward: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0


class FeedForward(nn.Module):
    def __init__(self, shape: Shape, draws: Draws) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.width, shape.feed_forward)
        self.outer = nn.Linear(shape.feed_forward, shape.width)
        self.dropout = Dropout(shape.activation_dropout, draws)

    def hidden(self, x: Tensor) -> Tensor:
        """(tokens, width) → (tokens, feed_forward): what `outer` reads."""
        if not kernels.fused(x):
            return self.dropout(F.relu(self.inner(x)))
        from cbmi.model.kernels.elementwise import relu_dropout

        return relu_dropout(F.linear(x, self.inner.weight), self.inner.bias, *self.dropout.draw())


class AddNorm(nn.LayerNorm):
    """The end of a sub-layer: LayerNorm(x + dropout(linear(y)))."""

    def __init__(self, shape: Shape, draws: Draws) -> None:
        super().__init__(shape.width)
        self.dropout = Dropout(shape.dropout, draws)

    def forward(self, x: Tensor, y: Tensor, linear: nn.Linear) -> Tensor:
        if not kernels.fused(y):
            return super().forward(x + self.dropout(linear(y)))
        from cbmi.model.kernels.norm import add_norm

        settings = (linear.bias, self.weight, self.bias, self.eps, *self.dropout.draw())
        return add_norm(x.to(y.dtype), F.linear(y, linear.weight), *settings)


class Layer(nn.Module):
    """Self-attention, attention to the source where `cross` is set, feed-forward; each with residual and norm."""

    def __init__(self, shape: Shape, draws: Draws, cross: bool) -> None:
        super().__init__()
        self.self_attention = SelfAttention(shape.width, shape.heads, shape.attention_dropout, draws)
        self.self_norm = AddNorm(shape, draws)
        if cross:
            self.cross_attention = CrossAttention(shape.width, shape.heads, shape.attention_dropout, draws)
            self.cross_norm = AddNorm(shape, draws)
        self.feed_forward = FeedForward(shape, draws)
        self.feed_forward_norm = AddNorm(shape, draws)

    def forward(self, x: Tensor, number: int, attend: Attend, attend_source: Attend | None = None) -> Tensor:
        """x (tokens, width) → the same."""
        mixed = attend(self.self_attention.project(x), number).flatten(1)
        x = self.self_norm(x, mixed, self.self_attention.output)
        if attend_source is not None:
            mixed = attend_source(self.cross_attention.project_query(x), number).flatten(1)
            x = self.cross_norm(x, mixed, self.cross_attention.output)
        return self.feed_forward_norm(x, self.feed_forward.hidden(x), self.feed_forward.outer)


class Stack(nn.ModuleList):
    """Layers one after another."""

    recompute = False  # whether the backward pass computes the insides of the layers anew instead of keeping them

    def run(self, x: Tensor, attend: Attend, attend_source: Attend | None = None) -> Tensor:
        for number, layer in enumerate(self):
            inputs = (x, number, attend, attend_source)
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(*inputs)
        return x


class Embedding(nn.Module):
    """Piece embeddings scaled by sqrt(width) plus sinusoidal positions; the matrix may be shared."""

    def __init__(self, weight: nn.Parameter, dropout: float, draws: Draws) -> None:
        super().__init__()
        self.weight = weight
        self.dropout = Dropout(dropout, draws)
        self.waves = sinusoids(POSITIONS, weight.shape[1])  # no buffer: nothing to save or to keep equal on ranks

    def reach(self, longest: int) -> None:
        """Keep waves for so many positions."""
        if longest > len(self.waves):
            self.waves = sinusoids(longest, self.weight.shape[1]).to(self.weight)

    def forward(self, ids: Tensor, position: Tensor, longest: int) -> Tensor:
        """ids, position (tokens,) → (tokens, width); no position is `longest` or above."""
        width = self.weight.shape[1]
        self.waves = self.waves.to(self.weight)
        waves = self.waves if longest <= len(self.waves) else sinusoids(longest, width).to(self.weight)
        x = F.embedding(ids, self.weight) * width**0.5 + waves[position]
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return self.dropout(x)


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width): sines in the first half, cosines in the second, wavelengths 2π to 10000·2π."""
    rates = torch.exp(-torch.arange(width // 2) * (torch.log(torch.tensor(10000.0)) / (width // 2 - 1)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def embedding_matrix(size: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(size, width) * width**-0.5)


def initialise(module: nn.Module) -> None:
    """Glorot-uniform matrices, zero biases; a matrix that holds several projections is scaled as one of each."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith(("attention.inputs.weight", "cross_attention.memory.weight")):
            for part in parameter.chunk(parameter.shape[0] // parameter.shape[1]):
                nn.init.xavier_uniform_(part, gain=2**-0.5)
        elif name.endswith("cross_attention.query.weight"):
            nn.init.xavier_uniform_(parameter, gain=2**-0.5)
        elif parameter.dim() == 2 and not name.endswith("embedding.weight"):
            nn.init.xavier_uniform_(parameter)
