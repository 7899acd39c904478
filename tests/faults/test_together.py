"""Several processes at once: one lock, one output, ranks that differ."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from lengths import AT_LENGTH
from tasks import cbmi, environment, refused, two_ranks, write_run, write_task

from cbmi.data import prepare as prepare_module
from cbmi.files import atomic_file, atomic_files, atomic_folder, write_together

# Takes the lock of a run again and again, and notes when it is not alone; now and then it is
# refused, and its folder removed, as for a run that could not be prepared.
WORKER = """
import os, random, sys, time
from pathlib import Path
from cbmi.errors import UserError
from cbmi.training.run import RunDirectory
folder, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
inside = folder.parent / "inside"
held = 0
for _ in range(rounds):
    try:
        with RunDirectory(folder).lock():
            held += 1
            try:
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                print("two inside")
            time.sleep(draw.uniform(0, 0.001))
            os.unlink(inside)
    except UserError as error:
        assert "in use by another process" in str(error), error
print("held", held)
"""


@pytest.mark.slow
def test_never_two_in_a_locked_run(tmp_path):
    rounds = 4000 if AT_LENGTH else 400
    workers = []
    for seed in range(4):
        command = [sys.executable, "-c", WORKER, str(tmp_path / "run"), str(rounds), str(seed)]
        workers.append(
            subprocess.Popen(
                command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    held = 0
    for worker in workers:
        said, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors.decode()
        assert b"two inside" not in said
        held += int(said.split()[-1])
    assert held > 100  # the others were refused, which is right


def test_two_writers_of_one_file_both_succeed(tmp_path):
    """Each has a name of its own; the last whole file wins."""
    path = tmp_path / "out"
    with atomic_file(path) as first:
        first.write_text("first")
        with atomic_file(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_many_threads_write_one_file(tmp_path):
    path = tmp_path / "out"

    def write(number: int) -> None:
        with atomic_file(path) as temporary:
            temporary.write_text(str(number) * 10_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(64)))
    text = path.read_text()
    assert len(set(text[:1])) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_many_threads_write_one_folder(tmp_path):
    """As two calls of `cbmi average` do."""
    path = tmp_path / "out"

    def write(number: int) -> None:
        with atomic_folder(path) as temporary:
            for name in ("a", "b"):
                (temporary / name).write_text(str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert (path / "a").read_text() == (path / "b").read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_the_litter_of_dead_processes_is_removed_and_that_of_living_ones_is_not(tmp_path):
    path = tmp_path / "out"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with atomic_file(path) as mine:
        mine.write_text("x")
        machine = mine.name.split(".")[2].split("-")[0]
        unique = "0" * 12
        of_dead = tmp_path / f".out.{machine}-{dead.pid}-{unique}.partial"
        of_dead.write_text("left")
        kept = [
            tmp_path / f".out.{machine}-{os.getppid()}-{unique}.partial",  # in work
            tmp_path / f".out.{'0' * 8}-{dead.pid}-{unique}.partial",  # on another machine
            tmp_path / ".out.impartial",  # somebody's own
            tmp_path / ".out.keep.removed",
        ]
        for file in kept:
            file.write_text("x")
    write_together({path: "y"})
    assert not of_dead.exists()
    assert all(file.exists() for file in kept)


def test_an_interruption_between_the_renames_puts_the_old_files_back(tmp_path, monkeypatch):
    paths = [tmp_path / "a", tmp_path / "b"]
    write_together(dict.fromkeys(paths, "old"))
    replace = os.replace

    def interrupted(source, target):
        if Path(target) == paths[1] and "partial" in str(source):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_together(dict.fromkeys(paths, "new"))
    assert [path.read_text() for path in paths] == ["old", "old"]
    assert sorted(tmp_path.iterdir()) == paths


def test_files_that_belong_together_come_together(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text("old")
    with suppress(RuntimeError), atomic_files(paths) as temporaries:
        temporaries[0].write_text("new")
        raise RuntimeError
    assert [path.read_text() for path in paths] == ["old", "old"]
    write_together(dict.fromkeys(paths, "new"))
    assert [path.read_text() for path in paths] == ["new", "new"]
    assert sorted(tmp_path.iterdir()) == paths


def test_a_name_of_255_bytes_can_be_written(tmp_path):
    path = tmp_path / ("ä" * 127)
    write_together({path: "x"})
    assert path.read_text() == "x"


# Starts with other settings on the second rank.
DIFFERS = """
import os, sys
change = sys.argv[2] if os.environ["RANK"] == "1" else "seed=1"
sys.argv = ["cbmi", "train", sys.argv[1], change]
from cbmi.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("optimizer.peak_lr=1e-3", "rank 1 differs from rank 0 in optimizer.peak_lr (0.001, not"),
        ("stages.0.objective=focal", "rank 1 differs from rank 0 in stages.pretrain.objective"),
    ],
)
def test_ranks_that_differ_do_not_train(tmp_path, change, expected):
    write_task(tmp_path, train=40, valid=4)
    path = write_run(tmp_path)
    script = tmp_path / "differs.py"
    script.write_text(DIFFERS)
    result = two_ranks(script, path, change)
    said = [line for line in result.stderr.decode().splitlines() if line.startswith("cbmi: ")]
    assert result.returncode != 0
    assert len(said) == 1, result.stderr.decode()
    assert expected in said[0]
    assert not (tmp_path / "run" / "log.jsonl").exists()


