"""A network's optimizer."""

from __future__ import annotations

import pytest
import torch

from cbmi.config import OptimizerSettings
from cbmi.training.learner import Learner
from cbmi.training.world import World

WORLD = World(0, 1, torch.device("cpu"))


def learner(**settings):
    torch.manual_seed(0)
    return Learner(
        torch.nn.Linear(4, 2),
        OptimizerSettings(warmup=0, peak_lr=0.1, **settings),
        WORLD,
        torch.float32,
    )


def update(one, step, factor=1.0):
    torch.manual_seed(step)
    one.backward(factor * one.network(torch.randn(5, 4)).square().sum(), sync=True)
    one.prepare_update(0.1 / step**0.5)
    return one.update()


def test_updates_are_adams():
    ours = learner(clip=0)
    torch.manual_seed(0)
    plain = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.1, betas=(0.9, 0.98), eps=1e-8)
    update(ours, 1)
    torch.manual_seed(1)
    plain(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()
    assert torch.allclose(ours.network.weight, plain.weight, rtol=1e-6)


def test_the_gradient_is_clipped_and_its_norm_reported():
    """Adam's update hides the gradient's scale, but its first moment is a tenth of the gradient."""
    one = learner(clip=2.0)
    torch.manual_seed(1)
    loss = 100 * one.network(torch.randn(5, 4)).square().sum()
    one.backward(loss, sync=True)
    gradient = torch.cat([p.grad.flatten() for p in one.network.parameters()])
    assert gradient.norm() > 2
    one.prepare_update(0.1)
    assert one.update() == pytest.approx(gradient.norm().item())
    moments = one.moments("x")
    first = torch.cat([moments[f"x/{name}/exp_avg"].flatten() for name in ("weight", "bias")])
    assert torch.allclose(first, 0.1 * gradient * 2 / gradient.norm(), rtol=1e-4)


def test_moments_go_to_disk_and_back():
    first = learner()
    second = learner()
    for step in (1, 2, 3):
        update(first, step)
    second.network.load_state_dict(first.network.state_dict())
    second.load_moments("x", {name: moment.clone() for name, moment in first.moments("x").items()})
    for one in (first, second):
        update(one, 4)
    assert torch.equal(first.network.weight, second.network.weight)
    second.restart()
    for one in (first, second):
        update(one, 5)
    assert not torch.equal(first.network.weight, second.network.weight)
