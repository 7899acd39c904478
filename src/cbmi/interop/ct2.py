"""Translator and language model as CTranslate2 has them; its networks compute the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from cbmi.data.vocabulary import BOS, EOS, UNKNOWN, Vocabulary
from cbmi.errors import import_extra
from cbmi.inference.base import LONGEST_LINE
from cbmi.model import LanguageModel, Translator
from cbmi.model.layers import Embedding, Layer, Shape, Stack, sinusoids

POSITIONS = 2 * LONGEST_LINE + 12  # as far as a translation may go
QUANTIZATIONS = (
    *("int8", "int8_float32", "int8_float16", "int8_bfloat16"),
    *("int16", "float16", "bfloat16", "float32"),
)


def save_translator(
    translator: Translator,
    vocabularies: tuple[Vocabulary, Vocabulary],
    folder: Path,
    quantization: str | None,
) -> None:
    """Write model.bin, config.json and the vocabularies."""
    specs = _specs()
    shape = translator.shape
    spec = specs.TransformerSpec.from_config(
        (shape.encoder_layers, shape.decoder_layers),
        shape.heads,
        pre_norm=shape.norm == "pre",
        activation=specs.Activation.RELU,
    )
    source, target = vocabularies
    spec.config.add_source_eos = True
    _set_special(spec.config, target)
    spec.config.decoder_start_token = target.pieces([BOS])[0]
    _set_embedding(spec.encoder.embeddings[0], spec.encoder, translator.source_embedding)
    _set_embedding(spec.decoder.embeddings, spec.decoder, translator.target_embedding)
    _set_layers(spec.encoder, translator.encoder, translator.source_embedding, shape)
    _set_layers(spec.decoder, translator.decoder, translator.target_embedding, shape)
    spec.decoder.projection.weight = _copy(translator.output_weight)
    spec.register_source_vocabulary(source.pieces(range(len(source))))
    spec.register_target_vocabulary(target.pieces(range(len(target))))
    _save(spec, folder, quantization)


def save_language_model(
    language_model: LanguageModel, target: Vocabulary, folder: Path, quantization: str | None
) -> None:
    specs = _specs()
    shape = language_model.shape
    spec = specs.TransformerDecoderModelSpec.from_config(
        shape.decoder_layers,
        shape.heads,
        pre_norm=shape.norm == "pre",
        activation=specs.Activation.RELU,
    )
    _set_special(spec.config, target)
    _set_embedding(spec.decoder.embeddings, spec.decoder, language_model.embedding)
    _set_layers(spec.decoder, language_model.layers, language_model.embedding, shape)
    spec.decoder.projection.weight = _copy(language_model.output_weight)
    spec.register_vocabulary(target.pieces(range(len(target))))
    _save(spec, folder, quantization)


def _specs() -> Any:
    return import_extra("ctranslate2", "cbmi export --to ctranslate2", "ctranslate2").specs


def _set_special(config: Any, target: Vocabulary) -> None:
    config.bos_token, config.eos_token, config.unk_token = target.pieces([BOS, EOS, UNKNOWN])
    config.layer_norm_epsilon = nn.LayerNorm(1).eps


def _set_embedding(spec: Any, stack: Any, embedding: Embedding) -> None:
    spec.weight = _copy(embedding.weight)
    # CTranslate2's own positions begin at 1, ours at 0.
    stack.position_encodings.encodings = _copy(positions(embedding))


def positions(embedding: Embedding) -> Tensor:
    return sinusoids(POSITIONS, embedding.weight.shape[1])


def _set_layers(spec: Any, stack: Stack, embedding: Embedding, shape: Shape) -> None:
    norms = _norms_before(stack, embedding) if shape.norm == "pre" else _norms_after(stack)
    for place in range(len(stack)):
        layer = stack.layer(place)
        part = spec.layer[place]
        _set_norm(part.self_attention.layer_norm, next(norms))
        _set_linear(part.self_attention.linear[0], layer.self_attention.inputs)
        _set_linear(part.self_attention.linear[1], layer.self_attention.output)
        if hasattr(layer, "cross_attention"):
            cross = layer.cross_attention
            _set_norm(part.attention.layer_norm, next(norms))
            for linear, own in zip(
                part.attention.linear, (cross.query, cross.memory, cross.output), strict=True
            ):
                _set_linear(linear, own)
        _set_norm(part.ffn.layer_norm, next(norms))
        _set_linear(part.ffn.linear_0, layer.feed_forward.inner)
        _set_linear(part.ffn.linear_1, layer.feed_forward.outer)
    if shape.norm == "pre":
        _set_norm(spec.layer_norm, next(norms))


def _norms_after(stack: Stack) -> Iterator[nn.Module]:
    """Each sub-layer's own norm, in order."""
    for place in range(len(stack)):
        layer: Layer = stack.layer(place)
        yield layer.self_norm
        if hasattr(layer, "cross_norm"):
            yield layer.cross_norm
        yield layer.feed_forward_norm


def _norms_before(stack: Stack, embedding: Embedding) -> Iterator[nn.Module]:
    """Ours stand at the end of the sub-layer before; the last is the final norm."""
    assert embedding.norm is not None
    yield embedding.norm
    yield from _norms_after(stack)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = _copy(norm.weight)
    spec.beta = _copy(norm.bias)


def _set_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _copy(linear.weight)
    spec.bias = _copy(linear.bias)


def _copy(values: Any) -> np.ndarray:
    """A copy: quantization works in place, and the model goes on living."""
    array: np.ndarray = values.detach().float().cpu().numpy().copy()
    return array


def _save(spec: Any, folder: Path, quantization: str | None) -> None:
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
