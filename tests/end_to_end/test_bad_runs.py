"""What a user can get wrong with runs that have been trained, and with files and pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tasks import cbmi, environment, refused, run_values, write_run, write_task

from cbmi.digests import sha256

pytestmark = pytest.mark.slow


@pytest.fixture
def task(tmp_path):
    write_task(tmp_path, train=40, valid=5)
    return tmp_path


def test_empty_lines_are_dropped_and_counted(task):
    for side, line in (("src", "ba da\n\n"), ("tgt", "\nba da\n")):
        with open(task / f"train.{side}", "a") as file:
            file.write(line)
    result = cbmi("train", write_run(task))
    assert result.returncode == 0
    assert "40 pairs" in result.stderr.decode()
    assert "2 with an empty side" in result.stderr.decode()


def test_a_run_directory_of_another_configuration(task):
    path = write_run(task)
    assert cbmi("train", path).returncode == 0
    message = refused("train", path, "batch.tokens=150", "ema=0.9")
    assert "batch.tokens: 200, now 150" in message
    assert "ema: 0.0, now 0.9" in message
    assert f"initialize={task / 'run'}" in message
    assert cbmi("train", path, "log.every=3").returncode == 0


def test_a_run_can_be_moved(task):
    path = write_run(task)
    assert cbmi("train", path).returncode == 0
    (task / "run").rename(task / "moved")
    result = cbmi("train", path, f"output={task}/./moved")
    assert result.returncode == 0, result.stderr.decode()
    assert "Resuming from" in result.stderr.decode()


def test_a_test_set_that_is_added_later_is_read_before_training(task):
    path = write_run(task)
    assert cbmi("train", path).returncode == 0
    (task / "short.tgt").write_text("ba\n")
    override = f"data.test={{late: [{task / 'test.src'}, {task / 'short.tgt'}]}}"
    assert "short.tgt has 1" in refused("train", path, "stages.adapt.steps=12", override)
    assert not (task / "run" / "checkpoints" / "step-20").exists()
    assert cbmi("train", path).returncode == 0  # the run is as it was


def test_a_language_model_that_is_nan_ends_the_run(task):
    assert cbmi("train", write_run(task)).returncode == 0
    best = (task / "run" / "best").resolve()
    tensors = load_file(best / "language_model.safetensors")
    next(iter(tensors.values()))[0, 0] = torch.nan
    save_file(tensors, best / "language_model.safetensors")
    manifest = json.loads((best / "manifest.json").read_text())
    manifest["language_model.safetensors"] = sha256(best / "language_model.safetensors")
    (best / "manifest.json").write_text(json.dumps(manifest))
    stages = [{"name": "on", "language_model": "train", "steps": 2}]
    settings = {"stages": stages, "initialize": str(task / "run"), "output": str(task / "on")}
    assert "loss or weights are NaN or infinite" in refused(
        "train", write_run(task, "on.yaml", **settings)
    )


def test_a_damaged_start_is_refused(task):
    assert cbmi("train", write_run(task)).returncode == 0
    stages = [{"name": "on", "steps": 2}]
    settings = {"stages": stages, "initialize": str(task / "run"), "output": str(task / "on")}
    path = write_run(task, "on.yaml", **settings)
    weights = task / "run" / "best" / "translator.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-50] + bytes(50))
    assert "translator.safetensors is damaged" in refused("train", path)
    weights.unlink()
    assert "translator.safetensors is missing" in refused("train", path)
    assert not (task / "on").exists()


def test_initialize_is_needed_only_once(task):
    assert cbmi("train", write_run(task)).returncode == 0
    stages = [{"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 4}]
    settings = {"stages": stages, "initialize": str(task / "run"), "output": str(task / "second")}
    path = write_run(task, "second.yaml", **settings)
    assert cbmi("train", path).returncode == 0
    (task / "run").rename(task / "gone")
    assert cbmi("train", path, "stages.adapt.steps=6").returncode == 0


def test_a_frozen_language_model_must_come_from_somewhere(task):
    """Also when the run has begun, and the stage that needs it is added later."""
    plain = [{"name": "ce", "steps": 2}]
    assert cbmi("train", write_run(task, stages=plain)).returncode == 0
    frozen = [{"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 2}]
    settings = {"initialize": str(task / "run"), "output": str(task / "second")}
    assert "a frozen language model is needed" in refused(
        "train", write_run(task, stages=frozen, **settings)
    )
    assert cbmi("train", write_run(task, stages=plain, **settings)).returncode == 0
    assert "a frozen language model is needed" in refused(
        "train", write_run(task, stages=plain + frozen, **settings)
    )


def test_output_files(task):
    assert cbmi("train", write_run(task)).returncode == 0
    arguments = ["translate", task / "run", task / "test.src", "-o"]
    assert "this is a folder" in refused(*arguments, task)
    (task / "real").write_text("old")
    (task / "link").symlink_to(task / "real")
    assert cbmi(*arguments, task / "link").returncode == 0
    assert (task / "link").is_symlink()
    assert len((task / "real").read_text().splitlines()) == 5
    assert "leave out '.gz'" in refused(*arguments, task / "out.gz")
    assert cbmi(*arguments, "/dev/null").returncode == 0
    assert not os.path.isfile("/dev/null")
    assert "is not one of auto, cpu, cuda" in refused(
        "translate", task / "run", "--device", "tpu", input=b""
    )


def test_score_and_evaluate_name_what_is_wrong(task):
    assert cbmi("train", write_run(task)).returncode == 0
    run = task / "run"
    with open(task / "test.tgt", "a") as file:
        file.write("ba\n")
    message = refused(
        "score",
        run,
        "--source",
        task / "test.src",
        "--target",
        task / "test.tgt",
        "-o",
        task / "out",
    )
    assert "has 5 lines but" in message
    assert not (task / "out").exists()
    assert "test.src" in refused("evaluate", "--reference", task / "test.tgt", task / "test.src")
    unknown = ["--multi-bleu", "--tokenize", "klingon"]
    message = refused("evaluate", "--reference", task / "test.tgt", task / "test.tgt", *unknown)
    assert "the Moses tokenizer does not support the language 'klingon'" in message
    assert "standard input, line 2: not valid UTF-8" in refused(
        "translate", run, input=b"ba\n\xff\n"
    )
    files = ["--source", task / "test.src", "--target", task / "test.src"]
    assert "both.tsv has both sides; leave out" in refused(
        "score", run, "--source", task / "both.tsv", *files[2:]
    )


def test_a_reader_that_goes_away_is_no_error(small_run):
    sides = ["--source", small_run / "train.src", "--target", small_run / "train.tgt"]
    for arguments in (
        ["translate", small_run / "run", small_run / "train.src"],
        ["score", small_run / "run", *sides],
    ):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "cbmi", *map(str, arguments)]
        result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment())
        assert b"Traceback" not in result.stderr
        assert b"cannot be written" not in result.stderr


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="a device that is always full is needed"
)
def test_a_full_disk_behind_standard_output(small_run):
    program = f"{sys.executable} -m cbmi"
    for command in (
        f"{program} translate {small_run}/run {small_run}/test.src",
        f"{program} objectives",
    ):
        result = subprocess.run(
            f"{command} > /dev/full", shell=True, stderr=subprocess.PIPE, env=environment()
        )
        assert result.returncode == 2
        assert (
            result.stderr.decode()
            .strip()
            .splitlines()[-1]
            .startswith("cbmi: standard output: cannot be written")
        )
        assert b"Traceback" not in result.stderr


def test_output_is_utf8_wherever():
    program = [sys.executable, "-m", "cbmi", "objectives"]
    result = subprocess.run(
        program, env=environment() | {"PYTHONIOENCODING": "latin-1"}, capture_output=True
    )
    assert result.returncode == 0
    assert "≤" in result.stdout.decode()


def test_pipes_are_read_once(small_run, tmp_path):
    """A shell's <(command) can be read only once."""
    text = (small_run / "test.src").read_bytes()
    assert cbmi("translate", small_run / "run", _pipe(text)).stdout.count(b"\n") == text.count(
        b"\n"
    )
    pipes = ["--source", _pipe(text), "--target", _pipe((small_run / "test.tgt").read_bytes())]
    assert len(cbmi("score", small_run / "run", *pipes).stdout.splitlines()) == text.count(b"\n")
    pipes = ["--source", _pipe(text), "--target", _pipe(text)]
    assert cbmi("inspect", small_run / "run", *pipes, "-o", tmp_path / "page.html").returncode == 0


