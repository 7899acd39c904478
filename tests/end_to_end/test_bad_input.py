"""What a user can get wrong: one sentence, status 2, nothing half-written."""

from __future__ import annotations

import sys

import pytest
import torch
from tasks import cbmi, refused, write_run, write_task


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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer.peak_lt=1", "optimizer: unknown key 'peak_lt' (did you mean 'peak_lr'?)"),
        ("batch.tokens=many", "batch.tokens"),
        ("model.dropout=1.5", "model.dropout"),
        ("stages.0.objective=cmbi", "unknown objective 'cmbi' (did you mean 'cbmi'?)"),
        (
            "stages.adapt.objective.scale_tokn=1",
            "unknown key 'scale_tokn' (did you mean 'scale_token'?)",
        ),
        ("stages.adapt.objective.scale_token=-1", "scale_token"),
        ("stages.adapt.language_model=off", "objective 'cbmi' needs a language model"),
        (
            "stages.pretrain.language_model=off",
            "'frozen' needs a language model that an earlier stage trained",
        ),
        ("device=cuda:7", "device"),
        ("device=tpu", "device"),
        ("seed=100000000000000000000", "seed"),
        ("stages.0.steps=true", "stages.pretrain.steps: input should be a valid integer, not True"),
        ("model.dropout=false", "model.dropout: input should be a valid number, not False"),
        (
            "data.vocabulary.shared=yes",
            "data.vocabulary.shared: input should be a valid boolean, not 'yes'",
        ),
        ("data.train.0.x=1", "data.train.0 has no settings below it"),
        (
            "data.train=[a, b, c]",
            "should name two aligned files, source and target, or one that holds both sides",
        ),
        ("log=fast", "log: should be a mapping of keys to values, not 'fast'"),
        ("stages.adpt.steps=3", "there is no item 'adpt' (did you mean 'adapt'?)"),
        ("initialize=nowhere", "nowhere: there is no such run directory"),
        (
            "data.vocabulary.size=20000",
            "data.vocabulary.size: 20000 is larger than this corpus allows",
        ),
        ("data.max_length=2", "no usable pair is left"),
        ('data.test={"../../evil": [a, b]}', "data.test.../../evil: '../../evil' is not a name"),
        ("model.preset=[tiny]", "unknown preset '['tiny']'"),
        ("seed=0x_", "seed: input should be a valid integer, not '0x_'"),
        (
            "stages.pretrain.language_model=off stages.adapt.language_model=null",
            "no earlier stage has trained",
        ),
        ("data.vocabulary.size=99999999999", "data.vocabulary.size"),
        ("seed=!!int x", "'seed=!!int x': a value here is not of the kind that it looks like"),
        ("seed=2024-02-30", "seed: input should be a valid integer"),
    ],
)
def test_bad_settings(task, override, expected):
    overrides = override.split() if "null" in override else [override]
    assert expected in refused("train", write_run(task), *overrides)
    assert left_behind(task) == []


def test_the_users_own_files_are_never_touched(task):
    """An output folder with a `data` of the user's own is not a run directory, come what may."""
    (task / "data").mkdir()
    (task / "data" / "precious").write_text("mine")
    for overrides in ([], ["data.vocabulary.size=20000"]):
        message = refused("train", write_run(task, output=str(task)), *overrides)
        assert "is not a run directory: choose another output=" in message
    assert (task / "data" / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--temperature 0.5", "--temperature: this is for sampling; say --sample as well"),
        ("--top-k 0", "--top-k: this is for sampling; say --sample as well"),
        ("--seed 1", "--seed: this is for sampling; say --sample as well"),
        ("--sample --temperature 0", "temperature is 0.0, but should be above 0"),
        ("--sample --temperature nan", "temperature is nan"),
        ("--sample --temperature 1e300", "but should be above 0 and at most 1e+06"),
        ("--sample --top-k -1", "top_k is -1, but should be at least 0"),
        ("--sample --seed -1", "seed is -1, but should be between 0"),
        ("--sample --beam 2", "--beam: sampling has no beam"),
    ],
)
def test_bad_options_of_sampling(task, options, expected):
    output = task / "out.txt"
    assert expected in refused("translate", task / "run", "-o", output, *options.split())
    assert not output.exists()


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


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("beam", [0, 2])
@pytest.mark.parametrize("peak", [1.0e30, 1.0e38])
def test_weights_that_are_nan_or_infinite_end_the_run(task, peak, beam, every):
    """Also where the loss before the last update was still finite; and they are never saved."""
    settings = {
        "optimizer": {"peak_lr": peak, "warmup": 0},
        "validate": {"every": every, "beam": beam},
    }
    message = refused("train", write_run(task, **settings), "stages.pretrain.steps=4")
    assert "loss or weights are NaN or infinite at step" in message
    assert not (task / "run" / "best").exists()


def test_a_foreign_folder_is_left_alone(task):
    (task / "other").mkdir()
    (task / "other" / "config.yaml").write_text("hello: 1\n")
    message = refused("train", write_run(task, output=str(task / "other")))
    assert "is not a run directory: choose another output=" in message
    assert (task / "other" / "config.yaml").read_text() == "hello: 1\n"


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


def test_a_folder_that_cannot_be_written(task):
    (task / "file").write_text("")
    assert "this is a file; a run needs a folder" in refused(
        "train", write_run(task, output=str(task / "file"))
    )
    assert "cannot be written" in refused(
        "train", write_run(task, output=str(task / "file" / "run"))
    )


def test_wrong_usage_is_status_two():
    assert cbmi("train").returncode == 2
    assert cbmi("nonsense").returncode == 2
    assert cbmi("--help").returncode == 0


def test_too_little_memory_is_said_in_a_sentence(task, monkeypatch):
    def fail(self):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("cbmi.training.trainer.Trainer.train", fail)
    assert "not enough memory on cpu: set memory.recompute_layers=true" in refused(
        "train", write_run(task)
    )


def test_a_missing_extra_is_noticed_before_training(task, monkeypatch):
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
    assert "every line is over 4,192 bytes" in refused(
        "prepare", write_run(task, output=str(task / "other"))
    )
