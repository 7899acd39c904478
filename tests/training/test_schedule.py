"""Learning rates by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cbmi.config import OptimizerSettings
from cbmi.training.schedule import Place, learning_rate


def rate(step: int, stage_steps: int = 1000, **settings) -> float:
    """Of a step of the first stage."""
    return learning_rate(Place(step, step, stage_steps), OptimizerSettings(**settings))


def test_the_papers_schedule():
    settings = {"peak_lr": 7e-4, "warmup": 4000}
    assert rate(0, **settings) == 1e-7
    assert rate(2000, **settings) == pytest.approx((1e-7 + 7e-4) / 2)
    assert rate(4000, **settings) == 7e-4
    assert rate(16000, **settings) == pytest.approx(3.5e-4)
    assert rate(1, peak_lr=1e-3, warmup=0) == 1e-3


def test_linear_falls_from_the_end_of_the_warm_up_to_the_end_of_the_stage():
    settings = {"peak_lr": 1.0, "warmup": 100, "schedule": "linear"}
    assert rate(50, **settings) == pytest.approx(0.5)
    assert rate(100, **settings) == 1.0
    assert rate(1000, **settings) == pytest.approx(1 / 901)
    assert rate(550, **settings) == pytest.approx(1 - 450 / 901)


def test_cosine():
    settings = {"peak_lr": 1.0, "warmup": 0, "schedule": "cosine"}
    assert rate(500, stage_steps=999, **settings) == pytest.approx(0.5)
    assert rate(250, stage_steps=999, **settings) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_wsd_is_constant_and_decays_at_the_end():
    settings = {"peak_lr": 1.0, "warmup": 10, "schedule": "wsd"}
    assert rate(10, **settings) == rate(799, **settings) == 1.0
    assert rate(850, **settings) == pytest.approx(1 - (50 / 201) ** 0.5)
    half = settings | {"decay": 0.5}
    assert rate(500, **half) == 1.0
    assert rate(750, **half) == pytest.approx(1 - (250 / 501) ** 0.5)


def test_a_stage_that_continues_the_optimizer_has_no_warm_up_and_its_own_decay():
    settings = OptimizerSettings(peak_lr=1.0, warmup=100, schedule="linear", decay=0.5)
    assert learning_rate(Place(1001, 1, 200), settings) == 1.0
    assert learning_rate(Place(1150, 150, 200), settings) == pytest.approx(1 - 50 / 101)


def test_a_longer_stage_has_the_rates_of_its_new_length():
    settings = OptimizerSettings(peak_lr=1.0, warmup=0, schedule="wsd")
    assert learning_rate(Place(1000, 1000, 1000), settings) < 0.01
    assert learning_rate(Place(1001, 1001, 2000), settings) == 1.0


@given(
    schedule=st.sampled_from(["linear", "cosine", "wsd"]),
    decay=st.floats(0.01, 1.0),
    warmup=st.integers(0, 50),
    steps=st.integers(51, 300),
)
def test_rates_rise_to_the_peak_and_fall_without_reaching_zero(schedule, decay, warmup, steps):
    settings = {"peak_lr": 1.0, "warmup": warmup, "schedule": schedule, "decay": decay}
    rates = [rate(step, steps, **settings) for step in range(1, steps + 1)]
    peak = max(warmup, 1) - 1
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert all(0 < value <= 1 for value in rates)


def test_decay_needs_a_schedule_that_decays():
    with pytest.raises(ValidationError, match="inverse-sqrt, which never ends"):
        OptimizerSettings(schedule="inverse-sqrt", decay=0.5)
