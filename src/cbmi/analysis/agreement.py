"""Agreement between annotators, and differences between systems that they rated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

# Landis and Koch, 1977: up to which kappa an agreement is called so.
READINGS = (
    (0.0, "poor"),
    (0.2, "slight"),
    (0.4, "fair"),
    (0.6, "moderate"),
    (0.8, "substantial"),
    (1.0, "almost perfect"),
)
RESAMPLES = 10_000


def cohen_kappa(one: Sequence[int], other: Sequence[int]) -> float:
    """How far two raters of the same things agree beyond chance: (p_o - p_e) / (1 - p_e).

    Where chance alone would make them agree always, both having given one and the same value throughout, it is 1.
    """
    if len(one) != len(other) or not len(one):
        raise ValueError("both raters need values for the same things")
    values = sorted({*one, *other})
    first, second = (np.array([[value == v for v in values] for value in rater], float) for rater in (one, other))
    observed = float((first * second).sum() / len(one))
    expected = float(first.mean(0) @ second.mean(0))
    return 1.0 if expected >= 1 else (observed - expected) / (1 - expected)


def mean_kappa(raters: Mapping[str, Mapping[int, int]]) -> tuple[float | None, dict[tuple[str, str], float]]:
    """The average over all pairs of raters, each by the things that both rated, and each pair's; None: no pair."""
    pairs = {}
    for one, other in combinations(raters, 2):
        common = sorted(raters[one].keys() & raters[other].keys())
        if common:
            pairs[one, other] = cohen_kappa(*([raters[who][thing] for thing in common] for who in (one, other)))
    return (float(np.mean(list(pairs.values()))) if pairs else None), pairs


def reading(kappa: float) -> str:
    """What such an agreement is usually called."""
    if kappa < 0:
        return READINGS[0][1]
    return next((name for limit, name in READINGS[1:] if kappa <= limit), READINGS[-1][1])


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean, by bootstrap."""
    values = np.asarray(values, float)
    random = np.random.default_rng(seed)
    means = np.array([values[random.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES // 10)])
    return tuple(float(bound) for bound in np.quantile(means, [0.025, 0.975]))


def paired_test(differences: Sequence[float], seed: int = 0) -> float:
    """p of the mean difference, two-sided, by randomisation: under the null hypothesis the signs are chance.

    All sign patterns where they are few, else ten thousand at random with the observed one among them.
    """
    differences = np.asarray(differences, float)
    count = len(differences)
    if 2**count <= RESAMPLES:
        bits = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        means = ((1 - 2 * bits) * differences).mean(1)
        return float((np.abs(means) >= abs(differences.mean()) - 1e-12).mean())
    random, extreme = np.random.default_rng(seed), 1
    for _ in range(RESAMPLES):
        signs = random.integers(0, 2, count) * 2 - 1
        extreme += abs((signs * differences).mean()) >= abs(differences.mean()) - 1e-12
    return extreme / (RESAMPLES + 1)
