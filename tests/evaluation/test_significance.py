"""Significance over several runs, as sacrebleu has it for one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cbmi.errors import UserError
from cbmi.evaluation.metrics import evaluate
from cbmi.evaluation.multi_bleu import multi_bleu
from cbmi.evaluation.significance import Metric, compare

TEXT = "der die das Haus Baum geht steht sehr alt neu , . und nicht"
WORDS = TEXT.split()


def outputs(count: int = 60, runs: int = 4) -> tuple[list[str], list[list[str]]]:
    """References, and outputs with more and more errors."""
    draw = random.Random(3)
    references = [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(count)]
    texts = []
    for run in range(runs):
        errors = 0.1 + 0.05 * run
        texts.append([with_errors(line, errors, draw) for line in references])
    return references, texts


def with_errors(line: str, share: float, draw: random.Random) -> str:
    words = line.split()
    for place, _ in enumerate(words):
        if draw.random() <= share:
            words[place] = draw.choice(WORDS)
    return " ".join(words)


@pytest.mark.parametrize(("name", "theirs"), [("bleu", "BLEU"), ("chrf", "chrF2"), ("ter", "TER")])
def test_one_run_of_each_is_sacrebleus_own_test(name, theirs):
    references, (first, second, *_) = outputs()
    report = evaluate(references, {"first": first, "second": second})
    metric = Metric(name, references, "de")
    found = compare([metric.resampled(first, 1000)], [metric.resampled(second, 1000)])
    expected = report.systems[1].metrics[theirs]
    assert found.p == expected.p_value
    assert found.difference == pytest.approx(expected.difference, abs=1e-9)
    their_signature = report.signatures[theirs]
    without_bootstrap = their_signature.replace("|bs:1000", "").replace("|seed:12345", "")
    assert metric.signature() == without_bootstrap


def test_runs_are_averaged_draw_by_draw():
    references, texts = outputs()
    metric = Metric("bleu", references, "de")
    a, b, c, d = (metric.resampled(lines, 500) for lines in texts)
    found = compare([a, b], [c, d])
    assert found.difference == pytest.approx((c.score + d.score - a.score - b.score) / 2)
    moved = np.abs((c.samples + d.samples - a.samples - b.samples) / 2)
    assert found.p == (np.sum(moved - moved.mean() > abs(found.difference)) + 1) / 501
    differences = [c.score - a.score, d.score - b.score]
    assert found.over_seeds.error == pytest.approx(np.std(differences, ddof=1) / np.sqrt(2))


def test_a_system_does_not_differ_from_itself():
    references, (first, *_) = outputs()
    run = Metric("bleu", references, "de").resampled(first, 100)
    found = compare([run], [run])
    assert (found.difference, found.p, found.over_seeds) == (0.0, 1.0, None)


def test_multi_bleu_is_that_of_the_script():
    references, (first, *_) = outputs()
    score = Metric("multi-bleu", references, "de").resampled(first, 2).score
    assert score == pytest.approx(multi_bleu(first, references, language="de").score)


def test_translations_and_references_go_together():
    references, (first, *_) = outputs()
    with pytest.raises(UserError, match="59 translations, but 60 references"):
        Metric("bleu", references, "de").resampled(first[1:], 10)


def test_languages_without_spaces_have_a_tokenizer():
    metric = Metric("bleu", ["我喜欢猫和狗。", "今天天气很好。"], "zh")
    assert metric.resampled(["我喜欢猫和鸟。", "今天天气不好。"], 2).score > 20
    assert "tok:zh" in metric.signature()