# Stops for good after its second step on the second rank, as a process does that hangs.
HANGS = """
import os, signal, sys
from cbmi.training import heartbeat
heartbeat.BEAT, heartbeat.REPORT_AFTER = 0.3, 2.0
from cbmi.training.stage import StageSession
step = StageSession.step
def counted(session):
    step(session)
    if os.environ["RANK"] == "1" and session.state.step == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
StageSession.step = counted
from cbmi.cli import main
from cbmi.config import RunSettings
from cbmi.training import train
train_ = train.join_world
train.join_world = lambda device, patience: train_(device, 6.0)
sys.argv = ["cbmi", "train", sys.argv[1]]
main()
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_rank_that_hangs_is_reported_and_ends_the_run(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    begun = time.monotonic()
    result = two_ranks(script, write_run(tmp_path))
    said = result.stderr.decode()
    assert result.returncode != 0
    assert "Rank 1 has not been heard from for 2 s" in said
    assert "cbmi: rank 1 has not been heard from for" in said
    assert time.monotonic() - begun < 90


@pytest.mark.slow
def test_a_closed_terminal_saves(tmp_path):
    """SIGHUP does as SIGTERM does."""
    write_task(tmp_path, train=40, valid=4)
    stages = [{"name": "ce", "steps": 100_000}]
    path = write_run(tmp_path, stages=stages, validate={"every": 100_000, "beam": 0})
    command = [sys.executable, "-m", "cbmi", "train", str(path)]
    process = subprocess.Popen(
        command,
        env=environment(),
        stderr=subprocess.PIPE,
        # Under nohup, which the tests may run under, the signal is ignored, and rightly so.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    log = tmp_path / "run" / "log.jsonl"
    while not log.exists() or log.stat().st_size < 1000:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0, said
    assert "the same command resumes it" in said
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_a_copied_run_whose_best_is_a_folder(tmp_path):
    """As `cp -rL` leaves it."""
    write_task(tmp_path, train=40, valid=4)
    stages = [{"name": "ce", "steps": 4}]
    assert cbmi("train", write_run(tmp_path, stages=stages)).returncode == 0
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=False)
    assert not (tmp_path / "copy" / "best").is_symlink()
    assert cbmi("translate", tmp_path / "copy", tmp_path / "test.src").returncode == 0
    longer = write_run(
        tmp_path, "c.yaml", output=str(tmp_path / "copy"), stages=[{"name": "ce", "steps": 8}]
    )
    result = cbmi("train", longer)
    assert result.returncode == 0, result.stderr.decode()
    assert (tmp_path / "copy" / "best").is_symlink()
    assert (tmp_path / "copy" / "best-copied" / "translator.safetensors").exists()


def test_a_corpus_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    write_task(tmp_path, train=40, valid=4)
    path = write_run(tmp_path)
    make = prepare_module._Encoder.add

    def add_and_change(encoder, chunk):
        with open(tmp_path / "train.src", "a") as file:
            file.write("more\n")
        return make(encoder, chunk)

    monkeypatch.setattr(prepare_module._Encoder, "add", add_and_change)
    message = refused("train", path)
    assert "train.src has changed while it was read" in message
    assert not (tmp_path / "run" / "data" / "train").exists()


@pytest.mark.parametrize("key", ["valid", "test"])
def test_an_empty_set_is_refused_before_training(tmp_path, key):
    write_task(tmp_path, train=40, valid=4)
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    files = [str(empty), str(empty)]
    where = "data.valid" if key == "valid" else "data.test.news"
    message = refused("train", write_run(tmp_path), f"{where}={files}")
    assert f"{where}: {empty} and {empty}: there is no text in them" in message


@pytest.mark.slow
def test_two_commands_with_one_output(tmp_path):
    """Both end with status 0, and the file is whole."""
    write_task(tmp_path, train=40, valid=4)
    command = [sys.executable, "-m", "cbmi", "train", str(write_run(tmp_path))]
    assert subprocess.run(command, env=environment(), capture_output=True).returncode == 0
    output = tmp_path / "out.txt"
    translate = [sys.executable, "-m", "cbmi", "translate", str(tmp_path / "run")]
    processes = []
    for name in ("test.src", "valid.src"):
        arguments = [*translate, str(tmp_path / name), "-o", str(output)]
        processes.append(subprocess.Popen(arguments, env=environment()))
    assert [process.wait(120) for process in processes] == [0, 0]
    assert len(output.read_text().splitlines()) == 4
    assert [path for path in Path(tmp_path).iterdir() if path.name.startswith(".out")] == []
