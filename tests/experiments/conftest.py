"""A small experiment to run, to read and to change."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tasks import environment, run_values

from cbmi.demo.corpus import write as write_demo

SYSTEMS = {
    "ce": {"label": "Transformer", "objective": "ce"},
    "freq": {"label": "+ Freq", "objective": "freq-exp"},
    "cbmi": {"label": "+ <CBMI>", "objective": {"name": "cbmi", "scale_token": 0.2}},
}


def make_task(folder: Path) -> None:
    """The beginning of the demo corpus, and a run file of two short stages."""
    write_demo(folder, 1)
    files = {}
    for part, count in (("train", 300), ("valid", 20), ("test", 40)):
        files[part] = []
        for side in ("en", "de"):
            file = folder / f"{part}.{side}"
            lines = file.read_text().split("\n")[:count]
            file.write_text("\n".join(lines) + "\n")
            files[part].append(str(file))
    data = {
        "source": "en",
        "target": "de",
        "train": files["train"],
        "valid": files["valid"],
        "test": {"test": files["test"]},
        "vocabulary": {"size": 600},
    }
    values = run_values(
        folder,
        data=data,
        validate={"every": 10, "beam": 2},
        optimizer={"peak_lr": 5e-3, "warmup": 10},
    )
    first, last = values["stages"]
    first["steps"] = 30
    last["steps"] = 10
    last["restart_optimizer"] = False
    (folder / "run.yaml").write_text(yaml.safe_dump(values))


def write_experiment(folder: Path, task: Path, **changes: Any) -> Path:
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


def start(path: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cbmi", "experiment", str(path), "--devices", "cpu,cpu"]
    return subprocess.Popen(
        [*command, *options], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.fixture(scope="session")
def task(made_once) -> Path:
    return made_once("experiment-task", make_task)


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


@pytest.fixture
def systems() -> dict[str, dict[str, Any]]:
    return SYSTEMS


@pytest.fixture
def experiment_file(task, tmp_path) -> Callable[..., Path]:
    """A function that writes the experiment's file with changes, and gives its path."""

    def write(**changes: Any) -> Path:
        return write_experiment(tmp_path, task, **changes)

    return write


@pytest.fixture
def started() -> Callable[..., subprocess.Popen[bytes]]:
    """A function that starts the command in a process of its own."""
    return start
