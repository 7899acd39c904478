"""The translator: Transformer encoder and decoder over packed sentences."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from cbmi.model.attention import attend
from cbmi.model.head import Head, token_log_probabilities
from cbmi.model.layers import Attend, Embedding, Layer, Shape, embedding_matrix, initialise
from cbmi.model.packed import Layout, Packed


class Translator(nn.Module):
    """p(y_j | y_<j, x). With a shared vocabulary one matrix embeds source and target and is the output layer;
    otherwise the target's embedding is the output layer."""

    def __init__(self, shape: Shape, source_size: int, target_size: int, shared: bool) -> None:
        super().__init__()
        self.shape = shape
        matrix = embedding_matrix(target_size, shape.width)
        own = matrix if shared else embedding_matrix(source_size, shape.width)
        self.source_embedding = Embedding(own, shape.dropout)
        self.target_embedding = Embedding(matrix, shape.dropout)
        self.encoder = nn.ModuleList(Layer(shape, cross=False) for _ in range(shape.encoder_layers))
        self.decoder = nn.ModuleList(Layer(shape, cross=True) for _ in range(shape.decoder_layers))
        initialise(self)

    @property
    def output_weight(self) -> Tensor:
        """(vocabulary, width): a token's logit is its row times the hidden state."""
        return self.target_embedding.weight

    def forward(
        self, source: Packed, inputs: Packed, gold: Tensor, head: Head = token_log_probabilities
    ) -> tuple[Tensor, ...]:
        """log p(gold) and the vocabulary's mean log p, each (target tokens,), when the decoder reads `inputs`;
        or what else `head` makes of the hidden states."""
        states = self.encode(source)
        between = partial(self._attend, inputs.layout, source.layout, False)
        hidden = self.decode(
            inputs.ids,
            inputs.layout.position,
            inputs.layout.longest,
            partial(self._attend, inputs.layout, inputs.layout, True),
            self.memories(states),
            between,
        )
        return head(hidden, self.output_weight, gold)

    def encode(self, source: Packed) -> Tensor:
        """Encoder states (source tokens, width)."""
        layout = source.layout
        x = self.source_embedding(source.ids, layout.position, layout.longest)
        for number, layer in enumerate(self.encoder):
            x = layer(x, number, partial(self._attend, layout, layout, False))
        return x

    def memories(self, states: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each decoder layer's keys and values of the encoder states."""
        return [layer.cross_attention.project_memory(states) for layer in self.decoder]

    def decode(
        self,
        ids: Tensor,
        position: Tensor,
        longest: int,
        attend_self: Attend,
        memories: list[tuple[Tensor, Tensor]],
        attend_memory: Attend,
    ) -> Tensor:
        """Decoder states (tokens, width); how tokens see one another is up to the two `attend` functions."""
        x = self.target_embedding(ids, position, longest)
        for number, (layer, memory) in enumerate(zip(self.decoder, memories, strict=True)):
            x = layer(x, number, attend_self, memory, attend_memory)
        return x

    def _attend(
        self,
        queries: Layout,
        keys: Layout,
        causal: bool,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layer: int,
    ) -> Tensor:
        dropout = self.shape.attention_dropout if self.training else 0.0
        return attend(query, key, value, queries, keys, causal, dropout)
