"""The translator: Transformer encoder and decoder over packed sentences."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cbmi.model.attention import cross_attend, self_attend
from cbmi.model.head import Head, token_log_probabilities
from cbmi.model.layers import (
    Attend,
    Embedding,
    Layer,
    Shape,
    Stack,
    embedding_matrix,
    initialise,
)
from cbmi.model.packed import Packed
from cbmi.model.runtime import Runtime


class Translator(nn.Module):
    """p(y_j | y_<j, x).

    With a shared vocabulary one matrix embeds source and target and is the output layer. Otherwise
    the target's embedding is the output layer.
    """

    def __init__(self, shape: Shape, source_size: int, target_size: int, shared: bool) -> None:
        super().__init__()
        self.shape = shape
        self.runtime = Runtime()
        target_matrix = embedding_matrix(target_size, shape.width)
        source_matrix = target_matrix if shared else embedding_matrix(source_size, shape.width)
        self.source_embedding = Embedding(source_matrix, shape, self.runtime)
        self.target_embedding = Embedding(target_matrix, shape, self.runtime)
        self.encoder = Stack(
            Layer(shape, self.runtime, cross=False) for _ in range(shape.encoder_layers)
        )
        self.decoder = Stack(
            Layer(shape, self.runtime, cross=True) for _ in range(shape.decoder_layers)
        )
        initialise(self)

    @property
    def output_weight(self) -> Tensor:
        """(vocabulary, width): a token's logit is its row times the hidden state."""
        return self.target_embedding.weight

    def forward(
        self, source: Packed, inputs: Packed, gold: Tensor, head: Head = token_log_probabilities
    ) -> Any:
        """What `head` makes of the hidden states when the decoder reads `inputs`.

        By default log p(gold) and the vocabulary's mean log p, each (target tokens,).
        """
        states = self.encode(source)
        layout = inputs.layout

        def attend_self(qkv: Tensor, number: int) -> Tensor:
            dropout = self.decoder.layer(number).self_attention.dropout
            return self_attend(qkv, layout, True, dropout)

        def attend_source(query: Tensor, number: int) -> Tensor:
            attention = self.decoder.layer(number).cross_attention
            memory = attention.project_memory(states)
            return cross_attend(query, memory, layout, source.layout, attention.dropout)

        hidden = self.decode(
            inputs.ids, layout.position, layout.longest, attend_self, attend_source
        )
        return head(hidden, self.output_weight, gold, fused=self.runtime.allow_fused)

    def encode(self, source: Packed) -> Tensor:
        """Encoder states (source tokens, width)."""
        layout = source.layout
        x = self.source_embedding(source.ids, layout.position, layout.longest)

        def attend_self(qkv: Tensor, number: int) -> Tensor:
            dropout = self.encoder.layer(number).self_attention.dropout
            return self_attend(qkv, layout, False, dropout)

        states: Tensor = self.encoder(x, attend_self)
        return states

    def memories(self, states: Tensor) -> list[Tensor]:
        """Each decoder layer's keys and values of the encoder states."""
        numbers = range(len(self.decoder))
        return [self.decoder.layer(n).cross_attention.project_memory(states) for n in numbers]

    def decode(
        self,
        ids: Tensor,
        position: Tensor,
        longest: int,
        attend_self: Attend,
        attend_source: Attend,
    ) -> Tensor:
        """Decoder states (tokens, width); how tokens see one another is up to the two functions."""
        x = self.target_embedding(ids, position, longest)
        states: Tensor = self.decoder(x, attend_self, attend_source)
        return states
