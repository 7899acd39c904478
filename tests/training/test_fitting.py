"""Defaults by the size of the corpus; what is given always counts."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml
from tasks import cbmi, refused, run_values, without_dropout, write_run, write_task

from cbmi.config import PRESETS, RunSettings
from cbmi.schema import check
from cbmi.training.checks import complete_settings
from cbmi.training.fitting import TABLE, choices_for, fit_to_corpus, sizes_for

STAGES = [{"name": "train", "steps": 2000}]


def settings(folder: Path, pairs: int, **changes: Any) -> RunSettings:
    """A run that says only what it must; lines of 40 bytes."""
    for side in ("src", "tgt"):
        (folder / f"train.{side}").write_text(("x" * 39 + "\n") * pairs)
    data = {
        "source": "xx",
        "target": "yy",
        "train": [str(folder / "train.src"), str(folder / "train.tgt")],
    }
    values = {"output": str(folder / "run"), "data": data, "stages": STAGES}
    for key, value in changes.items():
        if key == "data":
            data.update(value)
        else:
            values[key] = value
    return check(RunSettings, values, "run")


@pytest.mark.parametrize(("pairs", "row"), [(100, 0), (20_000, 0), (20_001, 1), (60_001, 2)])
def test_sizes_follow_the_number_of_pairs(tmp_path, pairs, row):
    sizes = TABLE[row]
    config = complete_settings(settings(tmp_path, pairs))
    assert config.model.preset == sizes.preset
    assert config.model.width == PRESETS[sizes.preset]["width"]
    assert config.model.encoder_layers == PRESETS[sizes.preset]["encoder_layers"]
    assert config.model.dropout == sizes.dropout
    assert config.data.vocabulary.size == sizes.pieces
    assert config.batch.tokens == sizes.tokens
    epoch = max(1, pairs * 40 // 4 // sizes.tokens)
    assert config.optimizer.warmup == pytest.approx(min(4000, 4 * epoch, 500), rel=0.05)
    assert config.validate_.every == pytest.approx(max(50, epoch), rel=0.05)


def test_weights_are_averaged_and_the_learning_rate_falls(tmp_path):
    config = complete_settings(settings(tmp_path, 100))
    assert (config.ema, config.optimizer.schedule) == (0.999, "linear")
    # A stage that ends within its warm-up, or that patience may end, would not reach its decay.
    stages = [{"name": "train", "steps": 21}, {"name": "adapt", "steps": 20}]
    short = {"stages": stages, "optimizer": {"warmup": 20}}
    for changes in (short, {"validate": {"patience": 3}}):
        config = complete_settings(settings(tmp_path, 100, **changes))
        assert config.optimizer.schedule == "inverse-sqrt"
    # Who says how long the decay takes wants one.
    decay = {"optimizer": {"warmup": 20, "decay": 0.5}, "stages": stages}
    assert complete_settings(settings(tmp_path, 100, **decay)).optimizer.schedule == "linear"
    stages[1]["restart_optimizer"] = False  # then it has no warm-up
    assert complete_settings(settings(tmp_path, 100, **short)).optimizer.schedule == "linear"


def test_no_corpus_is_too_large():
    assert sizes_for(10**10) == TABLE[-1]


GIVEN = {
    "model": {"preset": "tiny", "dropout": 0.25},
    "data": {"vocabulary": {"size": 999}},
    "batch": {"tokens": 1234},
    "optimizer": {"warmup": 77, "schedule": "cosine"},
    "ema": 0.5,
    "validate": {"every": 88},
}


@pytest.mark.parametrize("key", GIVEN)
def test_what_is_given_counts(tmp_path, key):
    config = complete_settings(settings(tmp_path, 100, **{key: GIVEN[key]}))
    plain = config.plain()[key]
    line = choices_for(settings(tmp_path, 100, **{key: GIVEN[key]}))
    if key == "ema":
        assert plain == GIVEN[key]
        assert " ema " not in line
        return
    for name, value in GIVEN[key].items():
        found = plain[name]
        assert (found["size"] == value["size"]) if name == "vocabulary" else found == value
    assert f" {key}.{next(iter(GIVEN[key]))} " not in line


def test_everything_given_needs_no_choice(tmp_path):
    config = settings(tmp_path, 100, **GIVEN)
    assert choices_for(config) is None
    assert fit_to_corpus(config).config == config


def test_parts_of_the_model_may_be_given(tmp_path):
    config = complete_settings(settings(tmp_path, 100, model={"encoder_layers": 9}))
    assert (config.model.preset, config.model.encoder_layers) == ("small", 9)
    assert config.model.width == 256
    config = complete_settings(settings(tmp_path, 100, model="base"))
    assert (config.model.encoder_layers, config.model.dropout) == (6, 0.3)
    config = complete_settings(settings(tmp_path, 100, model="big"))
    assert config.model.dropout == PRESETS["big"]["dropout"]
    config = complete_settings(settings(tmp_path, 70_000, model="tiny"))
    assert config.model.dropout == 0.1


def test_corpora_are_counted_together(tmp_path):
    text = ("x" * 39 + "\n") * 15_000
    with gzip.open(tmp_path / "more.src.gz", "wt") as file:
        file.write(text)
    (tmp_path / "more.tsv").write_text("a b\tc d\n" * 10_000)
    more = [str(tmp_path / "more.src.gz"), str(tmp_path / "train.tgt")]
    config = settings(tmp_path, 15_000)
    files = list(config.data.train_files())
    config = settings(tmp_path, 15_000, data={"train": [{"files": files}, {"files": more}]})
    assert "Chosen for 30,000 pairs" in choices_for(config)
    config = settings(tmp_path, 15_000, data={"train": str(tmp_path / "more.tsv")})
    assert "Chosen for 10,000 pairs" in choices_for(config)


def test_missing_files_are_reported_later(tmp_path):
    config = settings(tmp_path, 10, data={"train": [str(tmp_path / "no"), str(tmp_path / "ne")]})
    assert choices_for(config) is None
    assert complete_settings(config).model.preset == "auto"


@pytest.mark.slow
def test_choices_that_contradict_what_is_given_are_refused(tmp_path):
    """Before anything is written: a run of such settings could not be read again."""
    write_task(tmp_path)
    first = write_run(tmp_path, "first.yaml", model=without_dropout())
    assert cbmi("train", first).returncode == 0
    values = run_values(tmp_path, output=str(tmp_path / "second"), r_drop=1.0)
    values["initialize"] = str(tmp_path / "run")
    del values["model"], values["data"]["vocabulary"]
    second = tmp_path / "second.yaml"
    second.write_text(yaml.safe_dump(values))
    for options in ([], ["--dry-run"]):
        message = refused("train", second, *options)
        assert "r_drop: without dropout in the model, both passes would be the same" in message
    assert not (tmp_path / "second").exists()
    assert cbmi("train", second, "r_drop=0.0").returncode == 0


def test_choices_are_said_and_kept(tmp_path):
    """A run file with nothing but files and stages: a vocabulary as large as the text allows."""
    write_task(tmp_path)
    values = {
        "output": str(tmp_path / "run"),
        "data": {
            "source": "xx",
            "target": "yy",
            "train": [str(tmp_path / "train.src"), str(tmp_path / "train.tgt")],
        },
        "stages": [{"name": "train", "steps": 2, "language_model": "train"}],
    }
    path = tmp_path / "auto.yaml"
    path.write_text(yaml.safe_dump(values))
    assert b"up to 8,000 pieces" in cbmi("train", path, "--dry-run").stdout
    result = cbmi("train", path)
    assert result.returncode == 0, result.stderr.decode()
    assert b"Chosen for 200 pairs: model small, model.dropout 0.3, " in result.stderr
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["model"]["preset"] == "small"
    assert kept["batch"]["tokens"] == 2048
    # What fits no model is a sentence, also where its other sizes are not in the run file.
    assert "model: width 44 should be divisible" in refused("train", path, "model.width=44")
    # The same file goes on with what was chosen, though it would now be chosen otherwise.
    warmup = kept["optimizer"]["warmup"]
    result = cbmi("train", path, "stages.0.steps=4")
    assert result.returncode == 0, result.stderr.decode()
    assert b"Chosen" not in result.stderr
    assert b"From step 3 on: stages.train.steps: 2, now 4." in result.stderr
    assert b"Kept as the run has it: optimizer.warmup 0" in result.stderr
    longer = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert longer["optimizer"]["warmup"] == warmup
    # From scratch, it is chosen again.
    result = cbmi("train", path, "stages.0.steps=4", "--restart")
    assert result.returncode == 0, result.stderr.decode()
    assert b"Chosen for 200 pairs" in result.stderr
    again = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert again["optimizer"]["warmup"] > warmup
    # A run that starts from it has its model.
    other = {**values, "output": str(tmp_path / "other"), "initialize": str(tmp_path / "run")}
    path.write_text(yaml.safe_dump(other))
    result = cbmi("train", path)
    assert result.returncode == 0, result.stderr.decode()
    assert b"model small" not in result.stderr
    assert (
        yaml.safe_load((tmp_path / "other" / "config.yaml").read_text())["model"] == kept["model"]
    )