def _pipe(content: bytes) -> str:
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return f"/dev/fd/{read}"


def test_translating_needs_neither_language_model_nor_optimizer(small_run, tmp_path):
    shutil.copytree(small_run / "run", tmp_path / "run", symlinks=True)
    for name in ("language_model", "optimizer"):
        (tmp_path / "run" / "best" / f"{name}.safetensors").unlink()
    assert cbmi("translate", tmp_path / "run", small_run / "test.src").returncode == 0
    files = ["--source", small_run / "test.src", "--target", small_run / "test.tgt"]
    assert cbmi("score", tmp_path / "run", *files).returncode == 0
    with open(tmp_path / "run" / "best" / "translator.safetensors", "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\1\2\3")
    assert "translator.safetensors is damaged" in refused(
        "translate", tmp_path / "run", small_run / "test.src"
    )


def test_a_best_checkpoint_that_was_removed_has_a_successor(task):
    changes = {"validate": {"every": 2, "beam": 0}, "checkpoints": {"keep_last": 9, "keep_best": 9}}
    fast = {"peak_lr": 0.3, "warmup": 8}  # so fast that it unlearns
    path = write_run(task, optimizer=fast, **changes)
    assert cbmi("train", path).returncode == 0
    run = task / "run"
    best = (run / "best").resolve()
    scores = {}
    for folder in (run / "checkpoints").glob("step-*"):
        state = json.loads((folder / "state.json").read_text())
        if folder != best and state["stage"] == 1 and state["score"] is not None:
            scores[folder] = state["score"]
    assert best.name != "step-16"
    shutil.rmtree(best)
    assert "its checkpoint is missing; cbmi train chooses another" in refused(
        "translate", run, input=b""
    )
    other = write_run(task, "other.yaml", initialize=str(run), output=str(task / "other"))
    assert "its best checkpoint is missing" in refused("train", other)
    result = cbmi("train", path)
    assert f"{best.name}, the best checkpoint, is missing" in result.stderr.decode()
    assert (run / "best").resolve() == max(scores, key=scores.get)
    assert cbmi("translate", run, input=b"ba\n").returncode == 0


