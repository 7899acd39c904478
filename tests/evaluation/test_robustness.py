"""What BLEU and chrF do not show, on a handful of sentences counted by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from cbmi.errors import UserError
from cbmi.evaluation.robustness import count_words, robustness, words_of


def test_shares_counted_by_hand():
    training = count_words(["Der Hund bellt.", *["Die Katze schläft."] * 20], "de")
    assert training["katze"] == 20
    references = [
        "Die Katze bellt.",
        "Der Wal singt.",
        "Die Katze schläft, die Katze schläft, die Katze schläft.",
    ]
    hypotheses = [
        "Die Katze bellt.",
        "xyzzy",
        "Die Katze schläft die Katze schläft die Katze schläft die Katze schläft",
    ]
    found = robustness(hypotheses, references, "de", training)
    assert found.failed == pytest.approx(1 / 3)
    assert found.length_ratio == pytest.approx((3 + 1 + 12) / (3 + 3 + 9))
    assert found.repeating == pytest.approx(1 / 3)  # the reference repeats itself, but less
    assert found.unseen_recall == 0.0  # wal, singt
    assert found.rare_recall == pytest.approx(1 / 2)  # bellt is found, der is not


def test_every_word_is_known():
    found = robustness(["a b"], ["a b"], "de", Counter({"a": 100, "b": 100}))
    assert (found.failed, found.repeating) == (0.0, 0.0)
    assert found.unseen_recall is None
    assert found.rare_recall is None


def test_languages_without_spaces_are_counted_by_character():
    assert words_of("你好，世界 abc", "zh") == ["你", "好", "世", "界", "a", "b", "c"]
    assert words_of("Hallo, Welt!", "de") == ["hallo", "welt"]


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="2 translations, but 1 references"):
        robustness(["a", "b"], ["a"], "de", Counter())
    with pytest.raises(UserError, match="nothing to evaluate"):
        robustness([], [], "de", Counter())
