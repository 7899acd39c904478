"""Tokenised BLEU: cases computed by hand, and agreement with sacrebleu."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbmi.errors import UserError
from cbmi.evaluation.multi_bleu import multi_bleu, tokenize

line = st.lists(st.sampled_from("abcde"), max_size=12).map(" ".join)


def test_by_hand():
    # 1-grams 5/6, 2-grams 3/5, 3-grams 2/4, 4-grams 1/3; six tokens against seven.
    result = multi_bleu(["a b c d x e"], ["a b c d e f g"])
    assert result.precisions == pytest.approx((500 / 6, 60, 50, 100 / 3))
    assert result.brevity_penalty == pytest.approx(math.exp(1 - 7 / 6))
    expected = 100 * math.exp(1 - 7 / 6) * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert result.score == pytest.approx(expected)
    assert str(result) == (
        "BLEU = 45.48, 83.3/60.0/50.0/33.3 (BP=0.846, ratio=0.857, hyp_len=6, ref_len=7)"
    )


def test_counts_are_clipped_by_the_line_not_the_corpus():
    # "the" occurs once in each reference: one match in each line, not four in all.
    result = multi_bleu(["the the the", "the the"], ["the cat", "on the mat"])
    assert result.precisions[0] == pytest.approx(100 * 2 / 5)


def test_no_brevity_penalty_for_longer_hypotheses():
    result = multi_bleu(["a b c d e f"], ["a b c d e"])
    assert result.brevity_penalty == 1.0
    assert result.precisions == pytest.approx((500 / 6, 80, 75, 200 / 3))


def test_identical_is_100():
    lines = ["a b c d", "e f g h i"]
    assert multi_bleu(lines, lines).score == pytest.approx(100)


def test_any_order_without_match_gives_0():
    result = multi_bleu(["a b c x d e f"], ["a b c y d e f"])
    assert result.precisions[:3] == pytest.approx((600 / 7, 400 / 6, 40))
    assert result.precisions[3] == result.score == 0


def test_case_matters():
    assert multi_bleu(["Das Haus"], ["das haus"]).precisions[0] == 0


def test_empty_hypothesis_lines_count_in_the_reference_length():
    result = multi_bleu(["", "a b c d e"], ["a b c", "a b c d e"])
    assert (result.hypothesis_length, result.reference_length) == (5, 8)
    assert result.score == pytest.approx(100 * math.exp(1 - 8 / 5))


@pytest.mark.parametrize(("hypothesis", "reference"), [("", "a b c d"), ("a b c d", ""), ("", "")])
def test_nothing_on_one_side_gives_0(hypothesis, reference):
    result = multi_bleu([hypothesis], [reference])
    assert result.score == result.brevity_penalty == 0
    assert str(result).startswith("BLEU = 0.00, 0.0/0.0/0.0/0.0 (BP=0.000, ratio=0.000")


def test_only_ascii_whitespace_splits():
    assert multi_bleu(["a\u00a0b\u2003c\u3000d\u0085e"], ["a"]).hypothesis_length == 1
    assert multi_bleu([" a \t b\x0bc\x0cd\re "], ["a"]).hypothesis_length == 5


def length_when_split(text: str) -> int:
    return multi_bleu([text], ["x"], split_compounds=True).hypothesis_length


def test_compounds_are_split_on_both_sides():
    result = multi_bleu(["a rich-text format"], ["a rich-text file"], split_compounds=True)
    assert result.hypothesis_length == result.reference_length == 5
    assert result.precisions == pytest.approx((80, 75, 200 / 3, 50))
    assert multi_bleu(["rich-text format"], ["rich-text format"]).hypothesis_length == 2


def test_compound_splitting_does_not_look_back():
    # Perl's s///g goes on after what it matched. In "a-b-c" the first match takes "a-b" with it,
    # which leaves "-c" without a letter before; in "ab-cd-ef" a letter remains.
    assert length_when_split("a-b-c") == 3
    assert length_when_split("ab-cd-ef") == 5
    # Perl sees "ä" as two bytes: the first goes with the first hyphen, the second with the second.
    assert length_when_split("a-ä-c") == 5


@pytest.mark.parametrize("text", ["-", "a-", "-a", "- a", "a -"])
def test_hyphens_at_a_word_end_stay(text):
    assert length_when_split(text) == len(text.split())


def test_signature_says_what_was_done():
    plain = multi_bleu(["a b"], ["a b"])
    assert plain.signature == "multi-bleu|case:mixed|tok:given|split:none"
    split = multi_bleu(["a b"], ["a b"], split_compounds=True)
    assert split.signature.endswith("|tok:given|split:compounds")


def test_tokenize_by_moses():
    assert tokenize(['Das Haus, sagt er, ist "rot" & neu.'], "de") == [
        'Das Haus , sagt er , ist " rot " & neu .'
    ]
    result = multi_bleu(["Das Haus."], ["Das Haus ."], language="de")
    assert result.hypothesis_length == result.reference_length == 3
    assert result.signature == "multi-bleu|case:mixed|tok:moses-de|split:none"


def test_tokenize_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses.corpus", None)
    with pytest.raises(UserError, match=r"cbmi\[eval\]"):
        tokenize(["a"], "de")


def test_unequal_counts():
    with pytest.raises(UserError, match="2 hypotheses but 1 references"):
        multi_bleu(["a", "b"], ["a"])


@given(st.lists(st.tuples(line, line), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_equals_sacrebleu_without_tokenizer_and_smoothing(pairs):
    from sacrebleu.metrics import BLEU

    hypotheses = [hypothesis for hypothesis, _ in pairs]
    references = [reference for _, reference in pairs]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    theirs = metric.corpus_score(hypotheses, [references])
    ours = multi_bleu(hypotheses, references)
    assert ours.score == pytest.approx(theirs.score, abs=1e-9)
    assert ours.precisions == pytest.approx(theirs.precisions)
    assert (ours.hypothesis_length, ours.reference_length) == (theirs.sys_len, theirs.ref_len)
