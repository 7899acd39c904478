"""What a user can get wrong: one sentence, status 2, nothing half-written."""

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

from cbmi.files import sha256


@pytest.fixture
def task(tmp_path):
    write_task(tmp_path, train=40, valid=5)
    return tmp_path


def left_behind(task):
    return [*(task / "run").rglob("*"), *task.glob("run")]


def test_a_missing_file(task):
    (task / "valid.tgt").unlink()
    assert "valid.tgt: there is no such file" in refused("train", write_run(task))
    assert not (task / "run").exists()


def test_unequal_numbers_of_lines(task):
    with open(task / "train.tgt", "a") as file:
        file.write("ba\nda\n")
    message = refused("train", write_run(task))
    assert "train.src has 40 lines but" in message
    assert "train.tgt has 42" in message
    assert left_behind(task) == []


def test_unequal_validation_files_leave_nothing_either(task):
    with open(task / "valid.tgt", "a") as file:
        file.write("ba\n")
    assert "has 5 lines but" in refused("train", write_run(task))
    assert left_behind(task) == []
    write_task(task, train=40, valid=5)
    assert cbmi("train", write_run(task)).returncode == 0


def test_a_bad_test_set_is_seen_before_training(task):
    with open(task / "test.tgt", "a") as file:
        file.write("ba\n")
    files = f"data.test={{x: [{task / 'test.src'}, {task / 'test.tgt'}]}}"
    assert "has 5 lines but" in refused("train", write_run(task), files)
    assert left_behind(task) == []


def test_invalid_utf8(task):
    lines = (task / "train.src").read_bytes().splitlines(keepends=True)
    (task / "train.src").write_bytes(b"".join([*lines[:16], b"ba \xe9\n", *lines[17:]]))
    assert "train.src, line 17: not valid UTF-8" in refused("train", write_run(task))
    assert left_behind(task) == []


@pytest.mark.parametrize("content", ["", "\n\n \n"])
def test_an_empty_corpus(task, content):
    for side in ("src", "tgt"):
        (task / f"train.{side}").write_text(content)
    assert "no pair with text on both sides" in refused("train", write_run(task))
    assert left_behind(task) == []


def test_empty_lines_are_dropped_and_counted(task):
    for side, line in (("src", "ba da\n\n"), ("tgt", "\nba da\n")):
        with open(task / f"train.{side}", "a") as file:
            file.write(line)
    result = cbmi("train", write_run(task))
    assert result.returncode == 0
    assert "40 pairs" in result.stderr.decode()
    assert "2 with an empty side" in result.stderr.decode()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer.peak_lt=1", "optimizer: unknown key 'peak_lt' (did you mean 'peak_lr'?)"),
        ("batch.tokens=many", "batch.tokens"),
        ("model.dropout=1.5", "model.dropout"),
        ("stages.0.objective=cmbi", "unknown objective 'cmbi' (did you mean 'cbmi'?)"),
        ("stages.adapt.objective.scale_tokn=1", "unknown key 'scale_tokn' (did you mean 'scale_token'?)"),
        ("stages.adapt.objective.scale_token=-1", "scale_token"),
        ("stages.adapt.language_model=off", "objective 'cbmi' needs a language model"),
        ("stages.pretrain.language_model=off", "'frozen' needs a language model that an earlier stage trained"),
        ("device=cuda:7", "device"),
        ("device=tpu", "device"),
        ("seed=100000000000000000000", "seed"),
        ("stages.0.steps=true", "stages.0.steps: input should be a valid integer, not True"),
        ("model.dropout=false", "model.dropout: input should be a valid number, not False"),
        ("data.vocabulary.shared=yes", "data.vocabulary.shared: input should be a valid boolean, not 'yes'"),
        ("data.train.0.x=1", "data.train.0 has no settings below it"),
        ("data.train=[a, b, c]", "data.train: should name two aligned files, source and target, or one .tsv"),
        ("log=fast", "log: should be a mapping of keys to values, not 'fast'"),
        ("stages.adpt.steps=3", "there is no item 'adpt' (did you mean 'adapt'?)"),
        ("initialize=nowhere", "nowhere: there is no such run directory"),
        ("data.vocabulary.size=20000", "data.vocabulary.size: 20000 is larger than this corpus allows"),
        ("data.max_length=2", "no usable pair is left"),
        ('data.test={"../../evil": [a, b]}', "data.test.../../evil: '../../evil' is no name"),
        ("model.preset=[tiny]", "unknown preset '['tiny']'"),
        ("seed=0x_", "seed: input should be a valid integer, not '0x_'"),
        ("stages.pretrain.language_model=off stages.adapt.language_model=null", "no earlier stage has trained"),
        ("data.vocabulary.size=99999999999", "data.vocabulary.size"),
        ("seed=!!int x", "'seed=!!int x': a value here is not of the kind that it looks like"),
        ("seed=2024-02-30", "seed: input should be a valid integer"),
    ],
)
def test_bad_settings(task, override, expected):
    assert expected in refused("train", write_run(task), *(override.split() if "null" in override else [override]))
    assert left_behind(task) == []


