"""Contrasts: their grammar, their values by hand, and what of them was registered."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest
from scipy import stats

from cbmi.evaluation.robustness import Robustness, count_words, robustness
from cbmi.experiments.contrasts import Term, contrast_by_seed, parse_contrast
from cbmi.experiments.measure import Measured
from cbmi.experiments.measure_contrasts import contrast_records
from cbmi.experiments.plan import Plan
from cbmi.experiments.records import JobKind, JobResult, RobustnessRecord
from cbmi.experiments.registration import read_registration, register
from cbmi.experiments.report import render_report
from cbmi.experiments.report_contrasts import contrast_rows
from cbmi.experiments.settings import read_experiment

SCORES = {
    ("demo", "ce"): {1: 20.0, 2: 21.0, 3: 20.5},
    ("demo", "cbmi"): {1: 20.6, 2: 21.2, 3: 21.0},
    ("other", "ce"): {1: 30.0, 2: 30.5, 3: 30.2},
    ("other", "cbmi"): {1: 30.1, 2: 30.6, 3: 30.1},
}
GAIN = "demo/cbmi - demo/ce - other/cbmi + other/ce"


def results_of(scores, metric="chrf"):
    results = []
    for (task, system), by_seed in scores.items():
        for seed, score in by_seed.items():
            job = f"{task}-{seed}-{system}"
            on_test = {"test": {metric: score, "bleu": 1.0}}
            results.append(JobResult(job, JobKind.SYSTEM, task, seed, system, on_test))
    return results


@pytest.fixture
def two_tasks(task, experiment_file):
    """The experiment of two tasks, with a report."""
    run = str(task / "run.yaml")

    def make(**report):
        path = experiment_file(
            tasks={"demo": {"run": run}, "other": {"run": run}},
            seeds=[1, 2, 3],
            analyses=[],
            register=True,
            report={"metric": "chrf", **report},
        )
        return read_experiment(path, [])

    return make


def test_a_contrast_is_made_of_terms():
    assert parse_contrast("a/cbmi - b/ce", ["a", "b"]) == [
        Term(1, "a", "cbmi"),
        Term(-1, "b", "ce"),
    ]
    # The name of a system may hold what separates others.
    assert parse_contrast("- ce-groups + scale=0.1", ["a"]) == [
        Term(-1, "a", "ce-groups"),
        Term(1, "a", "scale=0.1"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "should be like TASK/SYSTEM - TASK/SYSTEM"),
        ("a/ce -", "should be like TASK/SYSTEM - TASK/SYSTEM"),
        ("a/ce * b/ce", "names with + or - between spaces, without brackets or factors"),
        ("(a/ce - b/ce)", "should be like"),
        ("-a/ce + b/ce", "between spaces"),
        ("a/ce-b/ce", "between spaces"),
        ("a/ce - cbmi", "'cbmi' should name its task: TASK/cbmi"),
        ("a/ce + b/ce", "adds and subtracts different numbers of scores"),
        ("a/ce - a/ce", "subtracts a score from itself"),
    ],
)
def test_what_is_no_contrast(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_contrast(text, ["a", "b"])


def test_a_difference_of_differences_by_hand():
    values = contrast_by_seed(parse_contrast(GAIN, ["demo", "other"]), SCORES)
    assert values == pytest.approx({1: 0.5, 2: 0.1, 3: 0.6})
    fewer = SCORES | {("other", "ce"): {1: 30.0}}
    assert list(contrast_by_seed(parse_contrast(GAIN, ["demo", "other"]), fewer)) == [1]


def test_it_is_tested_over_the_seeds(two_tasks):
    """The t-test is SciPy's; Holm's correction is for the number of contrasts."""
    experiment = two_tasks(contrasts={"gain": GAIN, "demo": "demo/cbmi - demo/ce"})
    gain, demo = contrast_records(experiment, results_of(SCORES), [])
    p = {
        "gain": stats.ttest_1samp([0.5, 0.1, 0.6], 0).pvalue,
        "demo": stats.ttest_1samp([0.6, 0.2, 0.5], 0).pvalue,
    }
    assert gain.over_seeds.p == pytest.approx(p["gain"], abs=1e-6)
    assert gain.mean == pytest.approx(0.4)
    assert demo.holm_p == pytest.approx(min(1, 2 * p["demo"]), abs=1e-6)
    assert gain.holm_p == pytest.approx(max(2 * p["demo"], p["gain"]), abs=1e-6)
    assert gain.tests == demo.tests == 2
    (row, _) = contrast_rows(experiment, [gain, demo])
    assert row.on == "test, chrF"
    assert row.cells[:2] == ["3", "+0.40"]
    assert row.cells[-1] == "+0.50, +0.10, +0.60"


def test_measures_of_other_domains(two_tasks):
    """Shares count in per cent; what is not a metric of all tasks is left out."""
    experiment = two_tasks(
        contrasts={"a": "demo/cbmi - other/ce"},
        measures=["words_recall"],
        other_domains=["test"],
        words=["the"],
    )
    records = []
    for task, system, share in (("demo", "cbmi", 0.75), ("other", "ce", 0.5)):
        found = Robustness(0.1, 1.0, 0.0, None, None, words_recall=share)
        records += [RobustnessRecord(task, "test", system, seed, found) for seed in (1, 2)]
    chrf, recall = contrast_records(experiment, results_of(SCORES), records)
    assert (chrf.measure, recall.measure) == ("chrf", "words_recall")
    assert recall.by_seed == {1: 25.0, 2: 25.0}
    assert recall.over_seeds.error == 0
    (row,) = contrast_rows(experiment, [recall])
    assert row.on == "test, recall of the words, %"
    assert row.cells[5] == "–"  # where nothing varies, nothing is known of what can be detected


def test_recall_of_words():
    references = ["The cat saw a dog.", "An apple."]
    hypotheses = ["the cat saw dog", "an a apple"]
    found = robustness(hypotheses, references, "en", count_words([], "en"), ["a", "An", "the"])
    assert found.words_recall == pytest.approx(2 / 3)
    assert robustness(hypotheses, references, "en", count_words([], "en")).words_recall is None


def test_contrasts_are_registered(two_tasks):
    """What is added later is exploratory; what was registered cannot change."""
    report = {"contrasts": {"gain": GAIN}}
    registration = register(Plan(two_tasks(**report)))
    expected = {"of": GAIN, "sets": ["test"], "measures": ["chrf"]}
    assert registration.contrasts() == {"gain": expected}
    more = two_tasks(contrasts={"gain": GAIN, "demo": "demo/cbmi - demo/ce"})
    assert read_registration(Plan(more)) == registration
    gain, demo = contrast_records(more, results_of(SCORES), [], registration)
    assert (gain.registered, demo.registered) == (True, False)
    assert gain.holm_p == gain.over_seeds.p  # one contrast was registered
    assert demo.tests == 2
    fewer = {key: {1: value[1], 2: value[2]} for key, value in SCORES.items()}
    assert not contrast_records(more, results_of(fewer), [], registration)[0].registered
    with pytest.raises(Exception, match=r"report\.contrasts\.gain: .*bring it back"):
        register(Plan(two_tasks(contrasts={"gain": "demo/ce - other/ce"})))
    with pytest.raises(Exception, match=r"report\.resamples: 1000, now 200"):
        register(Plan(two_tasks(**report, resamples=200)))
    left_out = two_tasks()
    files = render_report(left_out, Measured(results_of(SCORES), [], {}, [], []), {}, registration)
    assert "left out of this report: contrast gain." in files["report.md"]


def test_measures_and_words_are_registered_too(two_tasks):
    report = {
        "contrasts": {"gain": "demo/cbmi - demo/ce"},
        "other_domains": ["test"],
        "words": ["der"],
        "measures": ["words_recall", "failed"],
    }
    plan = Plan(two_tasks(**report))
    registration = register(plan)

    def text(**changes):
        experiment = two_tasks(**{**report, **changes})
        measured = Measured(results_of(SCORES), [], {}, [], [])
        return render_report(experiment, measured, {}, registration)["report.md"]

    assert "left out" not in text()
    assert "left out of this report: measure failed." in text(measures=["words_recall"])
    without = text(measures=[], other_domains=[], words=[])
    assert "measure failed; other domain test; recall of words." in without
    others = two_tasks(**{**report, "words": ["die"]})
    found = Robustness(0.1, 1.0, 0.0, None, None, words_recall=0.5)
    records = []
    for system in ("ce", "cbmi"):
        records += [RobustnessRecord("demo", "test", system, seed, found) for seed in (1, 2, 3)]
    contrasts = contrast_records(others, results_of(SCORES), records, registration)
    registered = {record.measure: record.registered for record in contrasts}
    assert registered == {"chrf": True, "failed": True, "words_recall": False}
    # Spaces make no difference.
    spaced = two_tasks(**{**report, "contrasts": {"gain": "demo/cbmi  -  demo/ce"}})
    assert read_registration(Plan(spaced)) == registration


def test_rounding_is_not_tested():
    by_system = {"x": 0.1, "y": 0.3, "z": 0.2, "0": 0.0}
    scores = {("a", system): {1: score} for system, score in by_system.items()}
    terms = parse_contrast("x - y + z - 0", ["a"])
    assert contrast_by_seed(terms, scores) == {1: 0.0}


def test_the_report_shows_them(two_tasks):
    experiment = two_tasks(contrasts={"gain": GAIN})
    results = results_of(SCORES)
    measured = Measured(results, [], {}, [], contrast_records(experiment, results, []))
    files = render_report(experiment, measured, {})
    assert f"- gain: `{GAIN}`" in files["report.md"]
    assert "| gain | test, chrF | 3 | +0.40 |" in files["report.md"]
    assert f"<code>{GAIN}</code>" in files["report.html"]
    (row,) = csv.DictReader(io.StringIO(files["contrasts.csv"]))
    assert float(row["mean"]) == pytest.approx(np.mean([0.5, 0.1, 0.6]))
    assert row["seeds"] == "1:0.5000 2:0.1000 3:0.6000"
    assert "registered" not in row
