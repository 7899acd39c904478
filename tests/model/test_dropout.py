"""Dropout is a function of seed, site, row and column, and looks like chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cbmi.model import LanguageModel, Translator, pack, shift_right
from cbmi.model.attention import attend_padded
from cbmi.model.dropout import Dropout, keep, seed_words, threshold, wrapped
from cbmi.model.layers import Shape
from cbmi.model.runtime import Runtime


def seed(number):
    return torch.tensor(seed_words(number), dtype=torch.int32)


def draw(number=1, site=1, rows=2000, columns=512, rate=0.1):
    return keep(seed(number), site, torch.arange(rows), columns, rate)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.9])
def test_the_share_that_falls_is_the_rate(rate):
    kept = draw(rate=rate).double()
    spread = (rate * (1 - rate) / kept.numel()) ** 0.5
    assert abs(kept.mean() - (1 - rate)) <= 5 * spread
    assert (kept.mean(0) - (1 - rate)).abs().max() <= 5 * spread * kept.shape[1] ** 0.5
    assert (kept.mean(1) - (1 - rate)).abs().max() <= 5 * spread * kept.shape[0] ** 0.5


def test_draws_do_not_go_together():
    """Neighbouring rows, columns, sites and seeds: no correlation beyond chance."""
    first = draw(rate=0.5).double() - 0.5
    others = [
        draw(number=2, rate=0.5),
        draw(site=2, rate=0.5),
        draw(number=1 + (1 << 32), rate=0.5),
    ]
    others += [draw(rate=0.5).roll(1, dim) for dim in (0, 1)]
    for other in others:
        correlation = 4 * (first * (other.double() - 0.5)).mean()
        assert abs(correlation) < 5 / first.numel() ** 0.5


def test_the_same_everywhere():
    """An entry's fate does not depend on what is computed beside it."""
    whole = draw(rows=100, columns=64)
    assert torch.equal(keep(seed(1), 1, torch.arange(40, 60), 64, 0.1), whole[40:60])
    assert torch.equal(draw(rows=100, columns=10), whole[:, :10])


def test_numbers_wrap_as_32_bits_do():
    for number in (0, 2**31, -(2**31) - 1, 3 * 2**32 + 5, 2**63 - 1):
        assert wrapped(number) == int(np.array(number).astype(np.int64).astype(np.int32))
    assert threshold(0.0) == -(2**31)
    assert threshold(0.5) == 0


def test_what_stays_is_scaled_up_and_gets_the_gradient():
    runtime = Runtime()
    runtime.seed = seed(3)
    layer = Dropout(0.25, runtime)
    x = torch.randn(50, 20, dtype=torch.float64, requires_grad=True)
    kept = keep(runtime.seed, layer.site, torch.arange(50), 20, 0.25)
    out = layer(x)
    assert torch.allclose(out, torch.where(kept, x / 0.75, 0))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.allclose(grad, kept.double() / 0.75)
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_drops_by_query_head_and_place_of_the_key(causal):
    random = np.random.default_rng(0)
    queries = pack(
        np.zeros(700, np.int64), np.array([300, 250, 100, 40, 10])
    ).layout  # several groups
    keys = (
        queries if causal else pack(np.zeros(500, np.int64), np.array([200, 120, 99, 80, 1])).layout
    )
    q = torch.tensor(random.normal(size=(700, 2, 4)))
    k, v = (torch.tensor(random.normal(size=(len(keys.sentence), 2, 4))) for _ in range(2))
    runtime = Runtime()
    runtime.seed = seed(7)
    dropout = Dropout(0.4, runtime)
    allowed = queries.sentence[:, None] == keys.sentence[None]
    if causal:
        allowed &= queries.position[:, None] >= keys.position[None]
    shares = (torch.einsum("qhd,khd->hqk", q, k) / 2).masked_fill(~allowed, -torch.inf).softmax(-1)
    rows = torch.arange(700) * 2 + torch.arange(2)[:, None]
    kept = keep(runtime.seed, dropout.site, rows, 300, 0.4)[:, :, keys.position]
    expected = torch.einsum("hqk,khd->qhd", shares * kept / 0.6, v)
    assert torch.allclose(attend_padded(q, k, v, queries, keys, causal, dropout), expected)


def test_networks_draw_apart_and_need_a_seed():
    shape = Shape(16, 32, 2, 1, 1, 0.1, 0.1, 0.1)
    translator, language_model = Translator(shape, 50, 50, shared=True), LanguageModel(shape, 50)
    modules = [*translator.modules(), *language_model.modules()]
    sites = [module.site for module in modules if isinstance(module, Dropout)]
    assert len(set(sites)) == len(sites)
    target = pack(torch.arange(4, 10), np.array([4, 2]))
    with pytest.raises(RuntimeError, match="no seed"):
        language_model(shift_right(target, 1), target.ids)
    language_model.runtime.seed = seed(1)
    first = language_model(shift_right(target, 1), target.ids)[0]
    assert torch.equal(first, language_model(shift_right(target, 1), target.ids)[0])
    language_model.runtime.sample = 1
    assert not torch.equal(first, language_model(shift_right(target, 1), target.ids)[0])
