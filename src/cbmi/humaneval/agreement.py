"""Agreement between annotators, and tests of differences between systems that they rated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

# Landis and Koch, 1977: what an agreement is called up to this kappa. Below 0 it is poor.
READINGS = (
    (0.2, "slight"),
    (0.4, "fair"),
    (0.6, "moderate"),
    (0.8, "substantial"),
    (1.0, "almost perfect"),
)
PATTERNS = 10_000  # of signs, for the paired test
RESAMPLES = 1_000  # for the bootstrap
ROUNDING = 1e-12  # means that differ by less are equal


class MeanKappa(NamedTuple):
    mean: float | None  # over the pairs of raters; None if no two rated the same thing
    pairs: dict[tuple[str, str], float]  # of each pair


def cohen_kappa(one: Sequence[int], other: Sequence[int]) -> float:
    """How far two raters of the same things agree beyond chance: (p_o - p_e) / (1 - p_e).

    It is 1 where both gave one and the same value throughout: chance alone would make them agree.
    """
    if len(one) != len(other) or not len(one):
        raise ValueError("both raters need values for the same things")
    values = np.array(sorted({*one, *other}))
    # (things, values): 1 where a rater gave the thing this value.
    one_hot = (np.array(one)[:, None] == values).astype(float)
    other_hot = (np.array(other)[:, None] == values).astype(float)
    observed = float((one_hot * other_hot).sum() / len(one))
    expected = float(one_hot.mean(0) @ other_hot.mean(0))
    if expected >= 1:
        return 1.0
    return (observed - expected) / (1 - expected)


def mean_kappa(raters: Mapping[str, Mapping[int, int]]) -> MeanKappa:
    """Cohen's kappa of all pairs of raters, each over the things that both rated, and their mean.

    `raters`: each rater's values by thing.
    """
    pairs = {}
    for one, other in combinations(raters, 2):
        common = sorted(raters[one].keys() & raters[other].keys())
        if common:
            values = [raters[one][thing] for thing in common]
            other_values = [raters[other][thing] for thing in common]
            pairs[one, other] = cohen_kappa(values, other_values)
    if not pairs:
        return MeanKappa(None, {})
    return MeanKappa(float(np.mean(list(pairs.values()))), pairs)


def reading(kappa: float) -> str:
    """What such an agreement is usually called."""
    if kappa < 0:
        return "poor"
    for limit, name in READINGS:
        if kappa <= limit:
            return name
    return READINGS[-1][1]  # 1, up to rounding


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95% interval of the mean, by bootstrap: its lower and its upper bound."""
    sample = np.asarray(values, float)
    random = np.random.default_rng(seed)
    means = []
    for _ in range(RESAMPLES):
        resample = sample[random.integers(0, len(sample), len(sample))]
        means.append(resample.mean())
    low, high = np.quantile(np.array(means), [0.025, 0.975])
    return float(low), float(high)


def paired_test(differences: Sequence[float], seed: int = 0) -> float:
    """p of the mean difference, two-sided, by randomisation.

    Under the null hypothesis the sign of each difference is chance. All patterns of signs are
    counted if they are few, otherwise `PATTERNS` random ones and the observed one.
    """
    observed = np.asarray(differences, float)
    count = len(observed)
    at_least = abs(observed.mean()) - ROUNDING
    if 2**count <= PATTERNS:
        bits = (np.arange(2**count)[:, None] >> np.arange(count)) & 1  # (patterns, differences)
        means = ((1 - 2 * bits) * observed).mean(1)
        return float((np.abs(means) >= at_least).mean())
    random = np.random.default_rng(seed)
    extreme = 1  # the observed pattern
    for _ in range(PATTERNS):
        signs = random.integers(0, 2, count) * 2 - 1
        if abs((signs * observed).mean()) >= at_least:
            extreme += 1
    return extreme / (PATTERNS + 1)
