"""The paired t-test over seeds against SciPy, and Holm's correction by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cbmi.evaluation.paired_t import (
    detectable_difference,
    holm,
    paired_t_test,
    seeds_needed,
    t_beyond,
)

differences_strategy = st.lists(st.floats(-3, 3), min_size=2, max_size=8)


@given(differences_strategy)
def test_p_values_are_those_of_scipy(differences):
    found = paired_t_test(differences)
    if np.std(differences) < 1e-6:
        return
    expected = stats.ttest_1samp(differences, 0)
    assert found.p == pytest.approx(expected.pvalue, abs=1e-7)
    assert found.error == pytest.approx(stats.sem(differences))


@pytest.mark.parametrize("freedom", [1, 2, 5, 30])
@pytest.mark.parametrize("shift", [0.0, 1.0, 5.0])
def test_the_noncentral_distribution(freedom, shift):
    for t in (0.0, 0.5, 2.0, 20.0):
        expected = stats.nct.sf(t, freedom, shift) + stats.nct.cdf(-t, freedom, shift)
        assert t_beyond(t, freedom, shift) == pytest.approx(expected, abs=1e-7)


def test_one_seed_says_nothing_and_equal_differences_say_all():
    assert paired_t_test([0.3]) is None
    assert paired_t_test([0.3, 0.3, 0.3]).p < 1e-6
    assert paired_t_test([0.0, 0.0, 0.0]).p == 1.0


@pytest.mark.parametrize("tests", [1, 4])
def test_the_detectable_difference_is_found_in_four_of_five_experiments(tests):
    """Also after the correction for several tests, of which the others find nothing."""
    random = np.random.default_rng(0)
    for seeds in (3, 6):
        difference = detectable_difference(0.5, seeds, tests)
        samples = random.normal(difference, 0.5, (20_000, seeds))
        p_values = stats.ttest_1samp(samples, 0, axis=1).pvalue
        found = [holm([p, *[1.0] * (tests - 1)])[0] < 0.05 for p in p_values]
        assert np.mean(found) == pytest.approx(0.8, abs=0.01)


def test_seeds_that_a_difference_needs():
    needed = seeds_needed(0.4, 0.5)
    assert detectable_difference(0.5, needed) <= 0.4 < detectable_difference(0.5, needed - 1)
    assert seeds_needed(-0.4, 0.5) == needed
    assert seeds_needed(0.01, 0.5) is None


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
    # Tests that are still to be made count.
    assert holm([0.01, 0.02], tests=5) == pytest.approx([0.05, 0.08])
