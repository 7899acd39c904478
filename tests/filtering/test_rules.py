"""What is kept: rules come before the score, the share is exact, and settings are checked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmi.errors import UserError
from cbmi.filtering.rules import (
    FilterSettings,
    PairFeatures,
    PairTable,
    Verdict,
    outcome,
    pair_features,
    score_text,
)


def table(scores, empty=None, copies=None, lengths=None, texts=None):
    """What is not given is as it should be: no empty side, no copy, equal lengths, no repeat."""
    nothing = np.zeros(len(scores), bool)
    features = PairFeatures(
        empty=nothing if empty is None else empty,
        copies=nothing if copies is None else np.asarray(copies, bool),
        log_length_ratio=np.zeros(len(scores)) if lengths is None else np.asarray(lengths, float),
        text_hash=np.arange(len(scores)) if texts is None else np.asarray(texts, float),
    )
    return PairTable(np.asarray(scores, float), features)


def labels(settings, rows):
    return [Verdict(verdict).label for verdict in settings.verdicts(rows)]


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30),
    st.floats(0.01, 1.0),
)
def test_the_share_is_exact(rows, share):
    scores = np.array([row[0] for row in rows], float)
    empty = np.array([row[1] for row in rows])
    kept = FilterSettings(keep=share).verdicts(table(scores, empty)) == Verdict.KEPT
    assert kept.sum() == round(share * (~empty).sum())
    assert not (kept & empty).any()
    for place in np.flatnonzero(kept):
        better = (scores > scores[place]) & ~empty
        assert kept[better].all()  # nothing better was dropped
        earlier_equals = (scores[:place] == scores[place]) & ~empty[:place]
        assert kept[:place][earlier_equals].all()  # of equals, the first


def test_rules_come_before_the_score():
    """Lengths are judged by the usual ratio, which need not be 1; the share is of what is left."""
    usual = np.log(1.5)
    lengths = usual + np.log([1.0, 1.9, 2.1, 1 / 1.9, 1 / 2.1, 1.0, 1.0, 1.0])
    extreme = np.array([9.0] * 20)  # empty sides do not decide what is usual
    lengths = np.concatenate([lengths, extreme])
    scores = [5, 4, 9, 3, 9, 9, 2, 1, *extreme]
    copies = [0, 0, 0, 0, 0, 1, 0, 0, *[0] * 20]
    rows = table(scores, np.arange(28) >= 8, copies, lengths)
    settings = FilterSettings(keep=0.8, drop_copies=True, max_ratio=2.0)
    found = labels(settings, rows)[:9]
    assert found == ["kept", "kept", "lengths", "kept", "lengths", "copy", "kept", "score", "empty"]
    only_rules = labels(FilterSettings(max_ratio=2.0), rows)[:9]
    expected = ["kept", "kept", "lengths", "kept", "lengths", "kept", "kept", "kept", "empty"]
    assert only_rules == expected


def test_the_first_of_equal_pairs_is_kept():
    pairs = [
        ("a b", "c"),
        ("a", "b c"),
        ("a  b ", "c"),
        ("a b", "d"),
        ("", ""),
        ("", ""),
        ("a", "b c"),
    ]
    rows = PairTable(np.zeros(len(pairs)), pair_features(pairs))
    found = labels(FilterSettings(drop_duplicates=True), rows)
    assert found == ["kept", "kept", "duplicate", "kept", "empty", "empty", "duplicate"]


def test_settings_are_checked():
    nan = float("nan")
    for wrong in (
        {"keep": 0.5, "minimum": 1.0},
        {"keep": 0.0},
        {"keep": 1.5},
        {"keep": nan},
        {"minimum": nan},
        {"minimum": 0.5, "by": "likelihood"},
        {"max_ratio": 1.0},
        {"max_ratio": nan},
        {"max_ratio": float("inf")},
        {"by": "length"},
    ):
        with pytest.raises(UserError):
            FilterSettings(**wrong)


def test_numbers_as_they_were_given():
    assert score_text(-4.094) == "-4.094"
    assert score_text(1.2345678) == "1.234"
    assert score_text(-1.2345678) == "-1.235"  # as --min, it keeps no less
    rows = table([1.0, 0.0004])
    settings = FilterSettings(minimum=0.0005)
    verdicts = settings.verdicts(rows)
    said = outcome(settings, verdicts, settings.threshold(rows.scores, verdicts))
    assert "with a CBMI of at least 0.0005" in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"by": "length"}, "by: 'length' is not one of cbmi, likelihood."),
        (
            {"keep": 0.5, "minimum": 1},
            "give keep (--keep, a share) or minimum (--min, a score), not both.",
        ),
        (
            {"by": "likelihood", "minimum": 0.5},
            "minimum: 0.5 is above 0, but a log-likelihood never is; use a number such as -1.",
        ),
        ({"max_ratio": 1}, "max_ratio: 1 should be a number above 1, such as 2."),
    ],
)
def test_messages_name_settings(settings, says):
    with pytest.raises(UserError) as caught:
        FilterSettings(**settings)
    assert str(caught.value) == says
