"""`language_model: cached`: the same as `frozen`, computed once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tasks import (
    cbmi,
    environment,
    read_log,
    refused,
    two_ranks,
    without_dropout,
    write_run,
    write_task,
)

from cbmi.files import to_json
from cbmi.training import stage as stage_module
from cbmi.training.cache import fill_cache

pytestmark = pytest.mark.slow

PRETRAIN = {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 5}


def stages(language_model, **settings):
    adapt = {
        "name": "adapt",
        "objective": "cbmi",
        "language_model": language_model,
        "steps": 7,
        **settings,
    }
    return [PRETRAIN, adapt]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, train=120, valid=4)
    return folder


def train(task, name, **changes):
    path = write_run(task, f"{name}.yaml", output=str(task / name), **changes)
    result = cbmi("train", path)
    assert result.returncode == 0, result.stderr.decode()
    return task / name, result.stderr.decode()


KEYS = (
    "step",
    "loss",
    "nll",
    "lm_ppl",
    "cbmi_mean",
    "weight_std",
    "weight_q05",
    "weight_q95",
    "grad_norm",
)


def course(run, first=1, last=99):
    return [
        {key: record[key] for key in KEYS if key in record}
        for record in read_log(run)
        if first <= record["step"] <= last and "loss" in record
    ]


def test_cached_in_float32_is_frozen(task):
    """Exactly, in the epoch whose mini-batches were scored; later up to the order of sums."""
    frozen, _ = train(task, "frozen", stages=stages("frozen"), batch={"tokens": 60})
    cached, said = train(task, "cached", stages=stages("cached"), batch={"tokens": 60})
    assert "target tokens by the language model" in said
    epoch = next(record["epoch"] for record in read_log(cached) if record["step"] == 6)
    same_epoch = [r["step"] for r in read_log(cached) if r["step"] > 5 and r.get("epoch") == epoch]
    assert len(same_epoch) > 2
    last = same_epoch[-1]
    assert course(cached, 6, last) == course(frozen, 6, last)
    for ours, theirs in zip(course(cached), course(frozen), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert (cached / "best" / "language_model.safetensors").exists()


def test_float16_rounds(task):
    frozen, _ = train(task, "frozen", stages=stages("frozen"), batch={"tokens": 60})
    half, _ = train(
        task, "half", stages=stages("cached", cache_precision="float16"), batch={"tokens": 60}
    )
    assert course(half) != course(frozen)
    for ours, theirs in zip(course(half), course(frozen), strict=True):
        assert ours == pytest.approx(theirs, rel=5e-3)
    size = json.loads((half / "data" / "train" / "meta.json").read_text())["tokens"]["target"]
    assert (half / "cache" / "adapt" / "log_p").stat().st_size == 2 * size


def test_it_is_computed_once_and_made_again_where_it_is_wrong(task):
    run, _ = train(task, "again", stages=stages("cached"))
    file = run / "cache" / "adapt" / "log_p"
    before = file.read_bytes()
    longer = stages("cached")
    longer[1]["steps"] = 8
    _, said = train(task, "again", stages=longer)
    assert "Scored" not in said
    damaged = np.fromfile(file, np.float32)
    damaged[17] += 1
    damaged.tofile(file)
    longer[1]["steps"] = 9
    _, said = train(task, "again", stages=longer)
    assert f"{file} is damaged; it is made again" in said
    assert np.allclose(np.fromfile(file, np.float32), np.frombuffer(before, np.float32), atol=1e-5)
    meta = file.with_name("meta.json")
    content = json.loads(meta.read_text())
    content["identity"]["language_model"] = "other"
    meta.write_text(json.dumps(content))
    longer[1]["steps"] = 10
    _, said = train(task, "again", stages=longer)
    assert "made with another language_model; it is made again" in said


def test_made_again_in_the_middle_of_a_stage_it_is_the_same(task, monkeypatch):
    """In a later epoch, whose batches may round differently: it is made over the first one's."""
    made_over = []

    def remember_and_fill(cache, identity, scorer, builder, epoch):
        made_over.append(epoch)
        return fill_cache(cache, identity, scorer, builder, epoch)

    monkeypatch.setattr(stage_module, "fill_cache", remember_and_fill)
    settings = {"steps": 30}
    whole, _ = train(task, "never-lost", stages=stages("cached", **settings))
    values = (whole / "cache" / "adapt" / "log_p").read_bytes()
    train(task, "lost", stages=stages("cached", steps=20))
    epochs = {record.get("epoch") for record in read_log(task / "lost")}
    assert len(epochs - {None}) > 2
    shutil.rmtree(task / "lost" / "cache")
    lost, said = train(task, "lost", stages=stages("cached", **settings))
    assert "Scored" in said
    assert (lost / "cache" / "adapt" / "log_p").read_bytes() == values
    name = "best/translator.safetensors"
    assert (lost / name).read_bytes() == (whole / name).read_bytes()
    assert len(made_over) == 3
    assert len(set(made_over)) == 1


