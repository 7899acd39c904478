"""Packed networks against padded arithmetic written out, and what must not change their scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cbmi.model import LanguageModel, Translator, pack, shift_right
from cbmi.model.attention import attend_padded
from cbmi.model.dropout import Dropout
from cbmi.model.layers import POSITIONS, Shape, sinusoids
from cbmi.model.runtime import Runtime

SHAPE = Shape(width=16, feed_forward=32, heads=2, encoder_layers=2, decoder_layers=2)


def sentences(lengths, vocabulary=50, seed=0):
    random = np.random.default_rng(seed)
    return pack(random.integers(4, vocabulary, sum(lengths)), np.array(lengths))


def test_layout():
    packed = sentences((3, 1, 2))
    assert packed.layout.sentence.tolist() == [0, 0, 0, 1, 2, 2]
    assert packed.layout.position.tolist() == [0, 1, 2, 0, 0, 1]
    assert packed.layout.starts.tolist() == [0, 3, 4, 6]
    assert packed.layout.grid_index.tolist() == [0, 1, 2, 3, 6, 7]
    ids = packed.ids.tolist()
    assert shift_right(packed, 1).ids.tolist() == [1, ids[0], ids[1], 1, 1, ids[4]]


@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_softmax_written_out(causal):
    torch.manual_seed(0)
    queries = sentences((4, 1, 6)).layout
    keys = queries if causal else sentences((2, 5, 3)).layout
    q = torch.randn(11, 2, 8, dtype=torch.float64, requires_grad=True)
    k, v = (
        torch.randn(len(keys.sentence), 2, 8, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    allowed = queries.sentence[:, None] == keys.sentence[None]
    if causal:
        allowed &= queries.position[:, None] >= keys.position[None]
    scores = torch.einsum("qhd,khd->hqk", q, k) / 8**0.5
    expected = torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), v)
    found = attend_padded(q, k, v, queries, keys, causal, Dropout(0.0, Runtime()))
    assert torch.allclose(found, expected)
    grad = torch.randn_like(expected)
    ours = torch.autograd.grad((found * grad).sum(), (q, k, v))
    theirs = torch.autograd.grad((expected * grad).sum(), (q, k, v))
    assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))


def reference_scores(model, source, inputs, gold):
    """One pair, no packing: post-norm layers written out with matrices (SPEC's network)."""

    def norm(x, layer):
        return F.layer_norm(x, x.shape[-1:], layer.weight, layer.bias)

    def attention(q, k, v, mask=None):
        q, k, v = (x.view(len(x), 2, -1).transpose(0, 1) for x in (q, k, v))
        scores = q @ k.transpose(1, 2) / (q.shape[-1] ** 0.5)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)

    def embed(ids):
        table = model.target_embedding.weight
        return table[ids] * 4.0 + sinusoids(len(ids), 16)

    def own(layer, x, mask=None):
        part = layer.self_attention
        mixed = attention(*(x @ part.inputs.weight.T + part.inputs.bias).chunk(3, 1), mask)
        return norm(x + part.output(mixed), layer.self_norm)

    def feed(layer, x):
        part = layer.feed_forward
        return norm(x + part.outer(F.relu(part.inner(x))), layer.feed_forward_norm)

    states = embed(source)
    for layer in model.encoder:
        states = feed(layer, own(layer, states))
    x = embed(inputs)
    mask = torch.ones(len(inputs), len(inputs), dtype=torch.bool).tril()
    for layer in model.decoder:
        x = own(layer, x, mask)
        part = layer.cross_attention
        mixed = attention(part.query(x), *part.memory(states).chunk(2, 1))
        x = feed(layer, norm(x + part.output(mixed), layer.cross_norm))
    log_p = (x @ model.target_embedding.weight.T).log_softmax(-1)
    return log_p[torch.arange(len(gold)), gold]


def test_translator_equals_a_transformer_written_out():
    torch.manual_seed(0)
    model = Translator(SHAPE, 50, 50, shared=True).eval()
    for parameter in model.parameters():  # biases and norms too
        parameter.data += 0.1 * torch.randn_like(parameter)
    source, target = sentences((5, 2, 7)), sentences((3, 6, 1), seed=1)
    inputs = shift_right(target, 1)
    scores = model(source, inputs, target.ids).log_p
    for i in range(3):
        s = slice(*source.layout.starts[i : i + 2].tolist())
        t = slice(*target.layout.starts[i : i + 2].tolist())
        expected = reference_scores(model, source.ids[s], inputs.ids[t], target.ids[t])
        assert torch.allclose(scores[t], expected, atol=1e-5)


