"""The ladder of recipes: which runs there are, and that what is done is not done again."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time

import pytest
import yaml
from tasks import ROOT, environment, run_values, write_run, write_task

from cbmi.training.checks import check_stages, complete_settings


@pytest.fixture(scope="module")
def ladder():
    path = ROOT / "studies" / "recipe_ladder.py"
    spec = importlib.util.spec_from_file_location("recipe_ladder", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["recipe_ladder"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_jobs_are_tasks_times_rungs_times_seeds(ladder, tmp_path):
    plan = {
        "tasks": {
            "a": {"run": "a.yaml", "settings": ["x=1"], "rungs": {"more": ["steps=2"]}},
            "b": {"run": "b.yaml", "without": ["more"]},
        },
        "rungs": {"base": [], "more": ["steps=1", "data.z=3"]},
    }
    jobs = list(ladder.jobs_of(plan, tmp_path, {"a": ["data.y=2"]}, [1, 2]))
    assert [job.name for job in jobs] == [
        "a-base-1",
        "a-more-1",
        "b-base-1",
        "a-base-2",
        "a-more-2",
        "b-base-2",
    ]
    assert jobs[1].settings == ("x=1", "data.y=2", "steps=2", "seed=1")
    assert jobs[1].data_settings() == ("data.y=2",)


def test_the_table_has_means_over_seeds(ladder):
    row = {"task": "a", "set": "test", "rung": "base", "steps": "10"}
    rows = [
        row | {"valid_bleu": "10", "bleu": "20", "chrf": "30"},
        row | {"valid_bleu": "12", "bleu": "20", "chrf": "31"},
    ]
    line = ladder.table(rows).splitlines()[-1]
    assert line == "| a | test | base | 10 | 2 | 11.00 ± 1.00 | 20.00 ± 0.00 | 30.50 ± 0.50 |"


def test_the_table_has_minutes_of_rungs_that_were_timed(ladder):
    row = {"task": "a", "set": "test", "steps": "600", "valid_bleu": "1", "bleu": "2", "chrf": "3"}
    rows = [row | {"rung": "base"}, row | {"rung": "other"}]
    speeds = [{"task": "a", "rung": "base", "seconds_per_step": "0.25"}]
    header, _, base, other = ladder.table(rows, speeds).splitlines()
    assert header.startswith("| task | set | rung | steps | minutes | seeds |")
    assert base == "| a | test | base | 600 | 2.5 | 1 | 1.00 | 2.00 | 3.00 |"
    assert other.startswith("| a | test | other | 600 | – | 1 |")


@pytest.mark.slow
def test_equal_steps_are_timed_once(tmp_path):
    write_task(tmp_path, train=40, valid=5)
    data = run_values(tmp_path)["data"]
    data["test"] = {"test": [str(tmp_path / "test.src"), str(tmp_path / "test.tgt")]}
    write_run(tmp_path, data=data, stages=[{"name": "ce", "steps": 3}])
    (tmp_path / "plan.yaml").write_text(
        "tasks: {t: {run: run.yaml}}\n"
        "rungs: {base: [], longer: [stages.0.steps=6], ema: [ema=0.9], no: [data.train=no.tsv]}\n"
    )
    command = [sys.executable, str(ROOT / "studies" / "recipe_ladder.py"), "plan.yaml", "out"]
    command += ["--time", "10", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "t-no-timed-1: failed with status 2; see out/t-no-timed-1.txt" in done.stderr
    lines = (tmp_path / "out" / "speed.csv").read_text().splitlines()
    assert lines[0] == "task,rung,seconds_per_step"
    speeds = {line.split(",")[1]: float(line.split(",")[2]) for line in lines[1:]}
    assert list(speeds) == ["base", "longer", "ema"]
    assert speeds["longer"] == speeds["base"] > 0
    assert not [path for path in (tmp_path / "out").glob("t-*") if path.is_dir()]
    few = subprocess.run([*command, "--time=4"], cwd=tmp_path, capture_output=True, text=True)
    assert few.returncode == 2
    assert "--time: 4 steps are too few; give at least 5." in few.stderr


@pytest.mark.parametrize(
    "name", ["recipe_ladder", "corpus_sizes", "distillation", "back_translation", "students"]
)
def test_its_plans_are_understood(ladder, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "docs-en-de").mkdir(parents=True)
    for weights in ("references", "distilled"):
        (tmp_path / "data" / "docs-en-de" / f"{weights}.weights").touch()
    plan = yaml.safe_load((ROOT / "studies" / f"{name}.yaml").read_text())
    own = {"student": ["data.vocabulary={model: shared.model}"]} if name == "students" else {}
    for job in ladder.jobs_of(plan, ROOT / "studies", own, [1]):
        config = ladder.read_config(job.recipe, job.settings)
        objectives = [stage.objective["name"] for stage in config.stages]
        check_stages(complete_settings(config))
        assert objectives == (["weights-file"] if job.rung.endswith("-weights") else ["ce"])


@pytest.mark.slow
def test_what_is_done_is_not_trained_again(tmp_path):
    write_task(tmp_path, train=40, valid=5)
    data = run_values(tmp_path)["data"]
    data["test"] = {"test": [str(tmp_path / "test.src"), str(tmp_path / "test.tgt")]}
    write_run(tmp_path, data=data, stages=[{"name": "ce", "steps": 3}])
    plan = tmp_path / "plan.yaml"
    plan.write_text("tasks: {t: {run: run.yaml}}\nrungs: {base: [], ema: [ema=0.9]}\n")
    command = [sys.executable, str(ROOT / "studies" / "recipe_ladder.py"), str(plan)]
    command += [str(tmp_path / "out"), "--seeds", "1", "--jobs", "2", "--device", "cpu"]
    first = subprocess.run(command, env=environment(), capture_output=True, check=True, text=True)
    assert first.stdout.count("| t | test |") == 2
    results = (tmp_path / "out" / "results.csv").read_text()
    again = subprocess.run(command, env=environment(), capture_output=True, check=True, text=True)
    assert again.stdout == first.stdout
    assert (tmp_path / "out" / "results.csv").read_text() == results
    assert "on validation" not in again.stderr
    for options, problem in (
        (["--tasks", "tt"], "--tasks: there is no 'tt' in the plan (did you mean 't'?)"),
        (["--rungs", "base,emma"], "--rungs: there is no 'emma' in the plan (did you mean 'ema'?)"),
        (["u:seed=3"], "TASK:KEY=VALUE: there is no 'u' in the plan"),
        (["t:sede=3", "--seeds=2"], "unknown key 'sede'"),
        (["t:label_smoothing=0.2"], "t-base-1 was trained with other settings"),
        (["--seeds=x"], "--seeds: 'x' should be numbers"),
    ):
        refused = subprocess.run([*command, *options], env=environment(), capture_output=True)
        assert refused.returncode == 2
        assert problem in refused.stderr.decode()


@pytest.mark.slow
def test_what_fails_is_said_and_the_rest_is_done(tmp_path):
    write_task(tmp_path, train=40, valid=5)
    data = run_values(tmp_path)["data"]
    data["test"] = {"test": [str(tmp_path / "test.src"), str(tmp_path / "test.tgt")]}
    write_run(tmp_path, data=data, stages=[{"name": "ce", "steps": 3}])
    (tmp_path / "plan.yaml").write_text(
        "tasks: {t: {run: run.yaml}}\nrungs: {wrong: [data.train=none.tsv], base: []}\n"
    )
    command = [sys.executable, str(ROOT / "studies" / "recipe_ladder.py"), "plan.yaml", "out"]
    command += ["--seeds", "1", "--jobs", "2", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "t-wrong-1: failed with status 2; see out/t-wrong-1.txt" in done.stderr
    assert "recipe_ladder: 1 of 2 runs failed." in done.stderr
    assert "there is no such file" in (tmp_path / "out" / "t-wrong-1.txt").read_text()
    assert "| t | test | base |" in done.stdout


@pytest.mark.slow
def test_when_it_is_stopped_its_runs_save(tmp_path):
    write_task(tmp_path, train=40, valid=5)
    stages = [{"name": "ce", "steps": 100_000}]
    write_run(tmp_path, stages=stages, validate={"every": 100_000, "beam": 0})
    plan = tmp_path / "plan.yaml"
    plan.write_text("tasks: {t: {run: run.yaml}}\nrungs: {base: [], ema: [ema=0.9]}\n")
    command = [sys.executable, str(ROOT / "studies" / "recipe_ladder.py"), str(plan)]
    command += [str(tmp_path / "out"), "--seeds", "1", "--jobs", "1", "--device", "cpu"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE)
    log = tmp_path / "out" / "t-base-1" / "log.jsonl"
    while not (log.exists() and log.read_text()):
        time.sleep(0.1)
    process.terminate()
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 143, said
    assert list((tmp_path / "out" / "t-base-1" / "checkpoints").glob("step-*"))
    assert "t-base-1: stopped" in said
    assert not (tmp_path / "out" / "t-ema-1" / "checkpoints").exists()
