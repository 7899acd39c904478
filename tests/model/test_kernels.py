"""Every fused kernel against its plain twin, run by Triton's interpreter: no GPU is needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="the fused kernels need Triton")

from cbmi.decoding import candidates, slots
from cbmi.model import head, kernels, pack, r_drop
from cbmi.model.attention import attend_padded
from cbmi.model.dropout import NO_DROPOUT, Dropout, DropoutDraw, keep, seed_words
from cbmi.model.kernels import attention, decode, elementwise, norm
from cbmi.model.kernels import head as fused_head
from cbmi.model.runtime import Runtime

SEED = torch.tensor(seed_words(123456789012345), dtype=torch.int32)
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")


def leaves(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def assert_same(ours, theirs, inputs_ours, inputs_theirs):
    """Values, and gradients for a random gradient of the result."""
    assert torch.allclose(ours, theirs, atol=2e-5)
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(9))
    ours = torch.autograd.grad(ours, inputs_ours, grad)
    theirs = torch.autograd.grad(theirs, inputs_theirs, grad)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=2e-5), (a - b).abs().max()


def draw(site, rate):
    return DropoutDraw(SEED, site, rate) if rate else NO_DROPOUT


def factors(site, rows, columns, rate):
    return keep(SEED, site, torch.arange(rows), columns, rate) / (1 - rate)


@pytest.mark.parametrize("width", [24, 64])
def test_dropout(width):
    (x,) = leaves((37, width))
    assert_same(elementwise.dropout(x, draw(5, 0.3)), x * factors(5, 37, width, 0.3), [x], [x])


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_bias_relu_dropout(rate):
    x, bias = leaves((37, 300), (300,))
    ours = elementwise.relu_dropout(x * 1, bias, draw(70000, rate))
    theirs = F.relu(x + bias) * (factors(70000, 37, 300, rate) if rate else 1)
    assert_same(ours, theirs, [x, bias], [x, bias])


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize("width", [96, 128])
def test_add_norm(rate, width):
    inputs = leaves((37, width), (37, width), (width,), (width,), (width,))
    x, y, y_bias, weight, bias = inputs
    _, ours = norm.add_norm(*inputs, 1e-5, draw(3, rate))
    dropped = (y + y_bias) * (factors(3, 37, width, rate) if rate else 1)
    assert_same(ours, F.layer_norm(x + dropped, (width,), weight, bias), inputs, inputs)


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_add_norm_that_keeps_the_sum(rate):
    """Pre-norm: gradients come back through the norm and through the sum."""
    inputs = leaves((37, 96), (37, 96), (96,), (96,), (96,))
    x, y, y_bias, weight, bias = inputs
    ours = torch.stack(norm.add_norm(*inputs, 1e-5, draw(3, rate), keep_sum=True))
    total = x + (y + y_bias) * (factors(3, 37, 96, rate) if rate else 1)
    theirs = torch.stack([total, F.layer_norm(total, (96,), weight, bias)])
    assert_same(ours, theirs, inputs, inputs)


LENGTHS = np.array([5, 33, 1, 70, 0, 3, 0, 12]), np.array([7, 20, 3, 64, 0, 0, 9, 30])


def dropout(rate):
    runtime = Runtime()
    runtime.seed = SEED
    return Dropout(rate, runtime)


def layout(lengths):
    return pack(np.zeros(lengths.sum(), np.int64), lengths).layout


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_attention_within(causal, rate):
    one = layout(LENGTHS[0])
    drops = dropout(rate)
    (qkv,) = leaves((LENGTHS[0].sum(), 3, 3, 24))
    ours = attention.fused_self_attention(qkv, one, causal, drops.draw())
    assert_same(ours, attend_padded(*qkv.unbind(1), one, one, causal, drops), [qkv], [qkv])


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_attention_between(rate):
    """Sentences without source tokens among them: fillers may be such."""
    queries = layout(LENGTHS[0])
    keys = layout(LENGTHS[1])
    drops = dropout(rate)
    query, memory = leaves((LENGTHS[0].sum(), 2, 16), (LENGTHS[1].sum(), 2, 2, 16))
    ours = attention.fused_cross_attention(query, memory, queries, keys, drops.draw())
    theirs = attend_padded(query, *memory.unbind(1), queries, keys, False, drops)
    assert_same(ours, theirs, [query, memory], [query, memory])


def test_head(monkeypatch):
    hidden, weight = leaves((11, 8), (333, 8))
    gold = torch.randint(0, 333, (11,), generator=torch.Generator().manual_seed(1))
    values = {}
    for fused in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, fused=fused: fused)
        output = head.token_log_probabilities(hidden, weight, gold, chunk=5)
        values[fused] = torch.stack([output.log_p, output.mean_log_p])
    assert_same(values[True], values[False], [hidden, weight], [hidden, weight])
    logits = hidden @ weight.T
    of_gold, of_mean, total = fused_head.row_sums(logits.detach(), gold)
    log_p = logits.log_softmax(1)
    assert torch.allclose(of_gold, log_p.gather(1, gold[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(of_mean, log_p.mean(1), atol=1e-5)
    assert torch.allclose(total, logits.logsumexp(1), atol=1e-5)


@pytest.mark.parametrize("chunk", [5, 11])
def test_r_drop(monkeypatch, chunk):
    hidden, weight = leaves((22, 8), (2100, 8))
    gold = torch.randint(0, 2100, (11,), generator=torch.Generator().manual_seed(1))
    values = {}
    for fused in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, fused=fused: fused)
        scores = r_drop.pair_scores(0.3 * hidden, weight, gold, chunk)
        values[fused] = torch.stack(scores)
    assert_same(values[True], values[False], [hidden, weight], [hidden, weight])


def test_decoding():
    generator = torch.Generator().manual_seed(0)
    cache, memory = torch.randn(12, 40, 2, 2, 24, generator=generator), torch.randn(4, 40, 2, 2, 24)
    query = torch.randn(12, 3, 2, 24, generator=generator)[:, 0]
    lengths = torch.tensor([1, 40, 33, 7])
    holders = torch.randint(0, 3, (12, 40), dtype=torch.int32, generator=generator)
    for kept, table in ((cache, holders), (memory, None)):
        ours = decode.fused_attend_cache(query, kept, lengths, 3, table)
        assert torch.allclose(ours, slots.attend_cache(query, kept, lengths, 3, table), atol=1e-5)
    logits = 5 * torch.randn(5, 5001, generator=generator)
    for a, b in zip(
        decode.fused_survey(logits, candidates.CHUNK), candidates.survey(logits), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-5)
