"""The target-side language model: the translator's decoder without its source."""

from __future__ import annotations

from torch import Tensor, nn

from cbmi.model.attention import attend
from cbmi.model.head import Head, token_log_probabilities
from cbmi.model.layers import Attend, Embedding, Layer, Shape, embedding_matrix, initialise
from cbmi.model.packed import Packed


class LanguageModel(nn.Module):
    """p(y_j | y_<j). Its embedding is its output layer; nothing is shared with the translator."""

    def __init__(self, shape: Shape, size: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = Embedding(embedding_matrix(size, shape.width), shape.dropout)
        self.layers = nn.ModuleList(Layer(shape, cross=False) for _ in range(shape.decoder_layers))
        initialise(self)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    def forward(self, inputs: Packed, gold: Tensor, head: Head = token_log_probabilities) -> tuple[Tensor, ...]:
        """log p(gold) and the vocabulary's mean log p, each (tokens,), when the model reads `inputs`;
        or what else `head` makes of the hidden states."""
        layout = inputs.layout
        dropout = self.shape.attention_dropout if self.training else 0.0

        def attend_self(query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
            return attend(query, key, value, layout, layout, True, dropout)

        hidden = self.decode(inputs.ids, layout.position, layout.longest, attend_self)
        return head(hidden, self.output_weight, gold)

    def decode(self, ids: Tensor, position: Tensor, longest: int, attend_self: Attend) -> Tensor:
        """Hidden states (tokens, width); how tokens see one another is up to `attend_self`."""
        x = self.embedding(ids, position, longest)
        for number, layer in enumerate(self.layers):
            x = layer(x, number, attend_self)
        return x
