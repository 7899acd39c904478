"""Experiments: jobs share their first stage, survive interruptions, and may be split."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tasks import cbmi, read_log, refused

from cbmi.config import read_config
from cbmi.experiments import runner
from cbmi.experiments.plan import Plan
from cbmi.experiments.settings import read_experiment
from cbmi.training.train import train_run

pytestmark = pytest.mark.slow


def result_of(folder: Path) -> tuple[str, str, list[list[str]], list]:
    """What a report says, except for times."""
    report = folder / "report"
    table = (report / "table.tex").read_text()
    text = (report / "report.md").read_text().split("\n- Finished")[0]
    rows = []
    for row in csv.DictReader((report / "results.csv").read_text().splitlines()):
        rows.append([row[key] for key in ("task", "system", "seed", "set", "bleu", "chrf")])
    accuracies = []
    for line in (folder / "results.jsonl").read_text().splitlines():
        accuracies.append(json.loads(line).get("accuracy"))
    return table, text, sorted(rows), accuracies


def test_it_leaves_a_report_and_every_jobs_files(whole, systems):
    names = {"demo-corpus"}
    for seed in (1, 2):
        for kind in ("start", *systems, "prior-accuracy"):
            names.add(f"demo-{seed}-{kind}")
    assert {path.name for path in (whole / "jobs").iterdir()} == names
    page = (whole / "report" / "report.html").read_text(encoding="utf-8")
    assert "+ &lt;CBMI&gt;" in page
    assert "http" not in page.replace("http-equiv", "").split("<main>")[0]
    assert 'href="../jobs/demo-1-ce/result.json"' in page
    scores = [row[-1] for row in result_of(whole)[2]]
    assert len(set(scores)) > 10  # there is something to compare
    for name in (
        "report.md",
        "table.tex",
        "table-std.tex",
        "results.csv",
        "differences.svg",
        "validation.png",
    ):
        assert (whole / "report" / name).stat().st_size > 100


def test_killed_in_the_middle_it_ends_the_same(whole, experiment_file, started, tmp_path):
    """The parent is killed at once; its jobs' processes go on and are waited for."""
    path = experiment_file()
    jobs = tmp_path / "experiment" / "jobs"
    first = started(path)
    while len(list(jobs.glob("*/result.json"))) < 3:
        assert first.poll() is None, first.communicate()[0].decode()
        time.sleep(0.1)
    first.kill()
    first.wait()
    begun = time.time()
    stopped = started(path)
    while not any(file.stat().st_mtime > begun for file in jobs.glob("*/run.yaml")):
        time.sleep(0.1)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 0
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    assert result_of(tmp_path / "experiment") == result_of(whole)


def test_two_shards_together_are_the_whole(whole, experiment_file, started, tmp_path):
    """They may work at the same time, on one folder: what both need is done once."""
    path = experiment_file()
    shards = [started(path, "--shard", f"{number}/2") for number in range(2)]
    for shard in shards:
        said = shard.communicate(timeout=600)[0].decode()
        assert shard.returncode == 0, said
    assert cbmi("experiment", path, "--report").returncode == 0
    assert result_of(tmp_path / "experiment") == result_of(whole)
    for file in (tmp_path / "experiment" / "jobs").glob("*/attempts.txt"):
        assert len(file.read_text().split()) == 1


