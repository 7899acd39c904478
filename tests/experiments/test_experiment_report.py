"""Reports of experiments that were run: their numbers are NumPy's and sacrebleu's."""

from __future__ import annotations

import csv
import json
from contextlib import contextmanager

import numpy as np
import pytest
from tasks import cbmi

from cbmi.evaluation.metrics import evaluate
from cbmi.experiments import measure
from cbmi.experiments.plan import Plan
from cbmi.experiments.settings import read_experiment
from cbmi.progress import Bar


@pytest.mark.slow
def test_means_and_marks_are_numpys_and_sacrebleus(whole, task, systems):
    references = (task / "test.de").read_text().splitlines()
    comparisons = []
    for line in (whole / "results.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "comparison":
            comparisons.append(record)
    scores: dict[str, list[float]] = {}
    for seed in (1, 2):
        outputs = {}
        for name in systems:
            file = whole / "jobs" / f"demo-{seed}-{name}" / "run" / "test" / "test.txt"
            outputs[name] = file.read_text().splitlines()
        for system in evaluate(references, outputs).systems:
            scores.setdefault(system.name, []).append(system.metrics["chrF2"].score)
            found = []
            for record in comparisons:
                if (record["seed"], record["system"]) == (seed, system.name):
                    found.append(record["p"])
            assert found == ([] if system.name == "ce" else [system.metrics["chrF2"].p_value])
    text = (whole / "report" / "report.md").read_text()
    lines = text.replace("\\", "").splitlines()
    for name, values in scores.items():
        expected = f"{np.mean(values):.2f} ± {np.std(values):.2f}"
        if name != "ce":
            difference = f"{np.mean(values) - np.mean(scores['ce']):+.2f}"
            expected += f" ({difference.replace('-', '−')})"
            differences = np.subtract(values, scores["ce"])
            beginning = f"| {systems[name]['label']} | Transformer |"
            row = next(line for line in lines if line.startswith(beginning))
            assert row.split(" | ")[4] == f"{np.std(differences, ddof=1) / 2**0.5:.2f}"
        assert expected in text


@pytest.mark.slow
def test_test_sets_may_go_again(own, experiment_file):
    """What was translated is passed over; the rest is reported without doing anything again."""
    for file in own.glob("jobs/*/result.json"):
        record = json.loads(file.read_text())
        if "scores" in record:
            record["scores"]["more"] = {"bleu": 1.0, "chrf": 1.0}
            file.write_text(json.dumps(record))
    result = cbmi("experiment", experiment_file(output=str(own)), "--report")
    assert result.returncode == 0, result.stderr.decode()
    assert "more" not in (own / "report" / "report.md").read_text()


@pytest.mark.slow
def test_the_bar_counts_translations(own, experiment_file, systems, monkeypatch):
    """Systems with the same settings share a job, whose translations are read once."""
    bars = []

    @contextmanager
    def quiet_bar(*arguments):
        bars.append(Bar(*arguments))
        yield bars[-1]

    monkeypatch.setattr(measure, "bar", quiet_bar)
    shared = {"ce": systems["ce"], "same": {"objective": "ce"}, "freq": systems["freq"]}
    plan = Plan(read_experiment(experiment_file(output=str(own), systems=shared), []))
    measure.measure(plan, measure.results_by_system(plan))
    assert [(bar.done, bar.total) for bar in bars] == [(4, 4)]  # two jobs, two seeds, one test set


@pytest.mark.slow
def test_dollars_validation_and_ter(own, experiment_file, systems):
    """A dollar is not a formula, the validation set says so, and a lower TER is better."""
    labelled = systems | {"cbmi": systems["cbmi"] | {"label": r"+ $\nonsense_{5}$ & 6$"}}
    report = {"metric": "ter", "sets": ["valid"], "significance": ["ce", "freq"]}
    path = experiment_file(output=str(own), systems=labelled, report=report)
    result = cbmi("experiment", path, "--report")
    assert result.returncode == 0, result.stderr.decode()
    text = (own / "report" / "report.md").read_text()
    assert "| TER | Demo En→De, valid |" in text
    assert "Lower TER is better." in text
    rows = list(csv.DictReader((own / "report" / "comparisons.csv").read_text().splitlines()))
    assert {row["against"] for row in rows} == {"ce", "freq"}
    wanted = ("cbmi", "ce", "")
    one = next(row for row in rows if (row["system"], row["against"], row["seed"]) == wanted)
    assert f"| {float(one['standard_error']):.2f} | {float(one['p']):.3f} |" in text
    lines = (own / "report" / "prior-accuracy.csv").read_text().splitlines()
    *bins, every = csv.DictReader(lines)
    tokens = 0
    for seed in (1, 2):
        file = own / "jobs" / f"demo-{seed}-prior-accuracy" / "result.json"
        tokens += json.loads(file.read_text())["accuracy"]["tokens"]
    assert int(every["tokens"]) == tokens
    assert sum(int(row["tokens"]) for row in bins) == tokens


@pytest.mark.slow
def test_costs_stand_beside_the_baselines(own, experiment_file):
    path = experiment_file(output=str(own), report={"metric": "chrf", "costs": True})
    assert cbmi("experiment", path, "--report").returncode == 0
    text = (own / "report" / "report.md").read_text()
    rows = {}  # by system: preparation, parameters, training, tokens/s, time per token
    for line in text.split("| task | system | preparation")[1].splitlines()[2:]:
        cells = line.split(" | ")
        if len(cells) > 6:
            rows[cells[1].strip()] = cells[2:-1]
    speeds = {name: float(cells[3].replace(",", "")) for name, cells in rows.items()}
    measured = []
    for seed in (1, 2):
        file = own / "jobs" / f"demo-{seed}-cbmi" / "result.json"
        measured.append(json.loads(file.read_text())["tokens_per_second"])
    cbmi_name = next(name for name in rows if "CBMI" in name)
    assert speeds[cbmi_name] == pytest.approx(np.mean(measured), abs=1)
    systems = [name for name in rows if name != "shared stages"]
    base = next(name for name in systems if rows[name][4] == "1.00")
    for name, cells in rows.items():
        assert float(cells[4]) == pytest.approx(speeds[base] / speeds[name], abs=0.01)