def test_missing_values_are_computed_wherever_they_are(task):
    """As a power cut may leave them: in the middle of a sentence, beside values that exist."""
    run, _ = train(task, "holes", stages=stages("cached"))
    file = run / "cache" / "adapt" / "log_p"
    meta = file.with_name("meta.json")
    whole = np.fromfile(file, np.float32)
    holes = whole.copy()
    holes[[5, 100]] = np.nan
    holes.tofile(file)
    file.with_name("begun.json").write_text(to_json(json.loads(meta.read_text())["identity"]))
    meta.unlink()
    longer = stages("cached")
    longer[1]["steps"] = 8
    train(task, "holes", stages=longer)
    assert np.allclose(np.fromfile(file, np.float32), whole, atol=1e-5)
    assert meta.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_interrupted_and_resumed(task, number):
    """Stopped while scores are computed: existing ones are kept, and the result is the same."""
    whole, _ = train(task, f"whole-{number}", stages=stages("cached"), batch={"tokens": 20})
    output = task / f"stopped-{number}"
    path = write_run(
        task, f"{number}.yaml", output=str(output), stages=stages("cached"), batch={"tokens": 20}
    )
    file = output / "cache" / "adapt" / "log_p"
    process = subprocess.Popen(
        [sys.executable, "-m", "cbmi", "train", str(path)], env=environment(), stderr=-3
    )
    end = time.monotonic() + 120
    begun = file.with_name("begun.json")
    while time.monotonic() < end and not (
        begun.exists() and np.isfinite(np.fromfile(file, np.float32)).any()
    ):
        time.sleep(0.001)
    process.send_signal(number)
    assert process.wait() == (0 if number == signal.SIGTERM else -number)
    partial = np.fromfile(file, np.float32)
    assert np.isfinite(partial).any()
    assert not np.isfinite(partial).all()
    assert cbmi("train", path).returncode == 0
    found = np.fromfile(file, np.float32)
    kept = np.isfinite(partial)
    assert np.array_equal(found[kept], partial[kept])
    assert np.array_equal(found, np.fromfile(whole / "cache" / "adapt" / "log_p", np.float32))
    assert course(output) == course(whole)
    assert sorted(p.name for p in file.parent.iterdir()) == ["log_p", "meta.json"]


def test_two_ranks_share_the_work(task):
    settings = {"stages": stages("cached"), "model": without_dropout()}
    train(task, "one", **settings, batch={"tokens": 200})
    path = write_run(task, "two.yaml", **settings, output=str(task / "two"), batch={"tokens": 100})
    result = two_ranks("-m", "cbmi", "train", path)
    assert result.returncode == 0, result.stderr.decode()
    ours, theirs = (
        np.fromfile(task / name / "cache" / "adapt" / "log_p", np.float32)
        for name in ("two", "one")
    )
    assert np.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["lm-prior", "prior-lm", "prior-cbmi", "prior-selection", "fusion-prenorm"]
)
def test_objectives_that_need_whole_distributions_refuse_it(tmp_path, name):
    write_task(tmp_path, train=20, valid=4)
    path = write_run(tmp_path, stages=stages("cached", objective=name))
    message = refused("train", path)
    assert f"objective '{name}' needs the language model's whole distributions" in message
    assert not (tmp_path / "run").exists()


def test_a_cache_needs_a_language_model(tmp_path):
    write_task(tmp_path, train=20, valid=4)
    path = write_run(tmp_path, stages=stages("cached")[1:])
    assert "'cached' needs a language model that an earlier stage trained" in refused("train", path)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
