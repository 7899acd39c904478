"""The translator: Transformer encoder and decoder over packed sentences."""

from __future__ import annotations

from torch import Tensor, nn

from cbmi.model.attention import attend
from cbmi.model.dropout import Draws
from cbmi.model.head import Head, token_log_probabilities
from cbmi.model.layers import Attend, Embedding, Layer, Shape, Stack, embedding_matrix, initialise
from cbmi.model.packed import Packed


class Translator(nn.Module):
    """p(y_j | y_<j, x). With a shared vocabulary one matrix embeds source and target and is the output layer;
    otherwise the target's embedding is the output layer."""

    def __init__(self, shape: Shape, source_size: int, target_size: int, shared: bool) -> None:
        super().__init__()
        self.shape = shape
        self.draws = draws = Draws()
        matrix = embedding_matrix(target_size, shape.width)
        own = matrix if shared else embedding_matrix(source_size, shape.width)
        self.source_embedding = Embedding(own, shape.dropout, draws)
        self.target_embedding = Embedding(matrix, shape.dropout, draws)
        self.encoder = Stack(Layer(shape, draws, cross=False) for _ in range(shape.encoder_layers))
        self.decoder = Stack(Layer(shape, draws, cross=True) for _ in range(shape.decoder_layers))
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
        states, layout = self.encode(source), inputs.layout

        def attend_self(qkv: Tensor, number: int) -> Tensor:
            return attend(qkv, None, layout, layout, True, self.decoder[number].self_attention.dropout)

        def attend_source(query: Tensor, number: int) -> Tensor:
            part = self.decoder[number].cross_attention
            return attend(query, part.project_memory(states), layout, source.layout, False, part.dropout)

        hidden = self.decode(inputs.ids, layout.position, layout.longest, attend_self, attend_source)
        return head(hidden, self.output_weight, gold)

    def encode(self, source: Packed) -> Tensor:
        """Encoder states (source tokens, width)."""
        layout = source.layout
        x = self.source_embedding(source.ids, layout.position, layout.longest)

        def attend_self(qkv: Tensor, number: int) -> Tensor:
            return attend(qkv, None, layout, layout, False, self.encoder[number].self_attention.dropout)

        return self.encoder.run(x, attend_self)

    def memories(self, states: Tensor) -> list[Tensor]:
        """Each decoder layer's keys and values of the encoder states."""
        return [layer.cross_attention.project_memory(states) for layer in self.decoder]

    def decode(
        self,
        ids: Tensor,
        position: Tensor,
        longest: int,
        attend_self: Attend,
        attend_source: Attend,
    ) -> Tensor:
        """Decoder states (tokens, width); how tokens see one another is up to the two `attend` functions."""
        x = self.target_embedding(ids, position, longest)
        return self.decoder.run(x, attend_self, attend_source)
