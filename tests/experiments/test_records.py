"""Records of jobs: what is on disk is read, also from older versions, and written as it was."""

from __future__ import annotations

import json

import pytest

from cbmi.evaluation.paired_t import SeedTest
from cbmi.experiments.records import JobKind, JobResult, SystemComparison

COMMON = {
    "job_seconds": 4.2,
    "device": "AMD EPYC",
    "torch": "2.13.0",
    "cbmi": "0.1.0",
    "commit": None,
    "begun": "2026-11-16T09:30:00Z",
    "finished": "2026-11-16T09:41:07Z",
    "files": {"train": ["857c", "c79e"], "valid": [], "test test": ["e491", "a38c"]},
    "shared_weights": "6d0f",
    "settings": {"seed": 1},
}
SYSTEM = {
    "job": "demo-1-cbmi",
    "kind": "system",
    "task": "demo",
    "seed": 1,
    "system": "cbmi",
    "scores": {"test": {"bleu": 12.5, "chrf": 40.0}},
    "validations": [
        {"step": 10, "valid_loss": 5.9, "valid_bleu": 0.0, "valid_lm_ppl": 395.9},
        {"step": 20, "valid_loss": 5.3},
    ],
    "steps": 20,
    "training_seconds": 0.98,
    "tokens_per_second": 5689,
    "loss": None,
    "weights": {"weight_mean": 1.0, "weight_std": 0.2, "zero_weights": 0.0},
    "parameters": {"translator": 61952, "language_model": 36288},
    "preparation": {"seconds": 0, "bytes": 0},
    **COMMON,
}
ANALYSIS = {
    "job": "demo-1-prior-accuracy",
    "kind": "prior-accuracy",
    "task": "demo",
    "seed": 1,
    "accuracy": {
        "tokens": 457,
        "mean_cbmi": 0.5,
        "lm": 0.25,
        "tm": 0.5,
        "cbmi": 0.125,
        "bins": [
            {"above": None, "to": 0.0, "tokens": 0},
            {"above": 0.0, "to": None, "tokens": 457, "lm": 0.25, "tm": 0.5, "cbmi": 0.125},
        ],
    },
    **COMMON,
}


@pytest.mark.parametrize("values", [SYSTEM, ANALYSIS], ids=["system", "analysis"])
def test_a_result_is_written_as_it_was_read(values):
    """Key by key, in order: what does not apply is absent, what is unknown is null."""
    again = JobResult.from_json(json.loads(json.dumps(values))).to_json()
    assert json.dumps(again) == json.dumps(values)


def test_results_of_older_versions_are_read():
    """They have no digests, no commit, and the day alone."""
    newer = ("files", "commit", "begun", "shared_weights")
    old = {key: value for key, value in SYSTEM.items() if key not in newer}
    old["finished"] = "2026-11-16"
    result = JobResult.from_json(old)
    assert result.kind is JobKind.SYSTEM
    assert result.scores == SYSTEM["scores"]
    assert result.files == {}
    assert result.commit is None


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": None},
        {"scores": [1]},
        {"scores": {"test": None}},
        {"scores": {"test": {}}},
        {"scores": {"test": {"bleu": "12"}}},
        {"files": [1]},
        {"finished": 5},
        {"seed": "x"},
        {"job_seconds": "x"},
        {"kind": "other"},
    ],
    ids=str,
)
def test_what_is_not_a_result_is_refused(changes):
    """Results travel between machines."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        JobResult.from_json(SYSTEM | changes)


def test_a_comparison_on_disk():
    test = SeedTest(seeds=3, mean=0.5, error=0.1, p=0.04)
    comparison = SystemComparison(
        "demo", "test", "cbmi", "ce", None, (1, 2, 3), "chrf", 0.5, 0.01, test, 0.08, tests=2
    )
    expected = {
        "kind": "comparison",
        "task": "demo",
        "set": "test",
        "system": "cbmi",
        "against": "ce",
        "seed": None,
        "metric": "chrf",
        "difference": 0.5,
        "p": 0.01,
        "standard_error": 0.1,
        "p_over_seeds": 0.04,
        "p_over_seeds_holm": 0.08,
        "detectable": test.detectable(2),
    }
    assert json.dumps(comparison.to_json()) == json.dumps(expected)
