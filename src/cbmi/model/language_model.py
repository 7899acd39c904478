"""The target-side language model: the translator's decoder without its source."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cbmi.model.attention import self_attend
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

# Dropout sites are numbered on from here: the language model draws from the same seed as the
# translator, at other sites.
FIRST_SITE = 1 << 15


class LanguageModel(nn.Module):
    """p(y_j | y_<j). Its embedding is its output layer; nothing is shared with the translator."""

    def __init__(self, shape: Shape, size: int) -> None:
        super().__init__()
        self.shape = shape
        self.runtime = Runtime(sites=FIRST_SITE)
        matrix = embedding_matrix(size, shape.width)
        self.embedding = Embedding(matrix, shape, self.runtime)
        self.layers = Stack(
            Layer(shape, self.runtime, cross=False) for _ in range(shape.decoder_layers)
        )
        initialise(self)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    def forward(self, inputs: Packed, gold: Tensor, head: Head = token_log_probabilities) -> Any:
        """What `head` makes of the hidden states when the model reads `inputs`.

        By default log p(gold) and the vocabulary's mean log p, each (tokens,).
        """
        layout = inputs.layout

        def attend_self(qkv: Tensor, number: int) -> Tensor:
            dropout = self.layers.layer(number).self_attention.dropout
            return self_attend(qkv, layout, True, dropout)

        hidden = self.decode(inputs.ids, layout.position, layout.longest, attend_self)
        return head(hidden, self.output_weight, gold, fused=self.runtime.allow_fused)

    def decode(self, ids: Tensor, position: Tensor, longest: int, attend_self: Attend) -> Tensor:
        """Hidden states (tokens, width); how tokens see one another is up to `attend_self`."""
        x = self.embedding(ids, position, longest)
        hidden: Tensor = self.layers(x, attend_self)
        return hidden
