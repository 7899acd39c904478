"""A process that is killed: at every operation on a file in turn, and at random moments.

Whatever was complete before stays, nothing half-written has a real name, and the same command ends
with the same result. `make test-faults` tries all places; `make test` a few of them.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lengths import AT_LENGTH
from safetensors.torch import load_file
from tasks import environment, write_run, write_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if AT_LENGTH else 600)]

STAGES = [
    {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 4},
    {"name": "adapt", "objective": "cbmi", "language_model": "cached", "steps": 4},
]

# Counts the operations that change what is on the disk, and dies before the given one.
KILLER = """
import os, sys, signal
limit = int(os.environ["CBMI_KILL_AT"])
count = 0
def counted(function):
    def call(*arguments, **keywords):
        global count
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)
    return call
for name in ("replace", "rename", "unlink", "mkdir", "rmdir", "fsync", "link", "symlink"):
    setattr(os, name, counted(getattr(os, name)))
sys.argv = ["cbmi", *sys.argv[1:]]
from cbmi.cli import main
try:
    main()
finally:
    with open(os.environ["CBMI_COUNT"], "w") as file:
        file.write(str(count))
"""


def run_until(place: int, count_file: Path, *command: str | Path) -> int:
    """The status of a command that is killed before operation `place`; 0: at none."""
    values = environment() | {"CBMI_KILL_AT": str(place), "CBMI_COUNT": str(count_file)}
    arguments = [sys.executable, "-c", KILLER, *map(str, command)]
    result = subprocess.run(arguments, env=values, capture_output=True, timeout=300)
    return result.returncode


def weights(run: Path) -> dict:
    return load_file(run / "best" / "translator.safetensors")


def same(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(
        bool((first[name] == second[name]).all()) for name in first
    )


def litter(folder: Path) -> list[Path]:
    found = []
    for path in folder.rglob(".*"):
        if path.suffix in (".partial", ".removed"):
            found.append(path)
    return found


def places(total: int, few: int) -> list[int]:
    if AT_LENGTH:
        return list(range(1, total + 1))
    return sorted(random.Random(1).sample(range(1, total + 1), few))


def test_training_killed_at_every_operation(tmp_path, held):
    """It ends with the same weights, and leaves no litter."""
    write_task(tmp_path, train=40, valid=4)
    settings = {"stages": STAGES, "validate": {"every": 4, "beam": 1}}
    whole = write_run(tmp_path, "whole.yaml", output=str(tmp_path / "whole"), **settings)
    count_file = tmp_path / "count"
    assert run_until(0, count_file, "train", whole) == 0
    total = int(count_file.read_text())
    assert total > 60
    expected = weights(tmp_path / "whole")
    path = write_run(tmp_path, "killed.yaml", output=str(tmp_path / "killed"), **settings)
    for place in places(total, 5):
        shutil.rmtree(tmp_path / "killed", ignore_errors=True)
        assert run_until(place, count_file, "train", path) == -signal.SIGKILL, place
        assert run_until(0, count_file, "train", path) == 0, place
        assert same(weights(tmp_path / "killed"), expected), place
        assert litter(tmp_path / "killed") == [], place
        held()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    write_task(folder, train=60, valid=6)
    path = write_run(folder, stages=STAGES, validate={"every": 4, "beam": 1})
    assert run_until(0, folder / "count", "train", path) == 0
    return folder


def test_filtering_killed_at_every_operation(trained, tmp_path, held):
    """The sides of what is kept are always of one filtering: all old, all new, or incomplete."""
    files = ("--source", trained / "train.src", "--target", trained / "train.tgt")
    command = ("filter", trained / "run", *files, "-o", tmp_path / "out", "--device", "cpu")
    count_file = tmp_path / "count"
    assert run_until(0, count_file, *command, "--keep", "0.5") == 0
    names = ("kept.xx", "kept.yy", "kept.scores", "dropped.xx", "dropped.yy")
    old = {name: (tmp_path / f"out.{name}").read_text() for name in names}
    assert run_until(0, count_file, *command, "--keep", "0.9") == 0
    total = int(count_file.read_text())
    new = {name: (tmp_path / f"out.{name}").read_text() for name in names}
    assert old["kept.xx"] != new["kept.xx"]
    for place in places(total, 6):
        for name in names:
            (tmp_path / f"out.{name}").write_text(old[name])
        assert run_until(place, count_file, *command, "--keep", "0.9") == -signal.SIGKILL
        found = {}
        for name in names:
            file = tmp_path / f"out.{name}"
            if file.exists():
                found[name] = file.read_text()
        is_old = all(old[name] == text for name, text in found.items())
        is_new = all(new[name] == text for name, text in found.items())
        assert is_old or is_new, place
        assert run_until(0, count_file, *command, "--keep", "0.9") == 0
        assert {name: (tmp_path / f"out.{name}").read_text() for name in names} == new
        assert litter(tmp_path) == []
        held()


@pytest.mark.parametrize("name", ["translate", "score", "weights", "average"])
def test_a_command_with_output_killed_at_every_operation(trained, tmp_path, name, held):
    """Its output is there whole or not at all."""
    output = tmp_path / "out"
    run = trained / "run"
    command = {
        "translate": ("translate", run, trained / "test.src", "-o", output),
        "score": (
            *("score", run, "--source", trained / "test.src", "--target", trained / "test.tgt"),
            *("-o", output),
        ),
        "weights": ("weights", run, "--objective", "cbmi", "-o", output),
        "average": ("average", run, "--last", "1"),
    }[name]
    if name == "average":
        output = run / "checkpoints" / "average-last-1" / "translator.safetensors"
    count_file = tmp_path / "count"
    assert run_until(0, count_file, *command) == 0
    total = int(count_file.read_text())
    expected = output.read_bytes()
    for place in places(total, min(3, total)):
        if name == "average":
            shutil.rmtree(output.parent, ignore_errors=True)
        else:
            output.unlink(missing_ok=True)
        assert run_until(place, count_file, *command) == -signal.SIGKILL, place
        assert not output.exists() or output.read_bytes() == expected, place
        assert run_until(0, count_file, *command) == 0
        assert output.read_bytes() == expected
        assert litter(tmp_path) == []
        assert litter(run) == []
        held()


def test_training_killed_at_random_moments(tmp_path, held):
    write_task(tmp_path, train=40, valid=4)
    settings = {"stages": STAGES, "validate": {"every": 2, "beam": 0}}
    whole = write_run(tmp_path, "whole.yaml", output=str(tmp_path / "whole"), **settings)
    path = write_run(tmp_path, "killed.yaml", output=str(tmp_path / "killed"), **settings)
    command = [sys.executable, "-m", "cbmi", "train"]
    begun = time.monotonic()
    assert subprocess.run([*command, str(whole)], env=environment()).returncode == 0
    seconds = time.monotonic() - begun
    draw = random.Random(2)
    for _ in range(30 if AT_LENGTH else 3):
        process = subprocess.Popen([*command, str(path)], env=environment())
        time.sleep(draw.uniform(0.3, 1.0) * seconds)
        process.kill()
        process.wait()
        held()
    assert subprocess.run([*command, str(path)], env=environment()).returncode == 0
    assert same(weights(tmp_path / "killed"), weights(tmp_path / "whole"))
