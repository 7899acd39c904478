"""Chunks of one shape, whose terms can be compiled."""

from __future__ import annotations

import pytest
import torch

from cbmi.model import distribution, kernels
from cbmi.model.distribution import States, chunk_values, distribution_terms
from cbmi.objectives import TABLE, build

SETTINGS = [
    *(
        {"name": name}
        for name in ("lm-prior", "prior-lm", "prior-tm", "prior-cbmi", "prior-selection")
    ),
    {"name": "prior-lm", "interval": [0.0, 2.0]},
    {"name": "prior-cbmi", "gold_only": True},
    {"name": "prior-selection", "only": "tm"},
]


def test_every_objective_with_whole_distributions_is_here():
    named = {settings["name"] for settings in SETTINGS}
    built = {
        name
        for name in TABLE
        if name != "weights-file" and "distribution" in build({"name": name}, "").needs()
    }
    assert named == built


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_terms_compile_in_one_piece_and_give_the_same(monkeypatch, settings):
    """70 tokens in chunks of 64: the last is filled up. Nothing in a term may stop the compiler."""
    objective = build(settings, "test")
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    hidden, weight, gold = (
        random(70, 8),
        random(300, 8),
        torch.randint(0, 300, (70,), generator=generator),
    )
    lm = States(random(70, 8), random(300, 8)) if "lm" in objective.needs() else None
    teacher = States(random(70, 8), random(300, 8)) if "teacher" in objective.needs() else None
    grads = random(3, 70)
    torch.compiler.reset()
    compiled = torch.compile(chunk_values, backend="eager", fullgraph=True, dynamic=False)
    monkeypatch.setattr(distribution, "_compiled_values", lambda owner: compiled)
    monkeypatch.setattr(distribution, "COMPILED_ELEMENTS", 300 * 64)
    results = []
    for fused in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, fused=fused: fused)
        inputs = [x.clone().requires_grad_() for x in (hidden, weight)]
        values = distribution_terms(
            *inputs, gold, term=objective.term, smoothing=0.1, lm=lm, teacher=teacher
        )
        gradients = torch.autograd.grad((torch.stack(values) * grads).sum(), inputs)
        results.append([*values, *gradients])
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs)
