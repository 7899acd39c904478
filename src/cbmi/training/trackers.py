"""Experiment trackers that get a run's figures as they come: TensorBoard, W&B, MLflow.

`log.jsonl` is the truth. What a tracker has been sent is noted in `trackers.json` beside it; when a
run is resumed, or with `cbmi log push`, a tracker gets what it lacks, and nothing twice.
"""

from __future__ import annotations

import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cbmi.config import RunSettings
from cbmi.errors import UserError, first_line, import_extra
from cbmi.files import read_json, to_json, write_atomically
from cbmi.locks import alone_in
from cbmi.progress import say
from cbmi.training.records import read_log
from cbmi.training.run import RunDirectory

Record = Mapping[str, Any]  # of log.jsonl
PROJECT = "cbmi"  # unless the tracker's own environment variables say otherwise


class Tracker(ABC):
    """One tracker's view of a run."""

    place: str  # where the figures go
    is_new: bool  # whether there are none of this run there yet

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class TensorBoard(Tracker):
    """Event files in the run directory."""

    def __init__(self, folder: Path, run: str, config: RunSettings) -> None:
        self.module: Any = import_extra("torch.utils.tensorboard", "log.trackers", "tensorboard")
        self.place = str(folder / "tensorboard")
        self.is_new = not any((folder / "tensorboard").glob("events.*"))
        self.writer: Any = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.writer is None:  # it makes a file, which may not be needed
            self.writer = self.module.SummaryWriter(self.place)
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # a killed process leaves no hole

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class WeightsAndBiases(Tracker):
    """A run of W&B, which WANDB_PROJECT, WANDB_MODE, … direct as usual."""

    def __init__(self, folder: Path, run: str, config: RunSettings) -> None:
        wandb = import_extra("wandb", "log.trackers", "wandb")
        self.place = os.environ.get("WANDB_PROJECT", PROJECT)
        has_files = any((folder / "wandb").glob(f"*{run}"))  # offline, nothing else is known
        self.run: Any = wandb.init(
            project=self.place,
            name=folder.name,
            id=run,
            resume="allow",
            dir=str(folder),
            config=config.plain(),
            settings=wandb.Settings(console="off", silent=True),
        )
        self.is_new = not (has_files or self.run.resumed)
        # Its own step counts calls and refuses to go back.
        self.run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({**values, "step": step})

    def close(self) -> None:
        self.run.finish()


