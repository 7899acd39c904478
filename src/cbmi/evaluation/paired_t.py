"""Whether a difference holds over training runs: the paired t-test, its power, Holm's correction.

Two systems are trained with the same seeds, and the differences of their scores, seed by seed, are
the sample. So the test covers what a bootstrap over sentences does not: that another seed gives
another model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

LEVEL = 0.05  # of significance, two-sided
POWER = 0.8
FEWEST_SEEDS = 3  # that the reports mark differences with
MOST_SEEDS = 100  # that `seeds_needed` counts to

# Where Student's t is integrated over its denominator, evenly spaced in the logarithm.
_LOG_SCALES = np.linspace(math.log(1e-9), math.log(1e2), 4001)
_SCALES = np.exp(_LOG_SCALES)


@dataclass(frozen=True)
class SeedTest:
    """A paired t-test of the differences between two systems, one for each seed."""

    seeds: int
    mean: float
    error: float  # standard error of the mean
    p: float  # two-sided

    @property
    def std(self) -> float:
        """Of the differences over the seeds."""
        return self.error * math.sqrt(self.seeds)

    def detectable(self, tests: int = 1) -> float:
        """The true difference that this many seeds show; see `detectable_difference`."""
        return detectable_difference(self.std, self.seeds, tests)

    def seeds_needed(self, tests: int = 1) -> int | None:
        """For a true difference as large as the mean; see `seeds_needed`."""
        return seeds_needed(self.mean, self.std, tests)


def paired_t_test(differences: Sequence[float]) -> SeedTest | None:
    """None for fewer than two seeds, which have no spread."""
    seeds = len(differences)
    if seeds < 2:
        return None
    mean = float(np.mean(differences))
    std = float(np.std(differences, ddof=1))
    error = std / math.sqrt(seeds)
    if error > 0:
        p = t_beyond(abs(mean) / error, seeds - 1)
    else:
        p = 0.0 if mean else 1.0
    return SeedTest(seeds, mean, error, p)


def detectable_difference(std: float, seeds: int, tests: int = 1) -> float:
    """The true difference that the test finds in four of five experiments with so many seeds.

    `std`: of the differences over the seeds. `tests`: how many Holm's method corrects for; the
    difference is then found even if none of the others is.
    """
    return _detectable_in_errors(seeds, tests) * std / math.sqrt(seeds)


def seeds_needed(difference: float, std: float, tests: int = 1) -> int | None:
    """Seeds with which the test finds a true difference in four of five experiments.

    `std` and `tests` as for `detectable_difference`. None: more than `MOST_SEEDS`.
    """
    for seeds in range(2, MOST_SEEDS + 1):
        if detectable_difference(std, seeds, tests) <= abs(difference):
            return seeds
    return None


def holm(p_values: Sequence[float], tests: int = 0) -> list[float]:
    """p-values of several tests, in their order, corrected for their number by Holm's method.

    `tests`: how many are planned, if some of them are still to be made.
    """
    planned = max(tests, len(p_values))
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, (planned - rank) * p_values[place])
        corrected[place] = min(1.0, largest)
    return corrected


def t_beyond(t: float, freedom: int, shift: float = 0.0) -> float:
    """P(|T| > t) of Student's t with `freedom` degrees, noncentral by `shift`."""
    # T = (Z + shift) / S, where freedom·S² is chi-squared: a mean over S of P(|Z + shift| > t·S).
    log_density = freedom * _LOG_SCALES - freedom * _SCALES**2 / 2  # of log S, up to a constant
    density = np.exp(log_density - log_density.max())
    beyond = _normal_cdf(shift - t * _SCALES) + _normal_cdf(-shift - t * _SCALES)
    return float((density * beyond).sum() / density.sum())


@lru_cache(maxsize=16 * MOST_SEEDS)
def _detectable_in_errors(seeds: int, tests: int) -> float:
    """The detectable difference in standard errors of the mean."""
    # The smallest of several p-values is compared with this level by Holm's method.
    level = LEVEL / tests
    critical = _solve(lambda t: t_beyond(t, seeds - 1) < level)
    return _solve(lambda shift: t_beyond(critical, seeds - 1, shift) > POWER)


def _solve(beyond: Callable[[float], bool]) -> float:
    """Where a condition that holds for large numbers begins to hold."""
    low = 0.0
    high = 1.0
    while not beyond(high):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        if beyond(middle):
            high = middle
        else:
            low = middle
    return high


def _normal_cdf(values: np.ndarray) -> np.ndarray:
    # Of the complement, which keeps the digits of small values.
    erfc: np.ndarray = torch.special.erfc(torch.from_numpy(-values / math.sqrt(2))).numpy()
    return erfc / 2