def torch_layer(kind, layer, norms):
    """A layer of torch.nn's with the weights of ours; `norms`: those before its sub-layers."""
    theirs = kind(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True).double()
    parts = {
        "self_attn.in_proj_": layer.self_attention.inputs,
        "self_attn.out_proj.": layer.self_attention.output,
        "linear1.": layer.feed_forward.inner,
        "linear2.": layer.feed_forward.outer,
    }
    if kind is torch.nn.TransformerDecoderLayer:
        parts["multihead_attn.out_proj."] = layer.cross_attention.output
    for number, norm in enumerate(norms, 1):
        parts[f"norm{number}."] = norm
    state = {}
    for prefix, part in parts.items():
        state[f"{prefix}weight"] = part.weight
        state[f"{prefix}bias"] = part.bias
    if kind is torch.nn.TransformerDecoderLayer:
        query = layer.cross_attention.query
        memory = layer.cross_attention.memory
        state["multihead_attn.in_proj_weight"] = torch.cat([query.weight, memory.weight])
        state["multihead_attn.in_proj_bias"] = torch.cat([query.bias, memory.bias])
    theirs.load_state_dict({key: value.detach().clone() for key, value in state.items()})
    return theirs


def torch_stack(kind, stack, first_norm):
    """Ours as torch.nn has it: the norm at the end of a sub-layer is the one before the next."""
    layers = []
    before = first_norm
    for layer in stack:
        norms = [before, layer.self_norm]
        if kind is torch.nn.TransformerDecoderLayer:
            norms.append(layer.cross_norm)
        layers.append(torch_layer(kind, layer, norms))
        before = layer.feed_forward_norm
    return layers, before


def test_pre_norm_equals_torchs_layers_forward_and_backward():
    """A deep encoder and a shallow decoder, with the final norms."""
    torch.manual_seed(0)
    shape = Shape(16, 32, 2, encoder_layers=4, decoder_layers=1, norm="pre")
    model = Translator(shape, 50, 50, shared=True).double()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    source = sentences((7,))
    target = sentences((5,), seed=1)
    inputs = shift_right(target, 1)

    ours = model(source, inputs, target.ids).log_p
    ours.sum().backward()

    encoder, encoder_norm = torch_stack(
        torch.nn.TransformerEncoderLayer, model.encoder, model.source_embedding.norm
    )
    decoder, decoder_norm = torch_stack(
        torch.nn.TransformerDecoderLayer, model.decoder, model.target_embedding.norm
    )
    table = model.output_weight.detach().clone().requires_grad_()
    states = (table[source.ids] * 4 + sinusoids(7, 16).double())[None]
    for layer in encoder:
        states = layer(states)
    states = F.layer_norm(states, (16,), encoder_norm.weight, encoder_norm.bias)
    x = (table[inputs.ids] * 4 + sinusoids(5, 16).double())[None]
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for layer in decoder:
        x = layer(x, states, tgt_mask=mask)
    x = F.layer_norm(x, (16,), decoder_norm.weight, decoder_norm.bias)
    theirs = (x[0] @ table.T).log_softmax(-1).gather(1, target.ids[:, None])[:, 0]
    theirs.sum().backward()

    assert torch.allclose(ours, theirs)
    assert torch.allclose(model.output_weight.grad, table.grad)
    for number, layer in enumerate(encoder):
        inner = model.encoder.layer(number).feed_forward.inner
        assert torch.allclose(inner.weight.grad, layer.linear1.weight.grad)
    for number, layer in enumerate(decoder):
        inputs_of_attention = model.decoder.layer(number).self_attention.inputs
        assert torch.allclose(inputs_of_attention.weight.grad, layer.self_attn.in_proj_weight.grad)
    # The norm before the second encoder layer stands at the end of the first.
    first_end = model.encoder.layer(0).feed_forward_norm
    assert torch.allclose(first_end.weight.grad, encoder[1].norm1.weight.grad)


def test_language_model_sees_only_what_came_before():
    torch.manual_seed(0)
    model = LanguageModel(SHAPE, 50).eval()
    target = sentences((6, 4))
    scores = model(shift_right(target, 1), target.ids).log_p
    changed = target.ids.clone()
    changed[5] = 4 + (changed[5] - 3) % 40
    other = type(target)(changed, target.layout)
    again = model(shift_right(other, 1), other.ids).log_p
    assert torch.equal(scores[:5], again[:5])
    assert torch.equal(scores[6:], again[6:])
    assert scores[5] != again[5]


def test_the_language_model_shares_nothing_and_embeddings_are_tied():
    shared = Translator(SHAPE, 50, 50, shared=True)
    assert shared.source_embedding.weight is shared.target_embedding.weight is shared.output_weight
    separate = Translator(SHAPE, 40, 50, shared=False)
    assert separate.source_embedding.weight.shape == (40, 16)
    assert separate.output_weight is separate.target_embedding.weight
    model = LanguageModel(SHAPE, 50)
    assert not {id(p) for p in model.parameters()} & {id(p) for p in shared.parameters()}


def test_positions_beyond_the_table_are_made():
    model = LanguageModel(SHAPE, 50).eval()
    target = sentences((POSITIONS + 50,))
    x = model.embedding(target.ids, target.layout.position, target.layout.longest).residual
    waves = sinusoids(POSITIONS + 50, 16)
    assert torch.allclose(x, model.embedding.weight[target.ids] * 4 + waves, atol=1e-5)
    target = sentences((700,))
    half = LanguageModel(SHAPE, 50).to(torch.bfloat16).eval()
    assert torch.isfinite(half(shift_right(target, 1), target.ids)[0]).all()