class MLflow(Tracker):
    """A run of MLflow: of MLFLOW_TRACKING_URI, or else of mlflow.db in the run directory."""

    def __init__(self, folder: Path, run: str, config: RunSettings) -> None:
        mlflow = import_extra("mlflow", "log.trackers", "mlflow")
        self.entities: Any = mlflow.entities
        own = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self.place = os.environ.get("MLFLOW_TRACKING_URI") or own
        self.client: Any = mlflow.MlflowClient(tracking_uri=self.place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self.client.create_experiment(name)
        found = self.client.search_runs([number], f"tags.cbmi_run = '{run}'", max_results=1)
        self.is_new = not found
        if found:
            self.run = found[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
            return
        tags = {"cbmi_run": run}
        self.run = self.client.create_run(number, tags=tags, run_name=folder.name).info.run_id
        for key, value in flattened(config.plain()).items():
            self.client.log_param(self.run, key, value)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = []
        for name, value in values.items():
            metrics.append(self.entities.Metric(name, value, now, step))
        self.client.log_batch(self.run, metrics=metrics)

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: dict[str, type[Any]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers whose libraries are not installed, before anything starts."""
    for name in names:
        import_extra(MODULES[name], f"log.trackers: {name}", name)


class Tracking:
    """The trackers of a run, each with what it has been sent."""

    def __init__(self, log: Path, names: Sequence[str], config: RunSettings) -> None:
        """`log`: log.jsonl, whose records the trackers get as far as they lack them."""
        self.state_file = log.parent / "trackers.json"
        # With --restart it is set aside, and the trackers have a new run.
        self.state = _read_state(self.state_file)
        run = self.state.setdefault("run", _new_name(log))
        self.trackers: dict[str, Tracker] = {}
        self.failed: dict[str, str] = {}  # with the reason
        for name in names:
            try:
                self.trackers[name] = TRACKERS[name](log.parent, run, config)
            except UserError:
                raise
            except Exception as error:
                raise UserError(
                    f"log.trackers: {name} cannot be used: {first_line(error)}."
                ) from None
            tracker = self.trackers[name]
            known = self.state.get(name)
            if known is None or tracker.is_new or known.get("place") != tracker.place:
                self.state[name] = {"place": tracker.place, "step": -1, "names": []}
        for record in read_log(log) if log.exists() else []:
            self._send(record)
        self._save()

    def log(self, record: Record) -> None:
        """Send a record to the trackers that do not have it yet."""
        self._send(record)
        self._save()

    def _save(self) -> None:
        write_atomically(self.state_file, to_json(self.state))

    def _send(self, record: Record) -> None:
        values = {}
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                values[name] = float(value)
        step = int(record["step"])
        for name, tracker in self.trackers.items():
            sent = self.state[name]
            known = sent["names"] if step == sent["step"] else []
            new = {key: value for key, value in values.items() if key not in known}
            if step < sent["step"] or not new:
                continue
            if self._succeeds(name, partial(tracker.log, step, new)):
                sent.update(step=step, names=[*known, *new])
        self._drop_failed()

    def close(self) -> None:
        for name, tracker in self.trackers.items():
            self._succeeds(name, tracker.close)
        self._drop_failed()

    def _succeeds(self, name: str, act: Callable[[], None]) -> bool:
        """A tracker that fails, for whatever reason of its own, does not end a training."""
        try:
            act()
        except Exception as error:
            self.failed[name] = first_line(error)
            return False
        return True

    def _drop_failed(self) -> None:
        for name, reason in self.failed.items():
            if self.trackers.pop(name, None) is not None:
                say(
                    f"{name} failed ({reason}) and gets no more figures; log.jsonl has them all, "
                    f"and `cbmi log push {self.state_file.parent} --to {name}` sends the rest."
                )


def push_log(path: Path, names: Sequence[str]) -> str:
    """Send what the trackers lack of a run's log; says how far each has it."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"--to: '{name}' is not one of {', '.join(TRACKERS)}.")
    run = RunDirectory(path)
    config = run.config()
    if not run.log.exists():
        raise UserError(f"{run.log}: nothing has been logged yet.")
    check_trackers(names)
    with alone_in(path):
        tracking = Tracking(run.log, names, config)
        tracking.close()
    if tracking.failed:
        raise UserError(f"{path}: {', '.join(tracking.failed)} did not get all of it.")
    steps = [f"{name} has it up to step {tracking.state[name]['step']:,}" for name in names]
    return "; ".join(steps)


def _new_name(log: Path) -> str:
    """A name for the trackers that no other run has."""
    content = f"{log.resolve()} {os.getpid()} {time.time_ns()}"
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _read_state(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    state = read_json(path)
    is_right = isinstance(state, dict) and isinstance(state.get("run"), str)
    if is_right:
        sent = [state[name] for name in TRACKERS if name in state]
        is_right = all(isinstance(one, dict) and isinstance(one.get("step"), int) for one in sent)
    if not is_right:
        raise UserError(f"{path}: this was not written by cbmi; delete it to send all again.")
    return dict(state)


def flattened(values: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings as one level: {"optimizer.peak_lr": "0.001", …}."""
    if isinstance(values, dict):
        items = [(str(key), value) for key, value in values.items()]
    elif isinstance(values, list) and any(isinstance(value, dict) for value in values):
        items = [(str(number), value) for number, value in enumerate(values)]
    else:
        return {prefix: str(values)}
    found: dict[str, str] = {}
    for key, value in items:
        found |= flattened(value, f"{prefix}.{key}" if prefix else key)
    return found
