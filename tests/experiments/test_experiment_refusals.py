"""What an experiment refuses before its first job: bad files, and results of something else."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
from pathlib import Path

import pytest
import yaml
from tasks import ROOT, cbmi, refused, run_values, write_task

from cbmi.config import read_config
from cbmi.errors import UserError
from cbmi.experiments.plan import Plan
from cbmi.experiments.registration import register
from cbmi.experiments.settings import read_experiment


@pytest.mark.slow
def test_results_outlive_new_settings(whole, experiment_file, tmp_path):
    """A setting that did not exist when a job was done has its default there."""
    shutil.copytree(whole, tmp_path / "experiment", symlinks=True)
    for file in (tmp_path / "experiment" / "jobs").glob("*/result.json"):
        result = json.loads(file.read_text())
        del result["settings"]["data"]["drop_copies"]
        del result["settings"]["memory"]
        file.write_text(json.dumps(result))
    path = experiment_file()
    assert "0 of 11 jobs to do" in cbmi("experiment", path, "--dry-run").stdout.decode()
    changed = refused("experiment", path, "tasks.demo.settings=[data.drop_copies=true]")
    assert "data.drop_copies: false, now true" in changed


@pytest.mark.slow
def test_a_job_that_has_begun_keeps_its_settings(own, task, experiment_file):
    (own / "jobs" / "demo-1-cbmi" / "result.json").unlink()
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": ["optimizer.warmup=7"]}}
    for name in ("start", "ce", "freq", "prior-accuracy"):
        shutil.rmtree(own / "jobs" / f"demo-1-{name}")
    path = experiment_file(output=str(own), seeds=[1], tasks=tasks)
    for options in ([], ["--dry-run"]):
        message = refused("experiment", path, *options)
        assert "demo-1-cbmi has begun with other settings (optimizer.warmup: " in message


@pytest.mark.parametrize("content", ["{}", "[]", '{"job": "demo-1-ce", "settings": {}}'])
@pytest.mark.slow
def test_a_result_that_is_none(own, experiment_file, content):
    (own / "jobs" / "demo-1-ce" / "result.json").write_text(content)
    message = refused("experiment", experiment_file(output=str(own)))
    assert "result.json: this is not a result" in message


@pytest.mark.slow
def test_results_belong_to_their_corpus(whole, task, experiment_file, tmp_path):
    """Another corpus of the same name is refused; another test set is translated."""
    other = tmp_path / "other.en"
    other.write_text((task / "test.en").read_text().replace("a", "o"))
    settings = [f"data.test.test=[{other}, {task}/test.de]"]
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": settings}}
    path = experiment_file(output=str(whole), tasks=tasks)
    assert "is done, but the content of data.test.test has changed" in refused("experiment", path)
    copied = tmp_path / "experiment"
    shutil.copytree(whole, copied, symlinks=True)
    tasks["demo"]["settings"] = [f"data.test.more=[{other}, {task}/test.de]"]
    path = experiment_file(tasks=tasks, seeds=[1])
    plan = Plan(read_experiment(path, []))
    assert [job.id for job in plan.wanted()] == ["demo-1-ce", "demo-1-freq", "demo-1-cbmi"]
    weights = copied / "jobs" / "demo-1-ce" / "run" / "best" / "translator.safetensors"
    before = weights.stat().st_mtime_ns
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    assert weights.stat().st_mtime_ns == before  # the old checkpoint has translated it
    assert "| demo, test | demo, more |" in (copied / "report" / "report.md").read_text()


@pytest.mark.slow
def test_a_test_set_needs_the_model(own, task, experiment_file):
    """Without it, the job would be trained again, and its result replaced."""
    for folder in (own / "jobs").glob("*/run"):
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    settings = [f"data.test.more=[{task}/valid.en, {task}/valid.de]"]
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": settings}}
    message = refused("experiment", experiment_file(output=str(own), tasks=tasks, seeds=[1]))
    assert "demo-1-ce: its model is gone, so data.test.more cannot be translated" in message
    # A report has what is known.
    result = cbmi("experiment", experiment_file(output=str(own), tasks=tasks), "--report")
    assert result.returncode == 0, result.stderr.decode()
    text = (own / "report" / "report.md").read_text()
    assert "| Transformer | " in text
    assert "Not done yet" not in text
    # Nor can it be registered, now that its scores are known.
    path = experiment_file(output=str(own), tasks=tasks, seeds=[1], register=True)
    with pytest.raises(UserError, match="demo-1-ce has begun already"):
        register(Plan(read_experiment(path, [])))


@pytest.mark.slow
def test_results_belong_to_the_files_of_their_objectives(task, experiment_file, tmp_path):
    weights = tmp_path / "weights.txt"
    pairs = len((task / "train.en").read_text().splitlines())
    weights.write_text("1\n" * pairs)
    objective = {"name": "weights-file", "file": str(weights), "per": "pair"}
    changes = {"systems": {"file": {"objective": objective}}, "analyses": [], "seeds": [1]}
    path = experiment_file(**changes, register=True)
    assert cbmi("experiment", path, "--devices", "cpu").returncode == 0
    weights.write_text("2\n" * pairs)
    message = refused("experiment", experiment_file(**changes))
    assert "demo-1-file is done, but the content of stages.adapt.objective has changed" in message
    shutil.rmtree(tmp_path / "experiment" / "jobs" / "demo-1-file")
    message = refused("experiment", path, "--devices", "cpu")
    assert "this was registered otherwise (tasks.demo.systems.file.files" in message


@pytest.mark.slow
def test_results_belong_to_the_weights_that_they_start_from(whole, task, experiment_file):
    """Wherever that run lies; with another one, or none, they are other results."""

    def file(start: str | None, **changes):
        settings = [f"initialize={whole / 'jobs' / start / 'run'}"] if start else []
        tasks = {"demo": {"run": str(task / "run.yaml"), "settings": settings}}
        systems = {"ce": {"objective": "ce"}}
        return experiment_file(tasks=tasks, systems=systems, analyses=[], seeds=[1], **changes)

    done = cbmi("experiment", file("demo-1-ce", register=True), "--devices", "cpu")
    assert done.returncode == 0, done.stderr.decode()
    again = cbmi("experiment", file("demo-1-ce", register=True), "--dry-run")
    assert "0 of 3 jobs to do" in again.stdout.decode()
    for start in ("demo-2-ce", None):
        message = refused("experiment", file(start))
        assert "is done, but the content of initialize has changed" in message


BAD = {
    "a metric twice": ({"report": {"metric": ["chrf", "chrf"]}}, "a metric is given twice"),
    "a contrast of an unknown task": (
        {"report": {"contrasts": {"x": "deno/ce - demo/cbmi"}}},
        "report.contrasts.x: unknown task 'deno' (did you mean 'demo'?)",
    ),
    "a contrast of an unknown system": (
        {"report": {"contrasts": {"x": "ce - cbim"}}},
        "report.contrasts.x: unknown system 'cbim' (did you mean 'cbmi'?)",
    ),
    "words without a test set": (
        {"report": {"words": ["the"]}},
        "words: needs other_domains: the test sets that it is measured on",
    ),
    "an unknown system": (
        {"report": {"baseline": "cee"}},
        "report.baseline: unknown system 'cee' (did you mean 'ce'?)",
    ),
    "an unknown objective": (
        {"systems": {"a": {"objective": "cbim"}}},
        "systems.a.objective: unknown objective 'cbim'",
    ),
    "a task without file": (
        {"tasks": {"t": {"run": "none.yaml"}}},
        "tasks.t.run: there is no run file none.yaml",
    ),
    "a test set that is not": (
        {"report": {"sets": ["tset"]}},
        "report.sets: tasks.demo has no test set 'tset'",
    ),
    "a metric that is not": ({"report": {"metric": "meteor"}}, "report.metric.0: "),
    "no system": ({"systems": {}, "analyses": []}, "give at least one system or analysis"),
    "a seed twice": ({"seeds": [1, 1]}, "seeds: the same seed is given twice"),
    "a label twice": (
        {"tasks": {"a": {"run": "x", "label": "L"}, "b": {"run": "y", "label": "L"}}},
        "tasks: two columns are named 'L'",
    ),
    "a system's name twice": (
        {
            "systems": {
                "a": {"objective": "cbmi", "vary": {"scale_token": [0.1]}},
                "a=0.1": {"objective": "ce"},
            }
        },
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
        {
            "systems": {
                "a": {"objective": "cbmi", "vary": {"scale_token": [1.0], "scale_sentence": [1.0]}}
            }
        },
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
        {
            "systems": {
                "a": {"objective": "ce", "label": "L"},
                "b": {"objective": "bmi", "label": "L"},
            }
        },
        "systems: two are labelled 'L'",
    ),
    "one seed that is not a list": ({"seeds": 1}, "seeds: should be a list, not 1"),
    "a word that varies": (
        {"systems": {"a": {"objective": "cbmi", "vary": {"std": ["official"]}}}},
        "systems.a.vary.std.0: 'official' is not a number",
    ),
    "an unknown key": ({"sedes": [1]}, "unknown key 'sedes' (did you mean 'seeds'?)"),
}


def test_patience_needs_a_validation_set(task, experiment_file):
    settings = ["data.valid=null", "validate.patience=2"]
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": settings}}
    path = experiment_file(tasks=tasks, analyses=[])
    with pytest.raises(UserError, match=r"validate\.patience needs a validation set"):
        Plan(read_experiment(path, []))


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_the_first_job(experiment_file, tmp_path, case):
    changes, expected = BAD[case]
    assert expected in refused("experiment", experiment_file(**changes))
    assert not (tmp_path / "experiment").exists()


@pytest.mark.slow
def test_more_bad_input(whole, task, experiment_file, systems):
    path = experiment_file()
    path.write_text(path.read_text() + "systems: {}\n")
    assert "duplicate key 'systems'" in refused("experiment", path)
    experiment_file()
    assert "this is an experiment file; use cbmi experiment" in refused("train", path)
    assert "this is a run file" in refused("experiment", task / "run.yaml")
    assert "--shard: '2/2' should be I/N" in refused("experiment", path, "--shard", "2/2")
    assert "device: 'gpu' is not one of" in refused("experiment", path, "--devices", "cpu,gpu")
    assert "no job is done yet" in refused("experiment", experiment_file(), "--report")
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": ["data.vocabulary.size=700"]}}
    path = experiment_file(tasks=tasks, output=str(whole), seeds=[5])
    message = refused("experiment", path)
    assert "was prepared with other settings (data.vocabulary.size: 600, now 700)" in message
    changed = systems | {"cbmi": {"objective": {"name": "cbmi", "scale_token": 0.3}}}
    path = experiment_file(output=str(whole), systems=changed)
    change = "stages.adapt.objective.scale_token: 0.2, now 0.3"
    expected = f"demo-1-cbmi is done, but with other settings ({change})"
    assert expected in refused("experiment", path)


def test_tasks_that_cannot_be_reported(task, experiment_file):
    run_file = str(task / "run.yaml")
    cases = {
        "seed=7": "'seed=7' cannot be set here; use seeds, output or --devices",
        "stages=5": "stages: ",
        "stages=[{name: a, steps: 2}]": "has one stage",
        "data.test={}": "there is no data.test to report on",
        "data.valid=null": "analyses: prior-accuracy looks at data.valid",
        f"data.test={{valid: [{run_file}, {run_file}]}}": (
            "tasks.demo.run: data.test.valid: the validation set has this name"
        ),
        f"data.test={{test: [{task / 'test.en'}, {run_file}]}}": (
            "the two sides of a parallel corpus are aligned"
        ),
    }
    for setting, expected in cases.items():
        wrong = {"demo": {"run": run_file, "settings": [setting]}}
        assert expected in refused("experiment", experiment_file(tasks=wrong))
    wrong = {"demo": {"run": run_file, "preset": "wmt14"}}
    expected = "tasks.demo.preset: unknown preset 'wmt14'"
    assert expected in refused("experiment", experiment_file(tasks=wrong))
    for language, expected in {
        "zh": "tasks.demo.metric: multi-bleu counts words between spaces",
        "tr": (
            "tasks.demo.metric: multi-bleu: "
            "the Moses tokenizer does not support the language 'tr'; it supports"
        ),
    }.items():
        settings = [f"data.target={language}"]
        wrong = {"demo": {"run": run_file, "metric": "multi-bleu", "settings": settings}}
        assert expected in refused("experiment", experiment_file(tasks=wrong))


def test_systems_take_the_language_model_of_the_run_files_last_stage(task, experiment_file):
    systems = {
        "ce": {"objective": "ce"},
        "cbmi": {"objective": "cbmi"},
        "prior": {"objective": "lm-prior"},
        "own": {"objective": {"name": "cbmi", "scale_token": 0.2}, "language_model": "frozen"},
    }
    settings = ["stages.1.language_model=cached"]
    tasks = {"demo": {"run": str(task / "run.yaml"), "settings": settings}}
    plan = Plan(read_experiment(experiment_file(systems=systems, tasks=tasks, seeds=[1]), []))
    found = {}
    for name in systems:
        job = plan.jobs[plan.of_system["demo", 1, name]]
        found[name] = job.config.stages[-1].language_model
    # A cache holds no whole distributions.
    assert found == {"ce": "off", "cbmi": "cached", "prior": "frozen", "own": "frozen"}


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (ROOT / "recipes" / "experiments").glob("*.yaml"))
)
def test_the_recipes_work_on_any_task(name, tmp_path, monkeypatch):
    """With files of the names that their run files have, and on a task of one's own."""
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path)
    recipe = ROOT / "recipes" / "experiments" / name
    for task in read_experiment(recipe, []).tasks.values():
        data = read_config(task.run).data
        files = [*data.train_files(), *data.valid]
        for test_files in data.test.values():
            files += test_files
        for file in files:
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
