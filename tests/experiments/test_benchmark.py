"""The benchmark runs everywhere; its figures are no matter here."""

from __future__ import annotations

import json

import pytest

from cbmi.experiments.benchmark import (
    BenchmarkSettings,
    benchmark_systems,
    peers,
    run_benchmark,
)
from cbmi.objectives import TABLE


@pytest.mark.slow
def test_every_system_is_measured(tmp_path):
    sizes = {"vocabulary": 400, "tokens": (300,), "steps": 4, "sentences": 3, "length": 4}
    options = BenchmarkSettings(presets=("tiny",), every_objective=True, device="cpu", **sizes)
    table = run_benchmark(options, tmp_path / "results.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["what"] for row in rows] == [*benchmark_systems(options), "translation"]
    assert {*TABLE} - {"weights-file", "cbmi"} <= {row["what"] for row in rows}
    for row in rows[:-1]:
        assert row["tokens_per_second"] > 0
        assert 0 < row["mfu"] < 1
        assert row["over_ce"] > 0
    assert rows[-1]["sentences_per_second"] > 0
    assert len(table.splitlines()) == 2 + 2 + len(rows)


def test_peers_stand_beside_what_they_are_compared_with():
    for _preset, *what in peers():
        assert what[-1] in (*benchmark_systems(BenchmarkSettings()), "translation")
