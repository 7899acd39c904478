"""Trackers get the figures of log.jsonl: whole, once, and also afterwards."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from tasks import cbmi, read_log, refused, write_run, write_task

from cbmi.config import LogSettings
from cbmi.training.trackers import Tracking, flattened

Curve = dict[str, list[tuple[int, float]]]  # of a figure: (step, value)


def tensorboard_curves(run: Path) -> Curve:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    curves = {}
    for name in events.Tags()["scalars"]:
        curves[name] = [(event.step, event.value) for event in events.Scalars(name)]
    return curves


def mlflow_curves(run: Path) -> Curve:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cbmi")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["stages.0.name"] == "pretrain"
    curves = {}
    for name in found.data.metrics:
        history = client.get_metric_history(found.info.run_id, name)
        curves[name] = sorted((metric.step, metric.value) for metric in history)
    return curves


def wandb_records(file: Path) -> Iterator[bytes]:
    """What W&B has written offline: after a header of 7 bytes, blocks of 32 KiB with chunks."""
    data = file.read_bytes()
    place = 7
    record = b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left  # filled with zeros
            continue
        size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def wandb_curves(run: Path) -> Curve:
    from wandb.proto import wandb_internal_pb2

    curves: Curve = {}
    names = set()
    for folder in sorted((run / "wandb").glob("offline-run-*")):
        (file,) = folder.glob("*.wandb")
        names.add(file.name)
        for data in wandb_records(file):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            values = {}
            for item in record.history.item:
                values[item.key or item.nested_key[0]] = json.loads(item.value_json)
            for name, value in values.items():
                if name != "step" and not name.startswith("_"):
                    curves.setdefault(name, []).append((values["step"], value))
    assert len(names) == 1  # all of it is one run
    return curves


TIMES = ("seconds", "tokens_per_second", "mfu", "waiting")
READERS = {"tensorboard": tensorboard_curves, "mlflow": mlflow_curves, "wandb": wandb_curves}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def logged(run: Path) -> Curve:
    curves: Curve = {}
    for record in read_log(run):
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                curves.setdefault(name, []).append((record["step"], value))
    return curves


def same(found: Curve, expected: Curve, but_for: tuple[str, ...] = ()) -> None:
    """`but_for`: figures of which only the steps have to be the same."""
    assert found.keys() == expected.keys()
    for name, points in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        if name in but_for:
            continue
        for (_, one), (_, other) in zip(found[name], points, strict=True):
            assert math.isclose(one, other, rel_tol=1e-6), name


@pytest.mark.slow
def test_a_resumed_run_has_curves_without_holes_or_doubles(tmp_path):
    """Stopped after a checkpoint, so that some steps are trained, and logged, twice."""
    write_task(tmp_path)
    path = write_run(tmp_path)
    trackers = "log={every: 1, trackers: [tensorboard, wandb, mlflow]}"
    run = tmp_path / "run"
    result = cbmi("train", path, trackers, "stages.pretrain.steps=6", "checkpoints.every=4")
    assert result.returncode == 0, result.stderr.decode()
    # As if the run had been killed after step 6 with its last checkpoint at step 4.
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name.partition("-")[2]) > 4:
            for file in checkpoint.iterdir():
                file.unlink()
            checkpoint.rmdir()
    result = cbmi("train", path, trackers, "stages.pretrain.steps=6", "checkpoints.every=4")
    assert result.returncode == 0, result.stderr.decode()
    expected = logged(run)
    assert len(expected["loss"]) == len({step for step, _ in expected["loss"]})
    for name, curves in READERS.items():
        print(name)
        same(curves(run), expected, but_for=TIMES)


@pytest.mark.slow
def test_a_run_from_scratch_has_a_curve_of_its_own(tmp_path):
    write_task(tmp_path)
    command = ("train", write_run(tmp_path), "log={every: 2, trackers: [tensorboard]}")
    assert cbmi(*command).returncode == 0
    result = cbmi(*command, "--restart")
    assert result.returncode == 0, result.stderr.decode()
    run = tmp_path / "run"
    same(tensorboard_curves(run), logged(run))
    before = run / "before-restart"
    same(tensorboard_curves(before), logged(before))


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_log_is_pushed_afterwards(tmp_path, monkeypatch, name):
    write_task(tmp_path)
    assert cbmi("train", write_run(tmp_path), "log.every=2").returncode == 0
    run = tmp_path / "run"
    for _ in range(2):  # the second time, there is nothing left to send
        result = cbmi("log", "push", run, "--to", name)
        assert result.returncode == 0, result.stderr.decode()
    same(READERS[name](run), logged(run))
    if name == "tensorboard":  # what was deleted there is sent again
        shutil.rmtree(run / "tensorboard")
    elif name == "mlflow":  # and what another place lacks, too
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    if name != "wandb":
        assert cbmi("log", "push", run, "--to", name).returncode == 0
        same(READERS[name](run if name == "tensorboard" else tmp_path), logged(run))
    last = read_log(run)[-1]["step"]
    assert f"{name} has it up to step {last}" in result.stderr.decode()


def test_mistakes_in_pushing(tmp_path):
    assert "no" in refused("log", "push", tmp_path / "no", "--to", "mlflow")
    assert "'comet' is not one of tensorboard, wandb, mlflow" in refused(
        "log", "push", tmp_path, "--to", "comet"
    )


class Recorder:
    """A tracker that remembers."""

    sent: ClassVar[list[tuple[int, dict[str, float]]]] = []

    def __init__(self, folder, run, config) -> None:
        self.run = run
        self.place = "here"
        self.is_new = not self.sent

    def log(self, step, values) -> None:
        self.sent.append((step, dict(values)))

    def close(self) -> None:
        pass


def test_a_tracker_gets_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr("cbmi.training.trackers.TRACKERS", {"wandb": Recorder})
    monkeypatch.setattr(Recorder, "sent", [])
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "stage": "a", "loss": 3.0}\n{"step": 2, "loss": null}\n')
    tracking = Tracking(log, ["wandb"], None)
    assert Recorder.sent == [(1, {"loss": 3.0})]
    tracking.log({"step": 2, "loss": 2.0})
    tracking.log({"step": 2, "valid_loss": 2.5})  # another record of the same step
    tracking.log({"step": 1, "loss": 9.0})  # trained again
    tracking.log({"step": 2, "loss": 9.0, "valid_loss": 9.0})
    assert Recorder.sent[1:] == [(2, {"loss": 2.0}), (2, {"valid_loss": 2.5})]
    again = Tracking(log, ["wandb"], None)
    assert len(Recorder.sent) == 3
    assert again.trackers["wandb"].run == tracking.trackers["wandb"].run
    (tmp_path / "trackers.json").unlink()  # as --restart does
    assert Tracking(log, ["wandb"], None).trackers["wandb"].run != again.trackers["wandb"].run


def test_a_tracker_that_fails_does_not_end_a_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cbmi.training.trackers.TRACKERS", {"wandb": Recorder})
    monkeypatch.setattr(Recorder, "log", lambda self, step, values: 1 / 0)
    tracking = Tracking(tmp_path / "log.jsonl", ["wandb"], None)
    tracking.log({"step": 1, "loss": 3.0})
    tracking.log({"step": 2, "loss": 2.0})
    tracking.close()
    said = capsys.readouterr().err
    assert said.count("wandb failed (division by zero) and gets no more figures") == 1
    monkeypatch.setattr(Recorder, "log", lambda self, step, values: self.sent.append(step))
    monkeypatch.setattr(Recorder, "sent", [])
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n')
    Tracking(tmp_path / "log.jsonl", ["wandb"], None)
    assert Recorder.sent == [1, 2]


def test_settings():
    assert LogSettings.model_validate({"tensorboard": True}).trackers == ("tensorboard",)
    assert LogSettings.model_validate({"tensorboard": False}).trackers == ()
    values = {"a": {"b": 1}, "c": [{"d": [2, 3]}]}
    assert flattened(values) == {"a.b": "1", "c.0.d": "[2, 3]"}
