"""ROC AUC on cases done by hand."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmi.evaluation.ranking import roc_auc


def test_cases_by_hand():
    assert roc_auc([2, 3], [0, 1]) == 1
    assert roc_auc([0, 1], [2, 3]) == 0
    assert roc_auc([1, 3], [2]) == 0.5
    assert roc_auc([1, 1], [1]) == 0.5
    assert roc_auc([2, 1], [1, 0]) == pytest.approx(3.5 / 4)
    with pytest.raises(ValueError, match="both groups"):
        roc_auc([], [1])


values = st.lists(st.integers(-5, 5), min_size=1, max_size=15)


@given(values, values)
def test_it_is_the_share_of_pairs_in_the_right_order(higher, lower):
    points = [(high > low) + (high == low) / 2 for high, low in product(higher, lower)]
    assert roc_auc(higher, lower) == pytest.approx(sum(points) / len(points))
