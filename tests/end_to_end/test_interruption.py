"""Kill -9, SIGTERM, a second process, a full disk: real processes, real signals."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tasks import cbmi, environment, every_objective, refused, two_ranks, write_run, write_task

STAGES = [
    {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 14},
    {"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 10},
    {
        "name": "on",
        "objective": "cbmi",
        "language_model": "joint",
        "steps": 8,
        "restart_optimizer": False,
    },
]
SETTINGS = {
    "stages": STAGES,
    "validate": {"every": 5, "beam": 2},
    "checkpoints": {"every": 3},
    "log": {"every": 4},
}
LAST_STEP = 32

pytestmark = pytest.mark.slow


def start(path: Path, **settings) -> subprocess.Popen:
    command = [sys.executable, "-m", "cbmi", "train", str(path)]
    return subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, **settings)


def weights(run: Path, step: int = LAST_STEP) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"step-{step}"
    names = ("translator", "language_model", "optimizer")
    return {
        f"{name}/{key}": value
        for name in names
        for key, value in load_file(folder / f"{name}.safetensors").items()
    }


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[key], second[key]) for key in first
    )


def figures(run: Path) -> list[dict]:
    """The log without what depends on the clock."""
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    of_time = ("tokens_per_second", "seconds", "mfu", "waiting")
    return [{k: v for k, v in record.items() if k not in of_time} for record in records]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A finished run of several epochs with dropout, never disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write_task(folder, train=60, valid=8)
    result = cbmi("train", write_run(folder, **SETTINGS))
    assert result.returncode == 0, result.stderr.decode()
    state = json.loads(
        (folder / "run" / "checkpoints" / f"step-{LAST_STEP}" / "state.json").read_text()
    )
    assert state["epoch"] >= 2
    return folder


def copy_of_task(uninterrupted: Path, folder: Path) -> Path:
    write_task(folder, train=60, valid=8)
    return write_run(folder, **SETTINGS)


def finish(path: Path, uninterrupted: Path, asked_to_stop: bool = False) -> None:
    """A run that was asked to stop has one more record, of the step at which it stopped."""
    result = cbmi("train", path)
    assert result.returncode == 0, result.stderr.decode()
    run = path.parent / "run"
    assert same(weights(run), weights(uninterrupted / "run"))
    ours, theirs = figures(run), figures(uninterrupted / "run")
    if asked_to_stop:
        ours, theirs = (
            [record for record in one if "valid_loss" in record] for one in (ours, theirs)
        )
    assert ours == theirs
    assert os.readlink(run / "best") == os.readlink(uninterrupted / "run" / "best")
    assert not list(run.rglob(".*.partial"))


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_it_ends_with_the_same_weights(uninterrupted, tmp_path, seed):
    path = copy_of_task(uninterrupted, tmp_path)
    generator = random.Random(seed)
    for wait in (generator.uniform(0.0, 1.5) for _ in range(3)):
        process = start(path)
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "log.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(wait)
        process.kill()
        process.communicate()
    finish(path, uninterrupted)


PAUSE = """
import os, signal, sys
import {module} as module
def kill_at(*arguments, **keywords):
    kill_at.calls += 1
    if kill_at.calls == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **keywords)
original, kill_at.calls = {target}, 0
{target} = kill_at
sys.argv = ["cbmi", "train", {path!r}]
from cbmi.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "target", "call"),
    [
        ("cbmi.training.validation", "module.Validator._bleu", 3),  # during validation
        ("cbmi.training.checkpoint", "module.to_json", 5),  # while a checkpoint is being written
        ("cbmi.files", "module.os.replace", 9),  # just before it is put in its place
        # between the checkpoint and the link to the best
        ("cbmi.training.checkpoint", "module.point_to", 4),
        ("cbmi.training.checkpoint", "module.retain", 4),
    ],
)
def test_killed_at_the_worst_moments(uninterrupted, tmp_path, module, target, call):
    path = copy_of_task(uninterrupted, tmp_path)
    script = PAUSE.format(module=module, target=target, call=call, path=str(path))
    result = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True)
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    finish(path, uninterrupted)


def test_killed_in_the_middle_of_every_objective(tmp_path):
    """Killed again and again at its seventh step, a run ends as one that was never disturbed."""
    runs = {}
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        write_task(folder, train=60, valid=8)
        settings = {
            "validate": {"every": 5, "beam": 1},
            "checkpoints": {"every": 1, "keep_last": 1},
        }
        runs[name] = write_run(folder, stages=every_objective(folder, steps=2), **settings)
    assert cbmi("train", runs["whole"]).returncode == 0
    script = PAUSE.format(
        module="cbmi.training.step",
        target="module.Stepper.compute",
        call=7,
        path=str(runs["killed"]),
    )
    kills = 0
    while subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True
    ).returncode:
        kills += 1
        assert kills < 9
    assert kills >= 4
    whole, killed = (tmp_path / name / "run" for name in runs)
    assert figures(killed) == figures(whole)
    last = max(
        (whole / "checkpoints").glob("step-*"),
        key=lambda path: int(path.name.removeprefix("step-")),
    ).name
    first, second = (
        load_file(run / "checkpoints" / last / "translator.safetensors") for run in (whole, killed)
    )
    assert same(first, second)