def test_a_run_directory_of_another_configuration(task):
    path = write_run(task)
    assert cbmi("train", path).returncode == 0
    message = refused("train", path, "batch.tokens=150", "model.dropout=0.2")
    assert "batch.tokens: 200, now 150" in message
    assert "model.dropout: 0.1, now 0.2" in message
    assert "choose another output=" in message
    assert cbmi("train", path, "log.every=3").returncode == 0


def test_the_users_own_files_are_never_touched(task):
    """An output folder that holds a `data` of the user's own is no run directory, whatever else goes wrong."""
    (task / "data").mkdir()
    (task / "data" / "precious").write_text("mine")
    for overrides in ([], ["data.vocabulary.size=20000"]):
        message = refused("train", write_run(task, output=str(task)), *overrides)
        assert "is no run directory: choose another output=" in message
    assert (task / "data" / "precious").read_text() == "mine"


def test_a_run_can_be_moved(task):
    path = write_run(task)
    assert cbmi("train", path).returncode == 0
    (task / "run").rename(task / "moved")
    result = cbmi("train", path, f"output={task}/./moved")
    assert result.returncode == 0, result.stderr.decode()
    assert "Going on from" in result.stderr.decode()


def test_changed_corpus_files_are_noticed(task):
    path = write_run(task)
    assert cbmi("prepare", path).returncode == 0
    with open(task / "valid.src", "a") as source, open(task / "valid.tgt", "a") as target:
        source.write("ba\n")
        target.write("ba\n")
    known = (task / "run" / "config.yaml").read_text()
    assert "valid.src has changed since" in refused("train", path, "stages.adapt.steps=9")
    assert (task / "run" / "config.yaml").read_text() == known


def test_a_corpus_in_another_order_is_noticed(task):
    path = write_run(task)
    assert cbmi("prepare", path).returncode == 0
    lines = (task / "train.tgt").read_text().splitlines(keepends=True)
    (task / "train.tgt").write_text("".join(reversed(lines)))
    assert "train.tgt has changed since" in refused("train", path)


def test_a_test_set_that_is_added_later_is_read_before_training(task):
    path = write_run(task)
    assert cbmi("train", path).returncode == 0
    (task / "short.tgt").write_text("ba\n")
    override = f"data.test={{late: [{task / 'test.src'}, {task / 'short.tgt'}]}}"
    assert "short.tgt has 1" in refused("train", path, "stages.adapt.steps=12", override)
    assert not (task / "run" / "checkpoints" / "step-20").exists()
    assert cbmi("train", path).returncode == 0  # the run is as it was


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("beam", [0, 2])
@pytest.mark.parametrize("peak", [1.0e30, 1.0e38])
def test_weights_that_are_no_numbers_end_the_run(task, peak, beam, every):
    """Also where the loss before the last update still was one; and they are never saved."""
    settings = {"optimizer": {"peak_lr": peak, "warmup": 0}, "validate": {"every": every, "beam": beam}}
    message = refused("train", write_run(task, **settings), "stages.pretrain.steps=4")
    assert "loss or weights are not numbers at step" in message
    assert not (task / "run" / "best").exists()


