"""Experiments: jobs that share their first stage, survive interruptions, may be split, and become a report."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tasks import ROOT, cbmi, environment, read_log, refused, run_values, write_task

from cbmi.config import read_run_file
from cbmi.data.demo import write as write_demo
from cbmi.evaluation.metrics import evaluate
from cbmi.experiments import runner
from cbmi.experiments.jobs import Plan
from cbmi.experiments.settings import read_experiment
from cbmi.training.train import train

SYSTEMS = {
    "ce": {"label": "Transformer", "objective": "ce"},
    "freq": {"label": "+ Freq", "objective": "freq-exp"},
    "cbmi": {"label": "+ <CBMI>", "objective": {"name": "cbmi", "scale_token": 0.2}},
}


@pytest.fixture(scope="session")
def task(made_once) -> Path:
    return made_once("experiment-task", make_task)


def make_task(folder: Path) -> None:
    """The beginning of the demo corpus, and a run file of two short stages."""
    write_demo(folder, 1)
    for part, count in (("train", 300), ("valid", 20), ("test", 40)):
        for side in ("en", "de"):
            file = folder / f"{part}.{side}"
            file.write_text("\n".join(file.read_text().split("\n")[:count]) + "\n")
    data = {name: [str(folder / f"{name}.{side}") for side in ("en", "de")] for name in ("train", "valid", "test")}
    data = {"source": "en", "target": "de", **data, "test": {"test": data["test"]}, "vocabulary": {"size": 600}}
    values = run_values(
        folder, data=data, validate={"every": 10, "beam": 2}, optimizer={"peak_lr": 5e-3, "warmup": 10}
    )
    values["stages"][0]["steps"], values["stages"][1]["steps"] = 30, 10
    values["stages"][1]["restart_optimizer"] = False
    (folder / "run.yaml").write_text(yaml.safe_dump(values))


def write_experiment(folder: Path, task: Path, **changes) -> Path:
    values = {
        "title": "Tiny",
        "output": str(folder / "experiment"),
        "tasks": {"demo": {"run": str(task / "run.yaml"), "label": "Demo En→De"}},
        "seeds": [1, 2],
        "systems": SYSTEMS,
        "analyses": ["prior-accuracy"],
        "report": {"metric": "chrf"},
    }
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(values | changes, sort_keys=False))
    return path


def start(path: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "cbmi", "experiment", str(path), "--devices", "cpu,cpu", *options]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def result_of(folder: Path) -> tuple[str, str, list[list[str]], list]:
    """What a report says, but for times."""
    report = folder / "report"
    table = (report / "table.tex").read_text()
    text = (report / "report.md").read_text().split("\n- Finished")[0]
    records = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    rows = list(csv.DictReader((report / "results.csv").read_text().splitlines()))
    rows = [[row[key] for key in ("task", "system", "seed", "set", "bleu", "chrf")] for row in rows]
    return table, text, sorted(rows), [record.get("accuracy") for record in records]


@pytest.fixture(scope="session")
def whole(task, made_once) -> Path:
    """An experiment that nothing has interrupted, for all to read."""

    def run(folder: Path) -> None:
        process = start(write_experiment(folder, task))
        said = process.communicate(timeout=600)[0].decode()
        assert process.returncode == 0, said

    return made_once("whole-experiment", run) / "experiment"


@pytest.fixture
def own(whole, tmp_path) -> Path:
    """A copy of it, to write to."""
    return shutil.copytree(whole, tmp_path / "own", symlinks=True)


def test_it_leaves_a_report_and_every_jobs_files(whole):
    names = {f"demo-{seed}-{kind}" for seed in (1, 2) for kind in ("start", *SYSTEMS, "prior-accuracy")}
    assert {path.name for path in (whole / "jobs").iterdir()} == names | {"demo-corpus"}
    page = (whole / "report" / "report.html").read_text(encoding="utf-8")
    assert "+ &lt;CBMI&gt;" in page
    assert "http" not in page.replace("http-equiv", "").split("<main>")[0]
    assert 'href="../jobs/demo-1-ce/result.json"' in page
    scores = [record[-1] for record in result_of(whole)[2]]
    assert len(set(scores)) > 10  # there is something to compare
    for name in ("report.md", "table.tex", "table-std.tex", "results.csv", "differences.svg", "validation.png"):
        assert (whole / "report" / name).stat().st_size > 100


def test_killed_in_the_middle_it_ends_the_same(whole, task, tmp_path):
    """The parent is killed at once; its jobs' processes go on and are waited for."""
    path = write_experiment(tmp_path, task)
    first = start(path)
    while len(list((tmp_path / "experiment" / "jobs").glob("*/result.json"))) < 3:
        assert first.poll() is None, first.communicate()[0].decode()
        time.sleep(0.1)
    first.kill()
    first.wait()
    begun = time.time()
    stopped = start(path)
    while not any(file.stat().st_mtime > begun for file in (tmp_path / "experiment" / "jobs").glob("*/run.yaml")):
        time.sleep(0.1)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 0
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    assert result_of(tmp_path / "experiment") == result_of(whole)


