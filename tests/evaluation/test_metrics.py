"""Evaluation with sacrebleu: its own figures, repeatable, and errors that name the system."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from typing import Any

import pytest
from tasks import cbmi

from cbmi.errors import UserError
from cbmi.evaluation.metrics import (
    _sacrebleu_seed,
    bleu_tokenizer,
    corpus_bleu,
    corpus_chrf,
    evaluate,
)
from cbmi.evaluation.text_table import render

RESAMPLES = 40
METRICS = ["BLEU", "chrF2", "TER"]


def corpus(lines: int = 30, seed: int = 7) -> tuple[list[str], dict[str, list[str]]]:
    """References, and two systems that get words wrong, the second fewer."""
    chance = random.Random(seed)
    vocabulary = ["the", "old", "house", "stands", "near", "a", "quiet", "river", "and", "red"]
    references = []
    for _ in range(lines):
        words = chance.choices(vocabulary, k=chance.randint(5, 14))
        references.append(" ".join(words) + ".")

    def noisy(line: str, rate: float) -> str:
        return " ".join("blue" if chance.random() < rate else word for word in line.split())

    systems = {
        "baseline": [noisy(line, 0.25) for line in references],
        "better": [noisy(line, 0.1) for line in references],
    }
    return references, systems


@pytest.fixture(scope="module")
def data():
    return corpus()


@pytest.fixture(scope="module")
def report(data):
    return evaluate(*data, bootstrap=RESAMPLES)


def own_metrics() -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF, TER

    return {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}


def test_figures_and_intervals_are_sacrebleus(data, report):
    references, systems = data
    for system in report.systems:
        for name, metric in own_metrics().items():
            theirs = metric.corpus_score(systems[system.name], [references], n_bootstrap=RESAMPLES)
            ours = system.metrics[name]
            assert ours.score == theirs.score
            assert (ours.mean, ours.interval) == pytest.approx((theirs._mean, theirs._ci))
            assert report.signatures[name] == str(metric.get_signature())


def test_p_values_are_sacrebleus(data, report):
    from sacrebleu.significance import PairedTest

    references, systems = data
    test = PairedTest(list(systems.items()), own_metrics(), [references], "bs", n_samples=RESAMPLES)
    _, theirs = test()
    for name in METRICS:
        ours = report.systems[1].metrics[name]
        assert ours.p_value == theirs[name][1].p_value
        assert ours.difference == theirs[name][1].score - theirs[name][0].score
        assert report.systems[0].metrics[name].p_value is None


def test_one_system_gets_the_same_interval_as_among_several(data, report):
    references, systems = data
    alone = evaluate(references, {"better": systems["better"]}, bootstrap=RESAMPLES)
    for name in METRICS:
        ours = alone.systems[0].metrics[name]
        among = report.systems[1].metrics[name]
        assert (ours.score, ours.interval) == pytest.approx((among.score, among.interval))
        assert ours.difference is ours.p_value is None
    assert alone.signatures == report.signatures


def test_a_system_does_not_differ_from_itself(data):
    references, systems = data
    twice = {"a": systems["better"], "b": systems["better"]}
    same = evaluate(references, twice, bootstrap=RESAMPLES)
    for score in same.systems[1].metrics.values():
        assert (score.difference, score.p_value) == (0.0, 1.0)


def test_repeatable_and_dependent_on_the_seed(data, report, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    assert evaluate(*data, bootstrap=RESAMPLES) == report
    assert os.environ["SACREBLEU_SEED"] == "99"
    other = evaluate(*data, bootstrap=RESAMPLES, seed=1)
    assert other.systems[0].metrics["BLEU"].interval != report.systems[0].metrics["BLEU"].interval
    assert "seed:1|" in other.signatures["BLEU"]


def test_environment_is_left_as_found(data, monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    evaluate(*data, bootstrap=0)
    assert "SACREBLEU_SEED" not in os.environ


def test_seeds_of_two_threads_do_not_mix(monkeypatch):
    """The second thread waits: else it would restore what the first one has set."""
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    entered = threading.Event()
    seen = []

    def second() -> None:
        with _sacrebleu_seed(2):
            entered.set()
            seen.append(os.environ["SACREBLEU_SEED"])

    thread = threading.Thread(target=second)
    with _sacrebleu_seed(1):
        thread.start()
        assert not entered.wait(0.2)
        assert os.environ["SACREBLEU_SEED"] == "1"
    thread.join()
    assert seen == ["2"]
    assert "SACREBLEU_SEED" not in os.environ


def test_without_bootstrap(data):
    plain = evaluate(*data, bootstrap=0)
    for system in plain.systems:
        for score in system.metrics.values():
            assert score.mean is score.interval is score.difference is score.p_value is None
    assert "bs:" not in plain.signatures["BLEU"]
    assert "±" not in render(plain)


def test_multi_bleu_is_added(data):
    references, systems = data
    added = evaluate(
        references, systems, bootstrap=0, multi_bleu=True, tokenize="en", split_compounds=True
    )
    assert 0 < added.systems[0].multi_bleu.score < added.systems[1].multi_bleu.score < 100
    assert added.signatures["multi-BLEU"] == "multi-bleu|case:mixed|tok:moses-en|split:compounds"
    assert "multi-BLEU" in render(added).splitlines()[0]


def test_json_is_plain(data):
    added = evaluate(*data, bootstrap=RESAMPLES, multi_bleu=True)
    plain = added.to_json()
    assert json.loads(json.dumps(plain)) == plain
    p_value = plain["systems"][1]["metrics"]["BLEU"]["p_value"]
    assert p_value == added.systems[1].metrics["BLEU"].p_value


def test_corpus_scores(data):
    references, systems = data
    own = own_metrics()
    lines = systems["baseline"]
    assert corpus_bleu(lines, references) == own["BLEU"].corpus_score(lines, [references]).score
    assert corpus_chrf(lines, references) == own["chrF2"].corpus_score(lines, [references]).score
    assert corpus_bleu(lines, references, tokenizer="none") < corpus_bleu(lines, references)


def test_table(data, report):
    table = render(report)
    header, rule, baseline, better = table.splitlines()[:4]
    assert header.split() == ["system", "BLEU", "Δ", "p", "chrF2", "Δ", "p", "TER", "Δ", "p"]
    assert len(rule) == max(len(header), len(baseline), len(better))
    assert f"{report.systems[0].metrics['TER'].score:.2f} ±" in baseline
    assert f"{report.systems[1].metrics['BLEU'].difference:+.2f}" in better
    assert report.systems[1].metrics["BLEU"].p_value == pytest.approx(1 / (RESAMPLES + 1))
    assert "0.024* " in better
    assert "lower is better for TER" in table
    assert all(signature in table for signature in report.signatures.values())


def test_unequal_counts_name_the_system(data):
    references, systems = data
    with pytest.raises(UserError, match="'better' has 29 lines but the references have 30"):
        evaluate(references, {**systems, "better": systems["better"][1:]}, bootstrap=0)


@pytest.mark.parametrize(
    ("references", "systems", "settings", "message"),
    [
        ([], {"a": []}, {}, "references are empty"),
        (["x"], {}, {}, "no system"),
        (["x"], {"a": ["x"]}, {"bootstrap": 1}, "bootstrap is 1"),
        (["x"], {"a": ["x"]}, {"bootstrap": -5}, "bootstrap is -5"),
        (["x"], {"a": ["x"]}, {"seed": 0}, "seed is 0"),
        (["x"], {"a": ["x"]}, {"tokenize": "de"}, "turn on multi_bleu as well"),
    ],
)
def test_errors(references, systems, settings, message):
    with pytest.raises(UserError, match=message):
        evaluate(references, systems, **settings)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(UserError, match=r"cbmi\[eval\]"):
        corpus_bleu(["a"], ["a"])


@pytest.mark.parametrize("language", ["zh", "zh-CN", "ZH_TW", "cmn", "ja", "th"])
def test_text_without_spaces_is_cut_into_characters(language):
    """Against sacrebleu itself; a character that is missing costs little, not the whole line."""
    from sacrebleu.metrics import BLEU, TER

    references = ["我们今天去看电影吧", "他说的话我没有听懂"]
    hypotheses = ["我们今天去看电影", "他说的话我没听懂"]
    report = evaluate(references, {"a": hypotheses}, bootstrap=0, language=language)
    found = report.systems[0].metrics
    tokenizer = "zh" if language[:2].lower() in ("zh", "cm") else "char"
    assert bleu_tokenizer(language) == tokenizer
    bleu = BLEU(tokenize=tokenizer).corpus_score(hypotheses, [references]).score
    assert found["BLEU"].score == bleu > 70
    ter = TER(normalized=True, asian_support=True).corpus_score(hypotheses, [references]).score
    assert found["TER"].score == ter < 20


def test_text_without_spaces_is_noticed(tmp_path):
    (tmp_path / "zh").write_text("我们今天去看电影吧\n")
    (tmp_path / "en").write_text("we 去 to the cinema\n")
    for name, said in (("zh", True), ("en", False)):
        command = ("evaluate", "--reference", tmp_path / name, tmp_path / name, "--bootstrap", "0")
        result = cbmi(*command)
        assert ("looks like text without spaces" in result.stderr.decode()) == said
    command = ("evaluate", "--reference", tmp_path / "zh", tmp_path / "zh", "--bootstrap", "0")
    result = cbmi(*command, "--language", "zh")
    assert result.stderr.decode() == ""
    assert "tok:zh" in result.stdout.decode()