def test_a_language_model_that_is_no_numbers_ends_the_run(task):
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
    assert "loss or weights are not numbers" in refused("train", write_run(task, "on.yaml", **settings))


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
    """Also when the run has begun, and the stage that wants it is added later."""
    plain = [{"name": "ce", "steps": 2}]
    assert cbmi("train", write_run(task, stages=plain)).returncode == 0
    frozen = [{"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 2}]
    settings = {"initialize": str(task / "run"), "output": str(task / "second")}
    assert "has trained a language model" in refused("train", write_run(task, stages=frozen, **settings))
    assert cbmi("train", write_run(task, stages=plain, **settings)).returncode == 0
    assert "has trained a language model" in refused("train", write_run(task, stages=plain + frozen, **settings))


def test_a_foreign_folder_is_left_alone(task):
    (task / "other").mkdir()
    (task / "other" / "config.yaml").write_text("hello: 1\n")
    message = refused("train", write_run(task, output=str(task / "other")))
    assert "is no run directory: choose another output=" in message
    assert (task / "other" / "config.yaml").read_text() == "hello: 1\n"


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
    assert "none of auto, cpu, cuda" in refused("translate", task / "run", "--device", "tpu", input=b"")


def test_a_mistake_in_the_data_settings_can_be_put_right(task):
    path = write_run(task)
    refused("train", path, "data.vocabulary.size=20000")
    assert cbmi("prepare", path).returncode == 0
    assert (task / "run" / "data" / "train" / "meta.json").exists()


def test_commands_without_their_run(task):
    nothing = task / "nothing"
    for command in (
        ["translate", nothing],
        ["score", nothing, "--source", "a", "--target", "b"],
        ["average", nothing, "--last", "1"],
    ):
        assert "nothing: there is no such run directory" in refused(*command)
    assert "this is not a run directory" in refused("translate", task)
    assert cbmi("prepare", write_run(task)).returncode == 0
    assert "this run has no checkpoint yet" in refused("translate", task / "run", input=b"")


def test_score_and_evaluate_name_what_is_wrong(task):
    assert cbmi("train", write_run(task)).returncode == 0
    run = task / "run"
    with open(task / "test.tgt", "a") as file:
        file.write("ba\n")
    message = refused("score", run, "--source", task / "test.src", "--target", task / "test.tgt", "-o", task / "out")
    assert "has 5 lines but" in message
    assert not (task / "out").exists()
    assert "test.src" in refused("evaluate", "--reference", task / "test.tgt", task / "test.src")
    unknown = ["--multi-bleu", "--tokenize", "klingon"]
    message = refused("evaluate", "--reference", task / "test.tgt", task / "test.tgt", *unknown)
    assert "Moses knows no language 'klingon'" in message
    assert "standard input, line 2: not valid UTF-8" in refused("translate", run, input=b"ba\n\xff\n")
    plain = [{"name": "ce", "steps": 2}]
    path = write_run(task, "plain.yaml", stages=plain, output=str(task / "plain"))
    assert cbmi("train", path).returncode == 0
    files = ["--source", task / "test.src", "--target", task / "test.src"]
    assert "has no language model" in refused("score", task / "plain", *files)
    assert "both.tsv has both sides; leave out" in refused("score", run, "--source", task / "both.tsv", *files[2:])


def test_a_folder_that_cannot_be_written(task):
    (task / "file").write_text("")
    assert "this is a file; a run needs a folder" in refused("train", write_run(task, output=str(task / "file")))
    assert "cannot be written" in refused("train", write_run(task, output=str(task / "file" / "run")))


def test_wrong_usage_is_status_two():
    assert cbmi("train").returncode == 2
    assert cbmi("nonsense").returncode == 2
    assert cbmi("--help").returncode == 0


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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full is needed")
def test_a_full_disk_behind_standard_output(small_run):
    program = f"{sys.executable} -m cbmi"
    for command in (f"{program} translate {small_run}/run {small_run}/test.src", f"{program} objectives"):
        result = subprocess.run(f"{command} > /dev/full", shell=True, stderr=subprocess.PIPE, env=environment())
        assert result.returncode == 2
        assert result.stderr.decode().strip().splitlines()[-1].startswith("cbmi: standard output: cannot be written")
        assert b"Traceback" not in result.stderr


def test_output_is_utf8_wherever():
    program = [sys.executable, "-m", "cbmi", "objectives"]
    result = subprocess.run(program, env=environment() | {"PYTHONIOENCODING": "latin-1"}, capture_output=True)
    assert result.returncode == 0
    assert "≤" in result.stdout.decode()


def test_pipes_are_read_once(small_run, tmp_path):
    """A shell's <(command) can be read only once."""
    text = (small_run / "test.src").read_bytes()
    assert cbmi("translate", small_run / "run", _pipe(text)).stdout.count(b"\n") == text.count(b"\n")
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
    assert "has no language model" in refused("score", tmp_path / "run", *files)
    with open(tmp_path / "run" / "best" / "translator.safetensors", "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\1\2\3")
    assert "translator.safetensors is damaged" in refused("translate", tmp_path / "run", small_run / "test.src")


def test_a_best_checkpoint_that_was_removed_has_a_successor(task):
    changes = {"validate": {"every": 2, "beam": 0}, "checkpoints": {"keep_last": 9, "keep_best": 9}}
    path = write_run(task, optimizer={"peak_lr": 0.3, "warmup": 8}, **changes)  # so fast that it unlearns
    assert cbmi("train", path).returncode == 0
    best, run = (task / "run" / "best").resolve(), task / "run"
    states = {
        f: json.loads((f / "state.json").read_text()) for f in (run / "checkpoints").glob("step-*") if f != best
    }
    scores = {f: s["score"] for f, s in states.items() if s["stage"] == 1 and s["score"] is not None}
    assert best.name != "step-16"
    shutil.rmtree(best)
    assert "its checkpoint is missing; cbmi train chooses another" in refused("translate", run, input=b"")
    other = write_run(task, "other.yaml", initialize=str(run), output=str(task / "other"))
    assert "its best checkpoint is missing" in refused("train", other)
    result = cbmi("train", path)
    assert f"{best.name}, the best, is missing" in result.stderr.decode()
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


def test_other_languages_and_short_steps_are_remarked_on(task):
    assert cbmi("train", write_run(task)).returncode == 0
    data = run_values(task)["data"]
    other = write_run(task, "other.yaml", initialize=str(task / "run"), output=str(task / "other"), data=data)
    result = cbmi("train", other, "data.target=zz", "batch.tokens=5")
    assert "translates xx→yy, this run xx→zz" in result.stderr.decode()
    assert "pairs are longer than that, and each is a step of its own" in result.stderr.decode()


def test_empty_pairs_do_not_weigh(small_run, tmp_path):
    lines = [(small_run / f"test.{side}").read_text().splitlines() for side in ("src", "tgt")]
    weights = []
    for more in ([], ["", "  "]):
        for side, text in zip(("src", "tgt"), lines, strict=True):
            (tmp_path / side).write_text("".join(line + "\n" for line in [*text, *more]))
        scored = cbmi("score", small_run / "run", "--source", tmp_path / "src", "--target", tmp_path / "tgt")
        weights.append([json.loads(line)["sentence_weight"] for line in scored.stdout.splitlines()])
    assert weights[1] == [*weights[0], 1.0, 1.0]


def test_damaged_files_of_a_run_are_named(small_run, tmp_path):
    shutil.copytree(small_run / "run", tmp_path / "run", symlinks=True)
    (tmp_path / "run" / "data" / "train" / "meta.json").write_text("{}")
    weights = ["weights", tmp_path / "run", "--objective", "freq-exp"]
    assert "meta.json: the prepared data are damaged" in refused(*weights)
    (tmp_path / "run" / "config.yaml").write_bytes(b"\xff")
    assert "config.yaml: cannot read the run's settings: not valid UTF-8" in refused("translate", tmp_path / "run")


def test_too_little_memory_is_said_in_a_sentence(task, monkeypatch):
    def fail(self):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("cbmi.training.trainer.Trainer.train", fail)
    assert "not enough memory on cpu: halve batch.tokens" in refused("train", write_run(task))


def test_evaluation_is_seen_to_be_there_before_training(task, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert "needs the extra 'eval'" in refused("train", write_run(task))
    assert left_behind(task) == []


def test_lines_too_long_for_the_vocabulary_are_counted(task):
    for side in ("src", "tgt"):
        with open(task / f"train.{side}", "a") as file:
            file.write("ba " * 2000 + "\n")
    result = cbmi("prepare", write_run(task))
    assert "learnt without 2 lines of over 4,192 bytes" in result.stderr.decode()
    for side in ("src", "tgt"):
        (task / f"train.{side}").write_text("ba " * 2000 + "\n")
    assert "every line is over 4,192 bytes" in refused("prepare", write_run(task, output=str(task / "other")))