def test_two_shards_together_are_the_whole(whole, task, tmp_path):
    """They may work at the same time, on one folder: what both need is done once."""
    path = write_experiment(tmp_path, task)
    shards = [start(path, "--shard", f"{number}/2") for number in range(2)]
    for shard in shards:
        said = shard.communicate(timeout=600)[0].decode()
        assert shard.returncode == 0, said
    assert cbmi("experiment", path, "--report").returncode == 0
    assert result_of(tmp_path / "experiment") == result_of(whole)
    attempts = [file.read_text().split() for file in (tmp_path / "experiment" / "jobs").glob("*/attempts.txt")]
    assert all(len(attempt) == 1 for attempt in attempts)


def test_a_job_is_the_run_file_with_another_objective(whole, task, tmp_path):
    """The same weights as by `cbmi train`, with the two stages in one run."""
    train(
        read_run_file(
            task / "run.yaml",
            [f"output={tmp_path / 'run'}", "seed=2", "stages.adapt.objective={name: cbmi, scale_token: 0.2}"],
        )
    )
    ours = load_file(whole / "jobs" / "demo-2-cbmi" / "run" / "best" / "translator.safetensors")
    theirs = load_file(tmp_path / "run" / "best" / "translator.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_means_and_marks_are_numpys_and_sacrebleus(whole, task):
    references = (task / "test.de").read_text().splitlines()
    records = [json.loads(line) for line in (whole / "results.jsonl").read_text().splitlines()]
    scores = {}
    for seed in (1, 2):
        outputs = {
            system: (whole / "jobs" / f"demo-{seed}-{system}" / "run" / "test" / "test.txt").read_text().splitlines()
            for system in SYSTEMS
        }
        theirs = evaluate(references, outputs)
        for system in theirs.systems:
            scores.setdefault(system.name, []).append(system.metrics["chrF2"].score)
            found = [
                r for r in records if r["kind"] == "comparison" and (r["seed"], r["system"]) == (seed, system.name)
            ]
            assert [r["p"] for r in found] == ([] if system.name == "ce" else [system.metrics["chrF2"].p_value])
    table = (whole / "report" / "report.md").read_text()
    for system, values in scores.items():
        expected = f"{np.mean(values):.2f} ± {np.std(values):.2f}"
        if system != "ce":
            expected += f" ({np.mean(values) - np.mean(scores['ce']):+.2f})"
            differences = np.subtract(values, scores["ce"])
            start = f"| {SYSTEMS[system]['label']} | Transformer |"
            row = next(line for line in table.replace("\\", "").splitlines() if line.startswith(start))
            assert row.split(" | ")[4] == f"{np.std(differences, ddof=1) / 2**0.5:.2f}"
        assert expected in table


def test_nothing_is_left_to_do(own, task, tmp_path):
    path = write_experiment(tmp_path, task, output=str(own))
    before = {file: file.stat().st_mtime_ns for file in (own / "jobs").rglob("result.json")}
    elsewhere = "tasks.demo.settings=[memory.recompute_layers=true,compile=off,parallel=fsdp]"
    for arguments in ([], [elsewhere]):  # on what machine it is computed makes no difference
        said = cbmi("experiment", path, "--dry-run", *arguments).stdout.decode()
        assert "0 of 11 jobs to do" in said
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    assert before == {file: file.stat().st_mtime_ns for file in (own / "jobs").rglob("result.json")}


def test_another_system_goes_on_from_the_same_start(own, task, tmp_path):
    """Experiments may share their jobs; settings that are the same share a job, too."""
    systems = {
        "ce": SYSTEMS["ce"],
        "scale": {"objective": {"name": "cbmi"}, "vary": {"scale_token": [0, 0.2]}},
        "same": {"objective": {"name": "cbmi", "scale_token": 0.2, "scale_sentence": 0.3}},  # the default, spelt out
    }
    path = write_experiment(tmp_path, task, systems=systems, seeds=[1], jobs=str(own / "jobs"), analyses=[])
    plan = Plan(read_experiment(path, []))
    assert [job.id for job in plan.wanted()] == ["demo-1-scale=0", "demo-1-scale=0.2"]
    assert plan.of_system["demo", 1, "same"] == "demo-1-scale=0.2"
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    assert (tmp_path / "experiment" / "report" / "sweep.svg").exists()
    outputs = [own / "jobs" / f"demo-1-{name}" / "run" / "test" / "test.txt" for name in ("cbmi", "scale=0.2")]
    assert outputs[0].read_text() == outputs[1].read_text()


def test_results_outlive_new_settings(whole, task, tmp_path):
    """A setting that did not exist when a job was done has its default there."""
    shutil.copytree(whole, tmp_path / "experiment", symlinks=True)
    for file in (tmp_path / "experiment" / "jobs").glob("*/result.json"):
        result = json.loads(file.read_text())
        del result["settings"]["data"]["drop_copies"], result["settings"]["memory"]
        file.write_text(json.dumps(result))
    path = write_experiment(tmp_path, task)
    assert "0 of 11 jobs to do" in cbmi("experiment", path, "--dry-run").stdout.decode()
    changed = refused("experiment", path, "tasks.demo.settings=[data.drop_copies=true]")
    assert "data.drop_copies: false, now true" in changed


def test_test_sets_may_go_again(own, task, tmp_path):
    """What was translated is passed over; the rest is reported without doing anything anew."""
    for result in own.glob("jobs/*/result.json"):
        record = json.loads(result.read_text())
        if "scores" in record:
            record["scores"]["more"] = {"bleu": 1.0, "chrf": 1.0}
            result.write_text(json.dumps(record))
    path = write_experiment(tmp_path, task, output=str(own))
    result = cbmi("experiment", path, "--report")
    assert result.returncode == 0, result.stderr.decode()
    assert "more" not in (own / "report" / "report.md").read_text()


def test_a_job_that_has_begun_keeps_its_settings(own, task, tmp_path):
    (own / "jobs" / "demo-1-cbmi" / "result.json").unlink()
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": ["optimizer.warmup=7"]}}
    for name in ("start", "ce", "freq", "prior-accuracy"):
        shutil.rmtree(own / "jobs" / f"demo-1-{name}")
    path = write_experiment(tmp_path, task, output=str(own), seeds=[1], tasks=tasks)
    for options in ([], ["--dry-run"]):
        message = refused("experiment", path, *options)
        assert "demo-1-cbmi has begun with other settings (optimizer.warmup: " in message


def test_a_result_that_is_none(own, task, tmp_path):
    (own / "jobs" / "demo-1-ce" / "result.json").write_text("{}")
    assert "result.json: this is no result" in refused(
        "experiment", write_experiment(tmp_path, task, output=str(own))
    )


def test_dollars_validation_and_ter(own, task, tmp_path):
    """A dollar is no formula, the validation set says so, and a lower TER is better."""
    systems = SYSTEMS | {"cbmi": SYSTEMS["cbmi"] | {"label": r"+ $\nonsense_{5}$ & 6$"}}
    report = {"metric": "ter", "sets": ["valid"], "significance": ["ce", "freq"]}
    path = write_experiment(tmp_path, task, output=str(own), systems=systems, report=report)
    result = cbmi("experiment", path, "--report")
    assert result.returncode == 0, result.stderr.decode()
    text = (own / "report" / "report.md").read_text()
    assert "| TER | Demo En→De, valid |" in text
    assert "Lower TER is better." in text
    rows = list(csv.DictReader((own / "report" / "comparisons.csv").read_text().splitlines()))
    assert {row["against"] for row in rows} == {"ce", "freq"}
    one = next(row for row in rows if (row["system"], row["against"], row["seed"]) == ("cbmi", "ce", ""))
    assert f"({float(one['p']):.3f}) | {float(one['standard_error']):.2f} |" in text
    accuracy = list(csv.DictReader((own / "report" / "prior-accuracy.csv").read_text().splitlines()))
    jobs = [json.loads((own / "jobs" / f"demo-{seed}-prior-accuracy" / "result.json").read_text()) for seed in (1, 2)]
    assert int(accuracy[-1]["tokens"]) == sum(job["accuracy"]["tokens"] for job in jobs)
    assert sum(int(row["tokens"]) for row in accuracy[:-1]) == int(accuracy[-1]["tokens"])


def test_jobs_side_by_side_on_a_cpu_share_its_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert runner.environment(["cpu", "cpu", "cpu"])["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in runner.environment(["cpu"])
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert runner.environment(["cpu", "cpu"])["OMP_NUM_THREADS"] == "5"


def test_costs_stand_beside_the_baselines(own, task, tmp_path):
    path = write_experiment(tmp_path, task, output=str(own), report={"metric": "chrf", "costs": True})
    assert cbmi("experiment", path, "--report").returncode == 0
    lines = (own / "report" / "report.md").read_text().split("| task | system | preparation")[1].splitlines()[2:]
    rows = {cells[1].strip(): cells[2:-1] for line in lines if len(cells := line.split(" | ")) > 6}
    records = [json.loads((own / "jobs" / f"demo-{seed}-cbmi" / "result.json").read_text()) for seed in (1, 2)]
    speeds = {name: float(cells[3].replace(",", "")) for name, cells in rows.items()}
    cbmi_name = next(name for name in rows if "CBMI" in name)
    assert speeds[cbmi_name] == pytest.approx(np.mean([record["tokens_per_second"] for record in records]), abs=1)
    base = next(name for name, cells in rows.items() if cells[4] == "1.00" and name != "shared stages")
    assert all(float(cells[4]) == pytest.approx(speeds[base] / speeds[n], abs=0.01) for n, cells in rows.items())


def test_a_system_may_have_a_last_stage_of_its_own(own, task, tmp_path):
    systems = {
        "ce": SYSTEMS["ce"],
        "on": {"objective": "ce", "restart_optimizer": False},  # as the run file has it
        "anew": {"objective": "ce", "restart_optimizer": True},
        "long": {"objective": "ce", "steps": 14},
    }
    path = write_experiment(tmp_path, task, systems=systems, seeds=[1], jobs=str(own / "jobs"), analyses=[])
    plan = Plan(read_experiment(path, []))
    assert [(job.id, job.steps) for job in plan.wanted()] == [("demo-1-anew", 10), ("demo-1-long", 14)]
    assert plan.of_system["demo", 1, "on"] == "demo-1-ce"
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    logs = {name: read_log(own / "jobs" / f"demo-1-{name}" / "run") for name in ("ce", "anew", "long")}
    rates = {name: [record["lr"] for record in log if "lr" in record][-1] for name, log in logs.items()}
    assert rates["anew"] > rates["ce"] > rates["long"] > 0  # the schedule begins again, or goes on
    assert {name: log[-1]["step"] for name, log in logs.items()} == {"ce": 40, "anew": 40, "long": 44}


def test_a_job_that_fails_does_not_stop_the_others(own, task, tmp_path):
    shutil.rmtree(own / "jobs" / "demo-1-ce")
    (tmp_path / "weights.txt").write_text("1\n")
    systems = {
        "bad": {"objective": {"name": "weights-file", "file": str(tmp_path / "weights.txt"), "per": "pair"}},
        "ce": SYSTEMS["ce"],
    }
    report = {"baseline": "ce", "metric": "chrf"}
    path = write_experiment(
        tmp_path, task, systems=systems, seeds=[1], analyses=[], report=report, jobs=str(own / "jobs")
    )
    result = cbmi("experiment", path, "--devices", "cpu")
    assert result.returncode == 1
    assert "Failed: demo-1-bad: " in result.stderr.decode()
    assert "weights.txt" in result.stderr.decode()
    assert (own / "jobs" / "demo-1-ce" / "result.json").exists()
    assert "Not done yet: 1 run (demo, seed 1: bad)" in (tmp_path / "experiment/report/report.md").read_text()


def test_patience_may_end_the_shared_stage(task, tmp_path):
    """What goes on from it knows where it is, and what was not logged is not made up."""
    settings = [
        "validate.patience=1",
        "validate.every=2",
        "validate.beam=0",
        "log.every=1000",
        "optimizer.peak_lr=1e-9",
    ]
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": settings}}
    path = write_experiment(tmp_path, task, tasks=tasks, seeds=[1], systems={"ce": SYSTEMS["ce"]}, analyses=[])
    result = cbmi("experiment", path, "--devices", "cpu")
    assert result.returncode == 0, result.stderr.decode()
    records = [json.loads(line) for line in (tmp_path / "experiment/results.jsonl").read_text().splitlines()]
    steps = {record["kind"]: record["steps"] for record in records}
    assert steps["start"] < 30
    assert 0 < steps["system"] <= 10


def test_a_folder_that_cannot_be_locked(own, task, tmp_path):
    two = {name: SYSTEMS[name] for name in ("ce", "freq")}
    path = write_experiment(tmp_path, task, seeds=[1], analyses=[], systems=two, jobs=str(own / "jobs"))
    shutil.rmtree(own / "jobs" / "demo-1-ce")
    (own / "jobs" / "demo-1-ce").touch()
    result = cbmi("experiment", path, "--devices", "cpu")
    assert result.returncode == 1
    assert "Failed: demo-1-ce: " in result.stderr.decode()
    assert "+ Freq" in (tmp_path / "experiment" / "report" / "report.md").read_text()


def test_a_killed_job_says_so(task, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "command", lambda *_: [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    path = write_experiment(tmp_path, task, seeds=[1], analyses=[])
    result = cbmi("experiment", path, "--devices", "cpu")
    assert result.returncode == 1
    said = result.stderr.decode()
    assert "Failed: demo-corpus: killed by signal 9 (out of memory?)" in said
    assert "Failed: demo-1-ce: not done, because demo-1-start failed\n" in said


def test_results_belong_to_their_corpus(whole, task, tmp_path):
    """Another corpus under the same name is refused; another test set is translated by the old checkpoint."""
    other = tmp_path / "other.en"
    other.write_text((task / "test.en").read_text().replace("a", "o"))
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": [f"data.test.test=[{other}, {task}/test.de]"]}}
    path = write_experiment(tmp_path, task, output=str(whole), tasks=tasks)
    assert "is done, but the content of data.test.test has changed" in refused("experiment", path)
    copied = tmp_path / "experiment"
    shutil.copytree(whole, copied, symlinks=True)
    tasks["demo"]["settings"] = [f"data.test.more=[{other}, {task}/test.de]"]
    path = write_experiment(tmp_path, task, tasks=tasks, seeds=[1])
    plan = Plan(read_experiment(path, []))
    assert [job.id for job in plan.wanted()] == ["demo-1-ce", "demo-1-freq", "demo-1-cbmi"]
    weights = copied / "jobs" / "demo-1-ce" / "run" / "best" / "translator.safetensors"
    before = weights.stat().st_mtime_ns
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    assert weights.stat().st_mtime_ns == before
    assert "| demo, test | demo, more |" in (copied / "report" / "report.md").read_text()


BAD = {
    "an unknown system": (
        {"report": {"baseline": "cee"}},
        "report.baseline: unknown system 'cee' (did you mean 'ce'?)",
    ),
    "an unknown objective": (
        {"systems": {"a": {"objective": "cbim"}}},
        "systems.a.objective: unknown objective 'cbim'",
    ),
    "a task without file": ({"tasks": {"t": {"run": "none.yaml"}}}, "tasks.t.run: there is no run file none.yaml"),
    "a test set that is not": ({"report": {"sets": ["tset"]}}, "report.sets: tasks.demo has no test set 'tset'"),
    "a metric that is not": ({"report": {"metric": "meteor"}}, "report.metric: "),
    "no system": ({"systems": {}, "analyses": []}, "systems: there is none"),
    "a seed twice": ({"seeds": [1, 1]}, "seeds: the same seed is given twice"),
    "a label twice": (
        {"tasks": {"a": {"run": "x", "label": "L"}, "b": {"run": "y", "label": "L"}}},
        "tasks: two columns are named 'L'",
    ),
    "a system's name twice": (
        {"systems": {"a": {"objective": "cbmi", "vary": {"scale_token": [0.1]}}, "a=0.1": {"objective": "ce"}}},
        "systems: two are named 'a=0.1'",
    ),
    "nothing that varies": (
        {"systems": {"a": {"objective": "cbmi", "vary": {"scale_token": []}}}},
        "systems.a.vary.scale_token: ",
    ),
    "five to be tested against": (
        {"report": {"significance": ["ce"] * 5}},
        "report.significance: there should be at most 4, not 5",
    ),
    "two settings that vary": (
        {"systems": {"a": {"objective": "cbmi", "vary": {"scale_token": [1.0], "scale_sentence": [1.0]}}}},
        "vary: should name one setting",
    ),
    "an objective without its language model": (
        {"systems": {"a": {"objective": "cbmi", "language_model": "off"}}},
        "systems.a: stages.adapt: objective 'cbmi' needs a language model",
    ),
    "a system to be tested against twice": (
        {"report": {"significance": ["ce", "ce"]}},
        "report.significance: this is given twice: 'ce'",
    ),
    "a system's label twice": (
        {"systems": {"a": {"objective": "ce", "label": "L"}, "b": {"objective": "bmi", "label": "L"}}},
        "systems: two are labelled 'L'",
    ),
    "one seed that is no list": ({"seeds": 1}, "seeds: should be a list, not 1"),
    "a word that varies": (
        {"systems": {"a": {"objective": "cbmi", "vary": {"std": ["official"]}}}},
        "systems.a.vary.std.0: 'official' is no number",
    ),
    "an unknown key": ({"sedes": [1]}, "unknown key 'sedes' (did you mean 'seeds'?)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_the_first_job(task, tmp_path, case):
    changes, expected = BAD[case]
    assert expected in refused("experiment", write_experiment(tmp_path, task, **changes))
    assert not (tmp_path / "experiment").exists()


def test_more_bad_input(whole, task, tmp_path):
    path = write_experiment(tmp_path, task)
    path.write_text(path.read_text() + "systems: {}\n")
    assert "key 'systems' stands there twice" in refused("experiment", path)
    write_experiment(tmp_path, task)
    assert "this is an experiment file; say cbmi experiment" in refused("train", path)
    assert "this is a run file" in refused("experiment", task / "run.yaml")
    assert "--shard: '2/2' should be I/N" in refused("experiment", path, "--shard", "2/2")
    assert "device: 'gpu' is none of" in refused("experiment", path, "--devices", "cpu,gpu")
    settings = ["data.target=zh"]
    tasks = {"demo": {"run": str(task / "run.yaml"), "metric": "multi-bleu", "settings": settings}}
    path = write_experiment(tmp_path, task, tasks=tasks)
    assert "tasks.demo.metric: multi-bleu counts words between spaces" in refused("experiment", path)
    tasks["demo"]["settings"] = ["data.target=tr"]
    path = write_experiment(tmp_path, task, tasks=tasks)
    assert "tasks.demo.metric: multi-bleu: Moses knows no language 'tr'" in refused("experiment", path)
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": ["stages=[{name: a, steps: 2}]"]}}
    for setting, expected in {
        "seed=7": "'seed=7' is the experiment's own to say",
        "stages=5": "stages: ",
        "data.test={}": "there is no data.test to report on",
        "data.valid=null": "analyses: prior-accuracy looks at data.valid",
        f"data.test={{valid: [{path}, {path}]}}": "tasks.demo.run: data.test.valid: the validation set has this name",
        f"data.test={{test: [{path}, {task / 'run.yaml'}]}}": "the two sides of a parallel corpus are aligned",
    }.items():
        wrong = {"demo": {"run": str(task / "run.yaml"), "settings": [setting]}}
        assert expected in refused("experiment", write_experiment(tmp_path, task, tasks=wrong))
    wrong = {"demo": {"run": str(task / "run.yaml"), "preset": "wmt14"}}
    assert "tasks.demo.preset: unknown preset 'wmt14'" in refused(
        "experiment", write_experiment(tmp_path, task, tasks=wrong)
    )
    wrong = {"demo": {"run": str(task / "run.yaml"), "settings": ["data.vocabulary.size=700"]}}
    path = write_experiment(tmp_path, task, tasks=wrong, output=str(whole), seeds=[5])
    assert "was prepared with other settings (data.vocabulary.size: 600, now 700)" in refused("experiment", path)
    assert "has one stage" in refused("experiment", write_experiment(tmp_path, task, tasks=tasks))
    assert "no job is done yet" in refused("experiment", write_experiment(tmp_path, task), "--report")
    systems = SYSTEMS | {"cbmi": {"objective": {"name": "cbmi", "scale_token": 0.3}}}
    path = write_experiment(tmp_path, task, output=str(whole), systems=systems)
    message = refused("experiment", path)
    assert (
        "demo-1-cbmi is done, but with other settings (stages.adapt.objective.scale_token: 0.2, now 0.3)" in message
    )


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "recipes" / "experiments").glob("*.yaml")))
def test_the_recipes_work_on_any_task(name, tmp_path, monkeypatch):
    """With files of the names that their run files have, and on a task of one's own."""
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path)
    recipe = ROOT / "recipes" / "experiments" / name
    for task in read_experiment(recipe, []).tasks.values():
        data = read_run_file(task.run).data
        for file in [*data.train, *data.valid, *sum(data.test.values(), ())]:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            opener = {".gz": gzip.open, ".xz": lzma.open}.get(Path(file).suffix, open)
            with opener(file, "wt") as packed:
                packed.write("x\n")
    jobs = Plan(read_experiment(recipe, [])).jobs
    assert len(jobs) > 4
    values = run_values(tmp_path)
    values["data"]["test"] = {"test": values["data"]["valid"]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    own = Plan(read_experiment(recipe, ["tasks={mine: {run: mine.yaml}}", "published={}"]))
    assert {job.task for job in own.jobs.values()} == {"mine"}
    assert os.listdir(tmp_path).count("experiments") == 0