def test_ranks_that_die_are_started_again_by_torchrun(tmp_path):
    """Rank 1 dies first, rank 0 after the restart: the third start ends as if none had died."""
    rank_and_restart = "os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT']"
    deaths = f"(5 if {rank_and_restart} in ('10', '01') else 0)"
    for name, call in {"whole": "0", "killed": deaths}.items():
        folder = tmp_path / name
        folder.mkdir()
        write_task(folder, train=60, valid=8)
        path = str(write_run(folder, **SETTINGS | {"stages": STAGES[:1]}))
        script = PAUSE.format(
            module="cbmi.training.step", target="module.Stepper.compute", call=call, path=path
        )
        (folder / "train.py").write_text(script)
        result = two_ranks("--max-restarts=2", folder / "train.py")
        assert result.returncode == 0, result.stderr.decode()
        assert result.stderr.decode().count("Resuming from") == (2 if name == "killed" else 0)
    whole = tmp_path / "whole" / "run"
    killed = tmp_path / "killed" / "run"
    assert same(weights(whole, 14), weights(killed, 14))
    assert figures(whole) == figures(killed)


def test_a_torn_checkpoint_is_skipped(uninterrupted, tmp_path):
    path = copy_of_task(uninterrupted, tmp_path)
    shutil.copytree(uninterrupted / "run", tmp_path / "run", symlinks=True)
    (tmp_path / "run" / "config.yaml").write_text(
        (uninterrupted / "run" / "config.yaml")
        .read_text()
        .replace(str(uninterrupted), str(tmp_path))
    )
    torn = tmp_path / "run" / "checkpoints" / f"step-{LAST_STEP}" / "translator.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    result = cbmi("train", path)
    assert result.returncode == 0
    assert f"step-{LAST_STEP}: translator.safetensors is damaged" in result.stderr.decode()
    assert same(weights(tmp_path / "run"), weights(uninterrupted / "run"))


def test_torn_checkpoints_never_stand_in_the_way(tmp_path):
    write_task(tmp_path, train=60, valid=8)
    path = write_run(
        tmp_path,
        stages=STAGES[:1],
        checkpoints={"every": 2, "keep_last": 1},
        validate={"every": 100},
    )
    assert cbmi("train", path).returncode == 0
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=True)
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "step-14" / "state.json").write_text("{")
    for _ in range(2):  # a refusal changes nothing: the next call refuses as well
        message = refused("train", path)
        assert "no checkpoint is intact (step-14: state.json is damaged)" in message
    assert (tmp_path / "run" / "log.jsonl").read_text() == (
        tmp_path / "copy" / "log.jsonl"
    ).read_text()
    shutil.rmtree(checkpoints / "step-14")
    shutil.copytree(tmp_path / "copy" / "checkpoints" / "step-14", checkpoints / "step-14")
    torn = checkpoints / "step-20"
    shutil.copytree(checkpoints / "step-14", torn)
    (torn / "state.json").write_text("{")
    result = cbmi("train", path, "stages.pretrain.steps=18")
    assert result.returncode == 0, result.stderr.decode()
    assert "set aside as damaged-step-20" in result.stderr.decode()
    assert (checkpoints / "step-18").exists()
    assert (tmp_path / "run" / "best" / "translator.safetensors").exists()
    shutil.copytree(torn := checkpoints / "damaged-step-20", checkpoints / "step-2")  # an old one
    result = cbmi("train", path, "stages.pretrain.steps=20")
    assert result.returncode == 0, result.stderr.decode()
    assert (checkpoints / "step-20").exists()
    assert torn.exists()


def test_a_full_disk_at_the_log_is_a_sentence(tmp_path):
    write_task(tmp_path, train=60, valid=8)
    path = write_run(tmp_path, stages=[STAGES[0] | {"steps": 1000}], validate={"every": 1000})
    assert cbmi("prepare", path).returncode == 0
    full = start(path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))
    message = full.communicate(timeout=60)[1].decode()
    assert full.returncode == 2, message
    assert "log.jsonl: cannot be written" in message


def wait_for_steps(run: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (run / "log.jsonl").exists() and len(
            (run / "log.jsonl").read_text().splitlines()
        ) >= count:
            return
        time.sleep(0.02)
    raise AssertionError("training did not get going")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_lets_the_step_finish_and_save(uninterrupted, tmp_path, number, status):
    path = copy_of_task(uninterrupted, tmp_path)
    process = start(path)
    wait_for_steps(tmp_path / "run", 3)
    process.send_signal(number)
    message = process.communicate(timeout=60)[1].decode()
    assert process.returncode == status, message
    steps = [int(folder.name[5:]) for folder in (tmp_path / "run" / "checkpoints").glob("step-*")]
    assert max(steps) == figures(tmp_path / "run")[-1]["step"] < LAST_STEP
    assert "Stopped at step" in message
    finish(path, uninterrupted, asked_to_stop=True)


def test_a_second_process_is_refused(tmp_path):
    write_task(tmp_path, train=60, valid=8)
    path = write_run(tmp_path, stages=[STAGES[0] | {"steps": 100000}])
    process = start(path)
    try:
        wait_for_steps(tmp_path / "run", 2)
        assert "is in use by another process" in refused("train", path)
        assert "is in use by another process" in refused("prepare", path)
    finally:
        process.kill()
        process.communicate()


def test_a_full_disk_leaves_the_last_checkpoint_good(uninterrupted, tmp_path):
    path = copy_of_task(uninterrupted, tmp_path)
    process = start(path)
    wait_for_steps(tmp_path / "run", 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    full = start(path, preexec_fn=small_files)
    message = full.communicate(timeout=60)[1].decode()
    assert full.returncode == 2, message
    assert "cannot be written" in message.splitlines()[-1]
    assert "Traceback" not in message
    finish(path, uninterrupted, asked_to_stop=True)
