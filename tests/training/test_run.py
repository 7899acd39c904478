"""The run directory: what may change when a run is resumed, and whom it lets in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tasks import run_values

from cbmi.changes import Change
from cbmi.config import RunSettings
from cbmi.errors import UserError
from cbmi.schema import check
from cbmi.training.checkpoint import TrainingState, save_checkpoint
from cbmi.training.revision import FREE_TO_CHANGE, FROM_NOW_ON
from cbmi.training.run import RunDirectory

STAGES = [
    {"name": "pretrain", "language_model": "train", "steps": 8},
    {"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 8},
]
MORE = {"name": "more", "objective": "cbmi", "language_model": "joint", "steps": 5}


def settings(folder: Path, **changes: Any) -> RunSettings:
    return check(RunSettings, run_values(folder, **{"stages": STAGES, **changes}), "")


def with_data(folder: Path, **changes: Any) -> RunSettings:
    return settings(folder, data=run_values(folder)["data"] | changes)


@pytest.fixture
def run(tmp_path):
    """A run directory that holds settings only: not even its data have been prepared."""
    run = RunDirectory(tmp_path / "run")
    run.adopt(settings(tmp_path))
    return run


def prepare(run: RunDirectory) -> None:
    for folder in (run.vocab, run.data / "train", run.data / "valid"):
        folder.mkdir(parents=True)
        (folder / "content").write_text("prepared")


def begin(run: RunDirectory) -> None:
    """As a run that stands in its second stage."""
    prepare(run)
    state = TrainingState(step=12, stage=1, stage_step=4)
    weights = {"translator": {"weight": torch.zeros(1)}}
    save_checkpoint(run.checkpoints / "step-12", weights, state)


@pytest.fixture
def begun(run):
    begin(run)
    return run


def refuse(run: RunDirectory, config: RunSettings, expected: str = "") -> None:
    """It is refused, and the run keeps its settings."""
    before = run.config_file.read_bytes()
    with pytest.raises(UserError) as error:
        run.adopt(config)
    assert expected in str(error.value)
    assert run.config_file.read_bytes() == before
    assert not run.history.exists()


def test_the_settings_are_kept_with_all_defaults(run, tmp_path):
    kept = run.config()
    assert kept.optimizer == settings(tmp_path).optimizer
    assert kept.stages[1].objective["scale_token"] == 0.1
    assert kept.stages[1].objective["name"] == "cbmi"


def test_the_same_settings_are_no_change(begun, tmp_path):
    assert begun.changes(settings(tmp_path)) == []
    begun.adopt(settings(tmp_path))


def test_a_default_spelt_out_is_no_change(begun, tmp_path):
    spelt = STAGES[1] | {"objective": {"name": "cbmi", "scale_token": 0.1}}
    assert begun.changes(settings(tmp_path, stages=[STAGES[0], spelt])) == []
    other = STAGES[1] | {"objective": {"name": "cbmi", "scale_token": 0.2}}
    changes = begun.changes(settings(tmp_path, stages=[STAGES[0], other]))
    assert changes == [Change("stages.adapt.objective.scale_token", 0.1, 0.2)]


@pytest.mark.parametrize(
    ("key", "value", "change"),
    [
        ("seed", 2, Change("seed", 1, 2)),
        ("batch", {"tokens": 150}, Change("batch.tokens", 200, 150)),
        ("ema", 0.9, Change("ema", 0.0, 0.9)),
        ("initialize", "other", Change("initialize", None, "other")),
        ("precision", "bf16", Change("precision", "auto", "bf16")),
    ],
)
def test_what_was_computed_with_may_not_change(begun, tmp_path, key, value, change):
    config = settings(tmp_path, **{key: value})
    assert begun.changes(config) == [change]
    refuse(begun, config, str(change))


def test_what_counts_from_the_next_step_on_may_change(begun, tmp_path, capsys):
    values = run_values(tmp_path)
    changed = {
        "optimizer": values["optimizer"] | {"peak_lr": 1e-4, "warmup": 2},
        "validate": {"every": 3, "beam": 0, "patience": 7},
        "label_smoothing": 0.2,
        "r_drop": 1.0,
        "model": values["model"]
        | {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4},
    }
    assert {key.partition(".")[0] for key in FROM_NOW_ON} == set(changed)
    begun.adopt(settings(tmp_path, **changed))
    assert begun.config().label_smoothing == 0.2
    said = capsys.readouterr().err
    assert said.startswith("From step 13 on: ")
    (line,) = begun.history.read_text().splitlines()
    record = json.loads(line)
    assert record["step"] == 12
    found = {change["path"]: (change["old"], change["new"]) for change in record["changes"]}
    assert found["optimizer.peak_lr"] == (values["optimizer"]["peak_lr"], 1e-4)
    assert found["model.dropout"] == (0.1, 0.2)
    for path in found:
        assert f"{path}: " in said
    begun.adopt(settings(tmp_path, **changed))  # no change any more
    assert len(begun.history.read_text().splitlines()) == 1
    assert capsys.readouterr().err == ""


def test_a_change_that_was_noted_before_a_kill_is_noted_once(begun, tmp_path):
    config = begun.config_file.read_text()
    for _ in range(2):
        begun.config_file.write_text(config)  # as if it had been killed before this was written
        begun.adopt(settings(tmp_path, label_smoothing=0.2))
    assert len(begun.history.read_text().splitlines()) == 1


def test_what_was_not_computed_with_may_change(begun, tmp_path):
    data = run_values(tmp_path)["data"] | {"test": {"one": ["a", "b"]}}
    free = {
        "output": "elsewhere",
        "log": {"every": 7},
        "checkpoints": {"every": 2, "keep_last": 1},
        "device": "cpu",
        "compile": "off",
        "memory": {"head_tokens": 64},
        "parallel": "fsdp",
        "rank_timeout": 120.0,
    }
    assert {*free, "data.test"} == set(FREE_TO_CHANGE)
    config = settings(tmp_path, data=data, **free)
    assert begun.changes(config) == []
    begun.adopt(config)
    assert begun.config().log.every == 7
    assert begun.config().data.test == {"one": ("a", "b")}


def with_stages(folder: Path, *stages: dict[str, Any]) -> RunSettings:
    return settings(folder, stages=list(stages))


@pytest.mark.parametrize("steps", [4, 5, 20])
def test_the_current_stage_may_get_longer_and_shorter(begun, tmp_path, steps):
    begun.adopt(with_stages(tmp_path, STAGES[0], STAGES[1] | {"steps": steps}))
    assert begun.config().stages[1].steps == steps


def test_the_current_stage_does_not_end_before_the_steps_that_are_done(begun, tmp_path):
    config = with_stages(tmp_path, STAGES[0], STAGES[1] | {"steps": 3})
    refuse(begun, config, "stages.adapt.steps: 8, now 3")
    refuse(begun, config, "the current one may end at its step 4 or later")


@pytest.mark.parametrize(
    ("number", "change", "expected"),
    [
        (0, {"steps": 20}, "stages.pretrain.steps: 8, now 20"),
        (1, {"name": "other"}, "stages.1.name: adapt, now other"),
        (1, {"language_model": "joint"}, "stages.adapt.language_model: frozen, now joint"),
        (1, {"objective": {"name": "cbmi", "scale_token": 0.2}}, "scale_token: 0.1, now 0.2"),
    ],
)
def test_a_stage_that_has_begun_stays_what_it_is(begun, tmp_path, number, change, expected):
    stages = [dict(stage) for stage in STAGES]
    stages[number] |= change
    refuse(begun, with_stages(tmp_path, *stages), expected)


def test_stages_that_have_not_begun_may_be_anything(begun, tmp_path, capsys):
    begun.adopt(with_stages(tmp_path, *STAGES, MORE))
    assert "stages: [pretrain, adapt], now [pretrain, adapt, more]" in capsys.readouterr().err
    other = {"name": "focal", "objective": "focal", "steps": 9}
    longer = STAGES[1] | {"steps": 20}
    begun.adopt(with_stages(tmp_path, STAGES[0], longer, other))
    assert begun.config().stages[2].objective["name"] == "focal"
    begun.adopt(with_stages(tmp_path, *STAGES))
    assert len(begun.config().stages) == 2
    assert len(begun.history.read_text().splitlines()) == 3


def test_stages_that_have_begun_may_not_be_removed(begun, tmp_path):
    config = with_stages(tmp_path, STAGES[0])
    refuse(begun, config, "stages: [pretrain, adapt], now [pretrain]")


@pytest.mark.parametrize(
    ("change", "can_start"),
    [
        ({"seed": 2}, True),
        ({"model": {"preset": "tiny"}}, False),
    ],
)
def test_how_to_start_from_its_weights_is_said_where_one_can(begun, tmp_path, change, can_start):
    with pytest.raises(UserError) as error:
        begun.adopt(settings(tmp_path, **change))
    assert (f"initialize={begun.path}" in str(error.value)) is can_start


def test_without_a_checkpoint_that_can_be_read_nothing_may_change(begun, tmp_path):
    (begun.checkpoints / "step-12" / "state.json").write_text("{}")
    refuse(begun, settings(tmp_path, label_smoothing=0.2), "label_smoothing: 0.1, now 0.2")
    begun.adopt(settings(tmp_path))


def test_corpus_files_may_be_moved_once_they_are_prepared(begun, tmp_path):
    """Whether they have the same content is checked when they are read."""
    moved = with_data(tmp_path, train=["moved.src", "moved.tgt"], valid=["v.src", "v.tgt"])
    assert begun.changes(moved) == []


def test_a_corpus_may_not_get_a_weight(run, tmp_path):
    """Its epochs would have other batches."""
    run.adopt(with_data(tmp_path, train="both.tsv"))
    begin(run)
    weighted = with_data(tmp_path, train=[{"files": "both.tsv", "weight": 0.25}])
    refuse(run, weighted, "data.train.0: both.tsv, now ")


def test_a_corpus_may_not_become_another_kind_of_file(begun, tmp_path):
    (change,) = begun.changes(with_data(tmp_path, train=["both.tsv"]))
    assert change.path == "data.train"
    assert change.new == ["both.tsv"]
    (change,) = begun.changes(with_data(tmp_path, valid=None))
    assert change.path == "data.valid"
    assert change.new is None


def test_files_that_are_not_prepared_may_not_be_moved(run, tmp_path):
    """Nothing is known of their content."""
    moved = with_data(tmp_path, train=["moved.src", "moved.tgt"])
    paths = [change.path for change in run.changes(moved)]
    assert paths == ["data.train.0", "data.train.1"]


def test_before_the_first_checkpoint_only_the_data_are_bound(run, tmp_path):
    prepare(run)
    training = {"seed": 2, "batch": {"tokens": 99}, "stages": [MORE], "precision": "bf16"}
    assert run.changes(settings(tmp_path, **training)) == []
    vocabulary = with_data(tmp_path, vocabulary={"size": 400})
    assert run.changes(vocabulary) == [Change("data.vocabulary.size", 350, 400)]
    refuse(run, vocabulary)
    start = settings(tmp_path, initialize="other")
    assert run.changes(start) == [Change("initialize", None, "other")]


def test_a_run_without_data_becomes_another(run, tmp_path):
    """Nothing was made with the old settings, so nothing is lost."""
    run.vocab.mkdir()
    run.adopt(with_data(tmp_path, max_length=99))
    assert run.config().data.max_length == 99
    assert not run.vocab.exists()


@pytest.mark.parametrize("name", ["vocab", "data", "checkpoints"])
def test_a_folder_of_someone_elses_is_refused(tmp_path, name):
    own = tmp_path / "run" / name
    own.mkdir(parents=True)
    (own / "precious").write_text("mine")
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(UserError):
        run.adopt(settings(tmp_path))
    assert (own / "precious").read_text() == "mine"
    assert not run.config_file.exists()


def test_settings_of_something_else_are_refused(tmp_path):
    run = RunDirectory(tmp_path)
    run.config_file.write_text("hello: 1\n")
    refuse(run, settings(tmp_path))


def test_how_far_a_run_has_got(run):
    assert not run.prepared
    (run.data / "train").mkdir(parents=True)
    assert run.prepared
    assert not run.begun
    (run.checkpoints / "step-1").mkdir(parents=True)
    assert run.begun


def test_what_is_no_run_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name in ("file", "empty", "nothing"):
        with pytest.raises(UserError, match=name):
            RunDirectory(tmp_path / name).config()


def test_clearing_removes_what_preparation_made_and_nothing_else(begun):
    (begun.data / "mine").write_text("mine")
    begun.log.write_text("{}\n")
    begun.clear()
    left = sorted(path.name for path in begun.path.iterdir())
    assert left == ["checkpoints", "data", "log.jsonl"]
    assert [path.name for path in begun.data.iterdir()] == ["mine"]


def test_clearing_leaves_no_empty_folder(run):
    prepare(run)
    run.clear()
    assert list(run.path.iterdir()) == []


def test_a_lock_keeps_others_out_until_it_ends(run):
    with run.lock(), pytest.raises(UserError, match=run.path.name), run.lock():
        pass
    with run.lock():
        pass
    assert run.config_file.exists()


def test_a_lock_on_nothing_leaves_nothing(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with run.lock():
        assert run.path.is_dir()
    assert not run.path.exists()


def test_a_lock_is_released_and_nothing_left_when_the_block_fails(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    assert not run.path.exists()


def test_a_file_cannot_be_a_run_directory(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UserError), RunDirectory(tmp_path / "run").lock():
        pass
    assert (tmp_path / "run").read_text() == "mine"


@pytest.fixture
def copied(begun, tmp_path):
    (begun.checkpoints / ".step-2.partial").mkdir()
    begun.log.write_text('{"step": 1}\n')
    begun.teachers.mkdir()
    begun.cache.mkdir()
    begun.best.symlink_to("checkpoints/step-12")
    copy = RunDirectory(tmp_path / "copy")
    copy.copy(begun)
    return copy


def test_a_copy_has_what_a_run_needs_to_be_resumed(begun, copied, tmp_path):
    names = sorted(path.name for path in copied.path.iterdir())
    assert names == ["best", "checkpoints", "config.yaml", "data", "log.jsonl", "teachers", "vocab"]
    assert [path.name for path in copied.checkpoints.iterdir()] == ["step-12"]
    assert copied.config() == begun.config()
    assert copied.changes(settings(tmp_path, output=str(copied.path))) == []


def test_the_best_checkpoint_of_a_copy_is_its_own(copied):
    assert copied.best.resolve() == (copied.checkpoints / "step-12").resolve()


def test_a_copy_shares_only_what_is_never_changed_in_place(begun, copied):
    weights = "step-12/translator.safetensors"
    assert os.path.samefile(begun.checkpoints / weights, copied.checkpoints / weights)
    for name in ("config.yaml", "log.jsonl"):
        assert not os.path.samefile(begun.path / name, copied.path / name)
    with open(copied.log, "a") as file:
        file.write('{"step": 2}\n')
    assert begun.log.read_text() == '{"step": 1}\n'


def test_the_settings_on_disk_are_plain_yaml(run):
    values = yaml.safe_load(run.config_file.read_text())
    assert values["validate"]["every"] == 4
    assert [stage["name"] for stage in values["stages"]] == ["pretrain", "adapt"]
