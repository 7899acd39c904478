"""Transformer layers: ReLU, post-norm as in the paper's base and big models, or pre-norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cbmi.model.attention import CrossAttention, SelfAttention
from cbmi.model.dropout import Dropout
from cbmi.model.runtime import Runtime

# (query or query, key and value; number of the layer) → mixed values (tokens, heads, size).
# Self-attention passes query, key and value; attention to the source passes the query alone. How
# tokens see one another, and the source, is up to the caller: packed sentences in training, one new
# token and a cache in decoding.
Attend = Callable[[Tensor, int], Tensor]
POSITIONS = 2048  # positions whose sinusoids are kept


@dataclass(frozen=True)
class Shape:
    """The size of a network, where it normalises, and its dropout rates."""

    width: int
    feed_forward: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    norm: Literal["post", "pre"] = "post"


class FeedForward(nn.Module):
    def __init__(self, shape: Shape, runtime: Runtime) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.width, shape.feed_forward)
        self.outer = nn.Linear(shape.feed_forward, shape.width)
        self.dropout = Dropout(shape.activation_dropout, runtime)

    def hidden(self, x: Tensor) -> Tensor:
        """(tokens, width) → (tokens, feed_forward): what `outer` reads."""
        if not self.dropout.runtime.fused(x):
            return cast(Tensor, self.dropout(F.relu(self.inner(x))))
        from cbmi.model.kernels.elementwise import relu_dropout

        return relu_dropout(F.linear(x, self.inner.weight), self.inner.bias, self.dropout.draw())


class Stream(NamedTuple):
    """What goes from sub-layer to sub-layer, both (tokens, width)."""

    residual: Tensor  # what the next sub-layer's result is added to
    normed: Tensor  # what the next sub-layer reads; post-norm: the same tensor


class AddNorm(nn.LayerNorm):
    """The end of a sub-layer: x + dropout(linear(y)), and its LayerNorm.

    Post-norm continues with the norm alone, pre-norm with both. So in a pre-norm stack the norm
    that stands at the end of a sub-layer is the one that belongs before the next; the last is the
    final norm.
    """

    def __init__(self, shape: Shape, runtime: Runtime) -> None:
        super().__init__(shape.width)
        self.keeps_sum = shape.norm == "pre"
        self.dropout = Dropout(shape.dropout, runtime)

    def forward(self, stream: Stream, y: Tensor, linear: nn.Linear) -> Stream:  # type: ignore[override]
        x = stream.residual
        if not self.dropout.runtime.fused(y):
            total = x + self.dropout(linear(y))
            normed = super().forward(total)
            return Stream(total if self.keeps_sum else normed, normed)
        from cbmi.model.kernels.norm import add_norm

        # The bias of `linear` is added by the kernel, in the same pass.
        total, normed = add_norm(
            x.to(y.dtype),
            F.linear(y, linear.weight),
            linear.bias,
            self.weight,
            self.bias,
            self.eps,
            self.dropout.draw(),
            self.keeps_sum,
        )
        return Stream(total, normed)


class Layer(nn.Module):
    """Self-attention, cross-attention if `cross`, feed-forward; each with residual and norm."""

    def __init__(self, shape: Shape, runtime: Runtime, cross: bool) -> None:
        super().__init__()
        width = shape.width
        rate = shape.attention_dropout
        # The order of construction numbers the dropout sites and draws the initial weights.
        self.self_attention = SelfAttention(width, shape.heads, rate, runtime)
        self.self_norm = AddNorm(shape, runtime)
        if cross:
            self.cross_attention = CrossAttention(width, shape.heads, rate, runtime)
            self.cross_norm = AddNorm(shape, runtime)
        self.feed_forward = FeedForward(shape, runtime)
        self.feed_forward_norm = AddNorm(shape, runtime)

    def forward(
        self, stream: Stream, number: int, attend: Attend, attend_source: Attend | None = None
    ) -> Stream:
        mixed = attend(self.self_attention.project(stream.normed), number).flatten(1)
        stream = self.self_norm(stream, mixed, self.self_attention.output)
        if attend_source is not None:
            query = self.cross_attention.project_query(stream.normed)
            mixed = attend_source(query, number).flatten(1)
            stream = self.cross_norm(stream, mixed, self.cross_attention.output)
        hidden = self.feed_forward.hidden(stream.normed)
        return cast(Stream, self.feed_forward_norm(stream, hidden, self.feed_forward.outer))


class Stack(nn.ModuleList):
    """Layers one after another."""

    recompute = False  # keep only the layers' inputs; the backward pass computes the rest again

    def forward(
        self, stream: Stream, attend: Attend, attend_source: Attend | None = None
    ) -> Tensor:
        """What the last layer gives (tokens, width)."""
        for number, layer in enumerate(self):
            if self.recompute and torch.is_grad_enabled():
                # No random state to preserve: dropout is stateless.
                stream = checkpoint(
                    layer,
                    stream,
                    number,
                    attend,
                    attend_source,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                stream = layer(stream, number, attend, attend_source)
        return stream.normed

    def layer(self, number: int) -> Layer:
        return cast(Layer, self[number])


class Embedding(nn.Module):
    """Piece embeddings times sqrt(width), plus sinusoidal positions; the matrix may be shared.

    In a pre-norm network, the norm before the first layer follows.
    """

    def __init__(self, weight: nn.Parameter, shape: Shape, runtime: Runtime) -> None:
        super().__init__()
        self.weight = weight
        self.dropout = Dropout(shape.dropout, runtime)
        self.norm = nn.LayerNorm(shape.width) if shape.norm == "pre" else None
        # Not a buffer: nothing to save or to keep equal on ranks.
        self.positions = sinusoids(POSITIONS, weight.shape[1])

    def reserve_positions(self, longest: int) -> None:
        """Keep the sinusoids of so many positions."""
        if longest > len(self.positions):
            self.positions = sinusoids(longest, self.weight.shape[1]).to(self.weight)

    def forward(self, ids: Tensor, position: Tensor, longest: int) -> Stream:
        """ids, position (tokens,) → what the first layer reads; positions are below `longest`."""
        width = self.weight.shape[1]
        self.positions = self.positions.to(self.weight)
        positions = self.positions
        if longest > len(positions):
            positions = sinusoids(longest, width).to(self.weight)
        x = F.embedding(ids, self.weight) * width**0.5 + positions[position]
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        x = self.dropout(x)
        normed = x if self.norm is None else self.norm(x).to(x.dtype)
        return Stream(x, normed)


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width): sines, then cosines, with wavelengths from 2π to 10000·2π."""
    half = width // 2
    rates = torch.exp(-torch.arange(half) * (torch.log(torch.tensor(10000.0)) / (half - 1)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def embedding_matrix(size: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(size, width) * width**-0.5)


def initialise(module: nn.Module) -> None:
    """Glorot-uniform matrices, zero biases.

    A matrix that holds several projections is scaled as one of each.
    """
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith(("attention.inputs.weight", "cross_attention.memory.weight")):
            # Gain 1/√2 for query, key and value, as in fairseq: as if they were one matrix.
            for projection in parameter.chunk(parameter.shape[0] // parameter.shape[1]):
                nn.init.xavier_uniform_(projection, gain=2**-0.5)
        elif name.endswith("cross_attention.query.weight"):
            nn.init.xavier_uniform_(parameter, gain=2**-0.5)
        elif parameter.dim() == 2 and not name.endswith("embedding.weight"):
            nn.init.xavier_uniform_(parameter)