def test_a_corpus_may_be_moved_but_not_changed(task):
    path = write_run(task)
    assert cbmi("train", path).returncode == 0
    (task / "moved").mkdir()
    for side in ("src", "tgt"):
        (task / f"train.{side}").rename(task / "moved" / f"train.{side}")
    moved = f"data.train=[{task}/moved/train.src, {task}/moved/train.tgt]"
    longer = "stages.adapt.steps=10"
    assert cbmi("train", path, moved, longer).returncode == 0
    assert "data.train" in refused("train", path, f"data.train={task}/moved/train.src", longer)
    with open(task / "moved" / "train.src", "a") as file:
        file.write("ba\n")
    assert "train.src has changed since" in refused("train", path, moved, longer)


def test_newer_versions_may_keep_more_about_the_data(task):
    """A checkpoint that names fewer files of the data goes with them, not one that names more."""
    path = write_run(task)
    assert cbmi("train", path).returncode == 0
    data = task / "run" / "data" / "train"
    before = (data / "meta.json").read_text()
    (data / "more").write_text("more")
    meta = json.loads(before)
    meta["digests"]["more"] = sha256(data / "more")[: len(meta["digests"]["lines"])]
    (data / "meta.json").write_text(json.dumps(meta))
    assert cbmi("train", path, "stages.adapt.steps=10").returncode == 0
    (data / "meta.json").write_text(before)
    message = refused("train", path, "stages.adapt.steps=12")
    assert "more: these are not the data that" in message


def test_other_languages_and_short_steps_are_remarked_on(task):
    assert cbmi("train", write_run(task)).returncode == 0
    data = run_values(task)["data"]
    other = write_run(
        task, "other.yaml", initialize=str(task / "run"), output=str(task / "other"), data=data
    )
    result = cbmi("train", other, "data.target=zz", "batch.tokens=5")
    assert "translates xx→yy, this run xx→zz" in result.stderr.decode()
    assert "pairs are longer than that, and each is a step of its own" in result.stderr.decode()


def test_empty_pairs_have_no_influence(small_run, tmp_path):
    lines = [(small_run / f"test.{side}").read_text().splitlines() for side in ("src", "tgt")]
    weights = []
    for more in ([], ["", "  "]):
        for side, text in zip(("src", "tgt"), lines, strict=True):
            (tmp_path / side).write_text("".join(line + "\n" for line in [*text, *more]))
        scored = cbmi(
            "score", small_run / "run", "--source", tmp_path / "src", "--target", tmp_path / "tgt"
        )
        weights.append([json.loads(line)["sentence_weight"] for line in scored.stdout.splitlines()])
    assert weights[1] == [*weights[0], 1.0, 1.0]


def test_damaged_files_of_a_run_are_named(small_run, tmp_path):
    shutil.copytree(small_run / "run", tmp_path / "run", symlinks=True)
    (tmp_path / "run" / "data" / "train" / "meta.json").write_text("{}")
    weights = ["weights", tmp_path / "run", "--objective", "freq-exp"]
    assert "meta.json: the prepared data are damaged" in refused(*weights)
    (tmp_path / "run" / "config.yaml").write_bytes(b"\xff")
    assert "config.yaml: cannot read the run's settings: not valid UTF-8" in refused(
        "translate", tmp_path / "run"
    )