def test_a_job_is_the_run_file_with_another_objective(whole, task, tmp_path):
    """The same weights as by `cbmi train`, with the two stages in one run."""
    changes = [
        f"output={tmp_path / 'run'}",
        "seed=2",
        "stages.adapt.objective={name: cbmi, scale_token: 0.2}",
    ]
    train_run(read_config(task / "run.yaml", changes))
    ours = load_file(whole / "jobs" / "demo-2-cbmi" / "run" / "best" / "translator.safetensors")
    theirs = load_file(tmp_path / "run" / "best" / "translator.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_nothing_is_left_to_do(own, experiment_file):
    path = experiment_file(output=str(own))
    before = {file: file.stat().st_mtime_ns for file in (own / "jobs").rglob("result.json")}
    elsewhere = "tasks.demo.settings=[memory.recompute_layers=true,compile=off,parallel=fsdp]"
    for arguments in ([], [elsewhere]):  # on what machine it is computed makes no difference
        said = cbmi("experiment", path, "--dry-run", *arguments).stdout.decode()
        assert "0 of 11 jobs to do" in said
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    assert before == {file: file.stat().st_mtime_ns for file in (own / "jobs").rglob("result.json")}


def test_results_are_enough_to_continue_elsewhere(whole, experiment_file, tmp_path):
    """What a report is made of, without models, corpora and logs; later with one seed of two."""
    elsewhere = tmp_path / "elsewhere"
    for file in (whole / "jobs").rglob("*"):
        if file.name == "result.json" or file.parent.name == "test":
            copy = elsewhere / file.relative_to(whole)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    path = experiment_file(output=str(elsewhere))
    assert cbmi("experiment", path, "--report").returncode == 0
    results = Path("report") / "results.csv"
    assert (elsewhere / results).read_text() == (whole / results).read_text()
    for folder in (elsewhere / "jobs").glob("demo-2-*"):
        shutil.rmtree(folder)
    said = cbmi("experiment", path, "--dry-run").stdout.decode()
    assert "6 of 11 jobs to do" in said  # the corpus among them
    assert said.count("demo-1") == said.count(" done") == 5


def test_another_system_goes_on_from_the_same_start(own, experiment_file, systems, tmp_path):
    """Experiments may share their jobs; settings that are the same share a job, too."""
    others = {
        "ce": systems["ce"],
        "scale": {"objective": {"name": "cbmi"}, "vary": {"scale_token": [0, 0.2]}},
        # The default of the last setting, spelt out.
        "same": {"objective": {"name": "cbmi", "scale_token": 0.2, "scale_sentence": 0.3}},
    }
    path = experiment_file(systems=others, seeds=[1], jobs=str(own / "jobs"), analyses=[])
    plan = Plan(read_experiment(path, []))
    assert [job.id for job in plan.wanted()] == ["demo-1-scale=0", "demo-1-scale=0.2"]
    assert plan.of_system["demo", 1, "same"] == "demo-1-scale=0.2"
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    assert (tmp_path / "experiment" / "report" / "sweep.svg").exists()
    outputs = []
    for name in ("cbmi", "scale=0.2"):
        outputs.append((own / "jobs" / f"demo-1-{name}" / "run" / "test" / "test.txt").read_text())
    assert outputs[0] == outputs[1]


def test_systems_of_a_seed_continue_from_the_same_weights(own, experiment_file, systems):
    """A start that was trained again, and differs, is not continued from."""
    results = {}
    for name in ("start", "ce", "cbmi"):
        results[name] = json.loads((own / "jobs" / f"demo-1-{name}" / "result.json").read_text())
    assert len({result["shared_weights"] for result in results.values()}) == 1
    more = systems | {"more": {"objective": "focal"}}
    path = experiment_file(output=str(own), systems=more, seeds=[1], analyses=[])
    result = own / "jobs" / "demo-1-ce" / "result.json"
    result.write_text(json.dumps(results["ce"] | {"shared_weights": "of another start"}))
    done = cbmi("experiment", path, "--devices", "cpu")
    assert done.returncode == 2
    said = done.stderr.decode()
    assert "demo-1-start has other weights than those that demo-1-ce continued from" in said
    assert not (own / "jobs" / "demo-1-more" / "result.json").exists()
    message = refused("experiment", path, "--report")
    assert "demo-1-ce and demo-1-freq continue from different weights" in message


def test_only_some_jobs(own, experiment_file):
    for seed in (1, 2):
        shutil.rmtree(own / "jobs" / f"demo-{seed}-freq")
    path = experiment_file(output=str(own))
    plan = Plan(read_experiment(path, []))
    assert [job.id for job in plan.wanted()] == ["demo-1-freq", "demo-2-freq"]
    assert plan.wanted(only=["demo-1-start"]) == []  # its model is there
    message = refused("experiment", path, "--only", "demo-1-frq")
    assert "--only: there is no job 'demo-1-frq' (did you mean 'demo-1-freq'?)" in message
    assert cbmi("experiment", path, "--devices", "cpu", "--only", "demo-2-freq").returncode == 0
    assert (own / "jobs" / "demo-2-freq" / "result.json").exists()
    assert not (own / "jobs" / "demo-1-freq").exists()
    shutil.rmtree(own / "jobs" / "demo-1-start" / "run" / "checkpoints")
    (own / "jobs" / "demo-1-start" / "run" / "best").unlink()
    again = Plan(read_experiment(path, [])).wanted(only=["demo-1-start"])
    assert [job.id for job in again] == ["demo-1-start"]


def test_jobs_side_by_side_on_a_cpu_share_its_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert runner.job_environment(["cpu", "cpu", "cpu"])["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in runner.job_environment(["cpu"])
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert runner.job_environment(["cpu", "cpu"])["OMP_NUM_THREADS"] == "5"


def test_a_system_may_have_a_last_stage_of_its_own(own, experiment_file, systems):
    others = {
        "ce": systems["ce"],
        "on": {"objective": "ce", "restart_optimizer": False},  # as the run file has it
        "again": {"objective": "ce", "restart_optimizer": True},
        "long": {"objective": "ce", "steps": 14},
    }
    path = experiment_file(systems=others, seeds=[1], jobs=str(own / "jobs"), analyses=[])
    plan = Plan(read_experiment(path, []))
    wanted = [(job.id, job.steps) for job in plan.wanted()]
    assert wanted == [("demo-1-again", 10), ("demo-1-long", 14)]
    assert plan.of_system["demo", 1, "on"] == "demo-1-ce"
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    rates = {}
    steps = {}
    for name in ("ce", "again", "long"):
        log = read_log(own / "jobs" / f"demo-1-{name}" / "run")
        rates[name] = [record["lr"] for record in log if "lr" in record][-1]
        steps[name] = log[-1]["step"]
    assert rates["again"] > rates["ce"] > rates["long"] > 0  # the schedule restarts, or does not
    assert steps == {"ce": 40, "again": 40, "long": 44}


def test_a_job_that_fails_does_not_stop_the_others(own, experiment_file, systems, tmp_path):
    shutil.rmtree(own / "jobs" / "demo-1-ce")
    weights = tmp_path / "weights.txt"
    weights.write_text("1\n")
    bad = {"objective": {"name": "weights-file", "file": str(weights), "per": "pair"}}
    path = experiment_file(
        systems={"bad": bad, "ce": systems["ce"]},
        seeds=[1],
        analyses=[],
        report={"baseline": "ce", "metric": "chrf"},
        jobs=str(own / "jobs"),
    )
    result = cbmi("experiment", path, "--devices", "cpu")
    assert result.returncode == 1
    assert "Failed: demo-1-bad: " in result.stderr.decode()
    assert "weights.txt" in result.stderr.decode()
    assert (own / "jobs" / "demo-1-ce" / "result.json").exists()
    report = (tmp_path / "experiment" / "report" / "report.md").read_text()
    assert "Not done yet: 1 run (demo, seed 1: bad)" in report


def test_patience_may_end_the_shared_stage(task, experiment_file, systems, tmp_path):
    """What continues from it knows where it is, and what was not logged is not made up."""
    settings = [
        "validate.patience=1",
        "validate.every=2",
        "validate.beam=1",  # BLEU stays 0; the loss might fall by rounding
        "log.every=1000",
        "optimizer.peak_lr=1e-9",
    ]
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": settings}}
    path = experiment_file(tasks=tasks, seeds=[1], systems={"ce": systems["ce"]}, analyses=[])
    result = cbmi("experiment", path, "--devices", "cpu")
    assert result.returncode == 0, result.stderr.decode()
    steps = {}
    for line in (tmp_path / "experiment" / "results.jsonl").read_text().splitlines():
        record = json.loads(line)
        steps[record["kind"]] = record["steps"]
    assert steps["start"] < 30
    assert 0 < steps["system"] <= 10


def test_a_folder_that_cannot_be_locked(own, experiment_file, systems, tmp_path):
    two = {name: systems[name] for name in ("ce", "freq")}
    path = experiment_file(seeds=[1], analyses=[], systems=two, jobs=str(own / "jobs"))
    shutil.rmtree(own / "jobs" / "demo-1-ce")
    (own / "jobs" / "demo-1-ce").touch()
    result = cbmi("experiment", path, "--devices", "cpu")
    assert result.returncode == 1
    assert "Failed: demo-1-ce: " in result.stderr.decode()
    assert "+ Freq" in (tmp_path / "experiment" / "report" / "report.md").read_text()


def test_a_killed_job_says_so(experiment_file, monkeypatch):
    def kills_itself(*_):
        return [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]

    monkeypatch.setattr(runner, "job_command", kills_itself)
    path = experiment_file(seeds=[1], analyses=[])
    result = cbmi("experiment", path, "--devices", "cpu")
    assert result.returncode == 1
    said = result.stderr.decode()
    assert "Failed: demo-corpus: killed by signal 9 (out of memory?)" in said
    assert "Failed: demo-1-ce: not done, because demo-1-start failed\n" in said
