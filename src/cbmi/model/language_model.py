"""The target-side language model: the translator's decoder without its source."""

from __future__ import annotations

from torch import Tensor, nn

from cbmi.model.attention import attend
from cbmi.model.dropout import Draws
from cbmi.model.head import Head, token_log_probabilities
from cbmi.model.layers import Attend, Embedding, Layer, Shape, Stack, embedding_matrix, initialise
from cbmi.model.packed import Packed


class LanguageModel(nn.Module):
    """p(y_j | y_<j). Its embedding is its output layer; nothing is shared with the translator."""

    def __init__(self, shape: Shape, size: int) -> None:
        super().__init__()
        self.shape = shape
        self.draws = Draws(sites=1 << 15)
        self.embedding = Embedding(embedding_matrix(size, shape.width), shape.dropout, self.draws)
        self.layers = Stack(Layer(shape, self.draws, cross=False) for _ in range(shape.decoder_layers))
        initialise(self)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    def forward(self, inputs: Packed, gold: Tensor, head: Head = token_log_probabilities) -> tuple[Tensor, ...]:
        """log p(gold) and the vocabulary's mean log p, each (tokens,), when the model reads `inputs`;
        or what else `head` makes of the hidden states."""
        layout = inputs.layout

        def attend_self(qkv: Tensor, number: int) -> Tensor:
            return attend(qkv, None, layout, layout, True, self.layers[number].self_attention.dropout)

        hidden = self.decode(inputs.ids, layout.position, layout.longest, attend_self)
        return head(hidden, self.output_weight, gold)

    def decode(self, ids: Tensor, position: Tensor, longest: int, attend_self: Attend) -> Tensor:
        """Hidden states (tokens, width); how tokens see one another is up to `attend_self`."""
        x = self.embedding(ids, position, longest)
        return self.layers.run(x, attend_self)
