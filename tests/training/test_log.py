"""Figures of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cbmi.training.log import QUANTILES, SAMPLES, Meter
from cbmi.training.world import World


def meter():
    return Meter(World(0, 1, torch.device("cpu")))


def test_quantiles_are_those_of_the_real_tokens():
    meter_ = meter()
    random = np.random.default_rng(0)
    weights = random.exponential(1, 200)
    mask = random.random(200) < 0.7
    meter_.sample(torch.tensor(weights), torch.tensor(mask))
    found = meter_.quantiles()
    assert list(found.values()) == pytest.approx(
        np.quantile(weights[mask], [q / 100 for q in QUANTILES]).tolist(), rel=1e-6
    )


def test_a_long_time_between_two_readings_takes_no_more_memory():
    """Weights grow from 0 to 1 over ten thousand steps; samples are kept from all of them."""
    meter_ = meter()
    for step in range(10_000):
        meter_.sample(torch.full((900,), step / 10_000), torch.ones(900, dtype=torch.bool))
    assert meter_.samples.shape == (SAMPLES + 1, 256)
    found = meter_.quantiles()
    assert [found[f"weight_q{q:02}"] for q in QUANTILES] == pytest.approx(
        [q / 100 for q in QUANTILES], abs=0.08
    )
