"""Transformer layers: post-norm, ReLU, as in the paper's base and big models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbmi.model.attention import CrossAttention, SelfAttention

# (query, key, value, layer) → mixed values. How tokens see one another is the caller's: packed sentences in
# training, one new token and a cache in decoding.
Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]


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
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.width, shape.feed_forward)
        self.outer = nn.Linear(shape.feed_forward, shape.width)
        self.dropout = nn.Dropout(shape.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(F.relu(self.inner(x))))


class Layer(nn.Module):
    """Self-attention, attention to the source where `cross` is set, feed-forward; each with residual and norm."""

    def __init__(self, shape: Shape, cross: bool) -> None:
        super().__init__()
        self.self_attention = SelfAttention(shape.width, shape.heads)
        self.self_norm = nn.LayerNorm(shape.width)
        if cross:
            self.cross_attention = CrossAttention(shape.width, shape.heads)
            self.cross_norm = nn.LayerNorm(shape.width)
        self.feed_forward = FeedForward(shape)
        self.feed_forward_norm = nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self,
        x: Tensor,
        number: int,
        attend: Attend,
        memory: tuple[Tensor, Tensor] | None = None,
        attend_memory: Attend | None = None,
    ) -> Tensor:
        """x (tokens, width) → the same; `memory` holds this layer's keys and values of the source."""
        mixed = attend(*self.self_attention.project(x), number).flatten(1)
        x = self.self_norm(x + self.dropout(self.self_attention.output(mixed)))
        if memory is not None:
            query = self.cross_attention.project_query(x)
            mixed = attend_memory(query, *memory, number).flatten(1)
            x = self.cross_norm(x + self.dropout(self.cross_attention.output(mixed)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class Embedding(nn.Module):
    """Piece embeddings scaled by sqrt(width) plus sinusoidal positions; the matrix may be shared."""

    def __init__(self, weight: nn.Parameter, dropout: float) -> None:
        super().__init__()
        self.weight = weight
        self.dropout = nn.Dropout(dropout)
        self.waves = sinusoids(512, weight.shape[1])  # no buffer: nothing to save, nothing to keep equal on ranks

    def forward(self, ids: Tensor, position: Tensor, longest: int) -> Tensor:
        """ids, position (tokens,) → (tokens, width); no position is `longest` or above."""
        width = self.weight.shape[1]
        if longest > len(self.waves):
            self.waves = sinusoids(2 * longest, width)
        self.waves = self.waves.to(self.weight)
        return self.dropout(F.embedding(ids, self.weight) * width**0.5 + self.waves[position])


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
