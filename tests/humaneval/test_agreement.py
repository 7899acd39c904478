"""Agreement of annotators and tests between systems, against cases worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmi.humaneval.agreement import cohen_kappa, interval, mean_kappa, paired_test, reading

RATINGS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=40)


def test_kappa_of_a_case_by_hand():
    """50 things, yes and no: 20 both yes, 15 both no, 5 and 10 apart.

    p_o = 0.7, p_e = 0.5·0.6 + 0.5·0.4 = 0.5.
    """
    one = [1] * 25 + [2] * 25
    other = [1] * 20 + [2] * 5 + [1] * 10 + [2] * 15
    assert cohen_kappa(one, other) == pytest.approx(0.4)


@given(RATINGS)
def test_kappa_is_the_definition(pairs):
    one = [a for a, _ in pairs]
    other = [b for _, b in pairs]
    observed = sum(a == b for a, b in pairs) / len(pairs)
    expected = sum(one.count(v) * other.count(v) for v in range(1, 6)) / len(pairs) ** 2
    wanted = 1.0 if expected == 1 else (observed - expected) / (1 - expected)
    kappa = cohen_kappa(one, other)
    assert math.isfinite(kappa)
    assert kappa == pytest.approx(wanted)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_raters_who_always_agree(values):
    assert cohen_kappa(values, values) == pytest.approx(1.0)


def test_constant_raters_do_not_divide_by_zero():
    assert cohen_kappa([3, 3, 3], [3, 3, 3]) == 1.0
    assert cohen_kappa([3, 3, 3], [4, 4, 4]) == 0.0
    assert cohen_kappa([3, 3, 3], [3, 4, 5]) == 0.0


def test_the_mean_is_over_pairs_and_what_both_rated():
    raters = {"a": {1: 1, 2: 2, 3: 5}, "b": {1: 1, 2: 2}, "c": {3: 4}}
    mean, pairs = mean_kappa(raters)
    assert pairs == {("a", "b"): 1.0, ("a", "c"): 0.0}
    assert mean == 0.5
    assert mean_kappa({"a": {1: 1}, "b": {2: 1}}) == (None, {})


@pytest.mark.parametrize(
    ("kappa", "name"),
    [
        (-0.1, "poor"),
        (0.0, "slight"),
        (0.2, "slight"),
        (0.41, "moderate"),
        (0.61, "substantial"),
        (1, "almost perfect"),
    ],
)
def test_readings(kappa, name):
    assert reading(kappa) == name


def test_the_paired_test_counts_sign_patterns():
    assert paired_test([1, 1, 1]) == pytest.approx(2 / 8)
    assert paired_test([0, 0, 0]) == 1.0
    assert paired_test([1, -1]) == 1.0
    assert paired_test([0.5] * 40) < 0.001
    random = np.random.default_rng(1)
    assert paired_test(random.normal(size=200)) > 0.05


def test_the_interval_holds_the_mean():
    low, high = interval([1, 2, 3, 4, 5] * 20)
    assert low < 3 < high
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(2) / 10, rel=0.15)
    assert interval([4.0] * 5) == (4.0, 4.0)
