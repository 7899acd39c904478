"""Translator and language model as Hugging Face's Marian, whose networks compute the same."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cbmi.data.vocabulary import BOS, EOS, PAD
from cbmi.errors import UserError
from cbmi.model.language_model import LanguageModel
from cbmi.model.layers import Layer, Shape, Stack
from cbmi.model.translator import Translator

POSITIONS = 2048


def marian_config(shape: Shape, source_size: int, target_size: int, shared: bool) -> dict[str, Any]:
    """The content of config.json."""
    if shape.norm != "post":
        raise UserError(
            "Hugging Face's Marian has no pre-norm; this model cannot be exported to it."
        )
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "activation_function": "relu",
        "d_model": shape.width,
        "encoder_ffn_dim": shape.feed_forward,
        "decoder_ffn_dim": shape.feed_forward,
        "encoder_attention_heads": shape.heads,
        "decoder_attention_heads": shape.heads,
        "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers,
        "num_hidden_layers": shape.encoder_layers,
        "dropout": shape.dropout,
        "attention_dropout": shape.attention_dropout,
        "activation_dropout": shape.activation_dropout,
        "vocab_size": source_size,
        "decoder_vocab_size": target_size,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": True,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": POSITIONS,
        "is_encoder_decoder": True,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
    }


def language_model_config(shape: Shape, size: int) -> dict[str, Any]:
    """The content of config.json of a language model."""
    return marian_config(shape, size, size, shared=True) | {
        "architectures": ["MarianForCausalLM"],
        "is_decoder": True,
        "is_encoder_decoder": False,
        "forced_eos_token_id": None,
    }


def language_model_weights(language_model: LanguageModel) -> dict[str, Tensor]:
    """Likewise `marian_weights`. Marian's layers have cross-attention, which is not used."""
    embedding = language_model.embedding
    weights = {
        "model.decoder.embed_tokens.weight": embedding.weight,
        "model.decoder.embed_positions.weight": embedding.positions[:POSITIONS],
    }
    weights |= _layers(language_model.layers, "model.decoder.layers")
    width = embedding.weight.shape[1]
    for number in range(len(language_model.layers)):
        prefix = f"model.decoder.layers.{number}.encoder_attn"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            weights[f"{prefix}.{name}.weight"] = embedding.weight.new_zeros(width, width)
            weights[f"{prefix}.{name}.bias"] = embedding.weight.new_zeros(width)
        weights[f"{prefix}_layer_norm.weight"] = embedding.weight.new_ones(width)
        weights[f"{prefix}_layer_norm.bias"] = embedding.weight.new_zeros(width)
    return weights


def marian_weights(translator: Translator) -> dict[str, Tensor]:
    """The tensors of model.safetensors by their names there; those that are tied, once."""
    source = translator.source_embedding
    target = translator.target_embedding
    weights: dict[str, Tensor] = {}
    if source.weight is target.weight:
        weights["model.shared.weight"] = source.weight
    else:
        weights["model.encoder.embed_tokens.weight"] = source.weight
        weights["model.decoder.embed_tokens.weight"] = target.weight
    weights["final_logits_bias"] = target.weight.new_zeros(1, len(target.weight))
    for side, stack in (("encoder", translator.encoder), ("decoder", translator.decoder)):
        # Marian's own positions differ from ours; those that are stored are used.
        weights[f"model.{side}.embed_positions.weight"] = source.positions[:POSITIONS]
        weights |= _layers(stack, f"model.{side}.layers")
    return weights


def _layers(stack: Stack, prefix: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for number in range(len(stack)):
        layer = stack.layer(number)
        for name, value in _layer(layer).items():
            weights[f"{prefix}.{number}.{name}"] = value
    return weights


def _layer(layer: Layer) -> dict[str, Tensor]:
    attention = layer.self_attention
    weights = _parts("self_attn", ("q_proj", "k_proj", "v_proj"), attention.inputs)
    weights |= _parts("self_attn", ("out_proj",), attention.output)
    weights |= _parts("", ("self_attn_layer_norm",), layer.self_norm)
    if hasattr(layer, "cross_attention"):
        cross = layer.cross_attention
        weights |= _parts("encoder_attn", ("q_proj",), cross.query)
        weights |= _parts("encoder_attn", ("k_proj", "v_proj"), cross.memory)
        weights |= _parts("encoder_attn", ("out_proj",), cross.output)
        weights |= _parts("", ("encoder_attn_layer_norm",), layer.cross_norm)
    weights |= _parts("", ("fc1",), layer.feed_forward.inner)
    weights |= _parts("", ("fc2",), layer.feed_forward.outer)
    weights |= _parts("", ("final_layer_norm",), layer.feed_forward_norm)
    return weights


def _parts(prefix: str, names: tuple[str, ...], module: nn.Module) -> dict[str, Tensor]:
    """A module's weight and bias, cut into as many projections as there are names."""
    weights: dict[str, Tensor] = {}
    for kind in ("weight", "bias"):
        for name, part in zip(names, getattr(module, kind).chunk(len(names)), strict=True):
            weights[".".join(filter(None, (prefix, name, kind)))] = part
    return weights
