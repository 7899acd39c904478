"""Run files: what is understood, and what is refused with which sentence."""

from __future__ import annotations

import pytest
import yaml
from tasks import run_values

from cbmi.changes import changes_between
from cbmi.config import PRESETS, RunSettings, read_config
from cbmi.errors import UserError
from cbmi.schema import check
from cbmi.yaml_text import dump_yaml, parse_yaml


@pytest.fixture
def values(tmp_path):
    return run_values(tmp_path)


def message(values) -> str:
    with pytest.raises(UserError) as refusal:
        check(RunSettings, values, "run.yaml")
    return str(refusal.value)


def test_only_data_stages_and_output_are_needed():
    data = {"source": "en", "target": "de", "train": ["a.en", "a.de"]}
    config = check(
        RunSettings,
        {"output": "x", "data": data, "stages": [{"name": "a", "steps": 1}]},
        "",
    )
    assert config.optimizer.peak_lr == 7e-4
    assert config.optimizer.betas == (0.9, 0.98)
    assert config.optimizer.clip == 5.0
    assert config.label_smoothing == 0.1
    assert config.stages[0].objective == {"name": "ce"}
    assert "output: this key is missing" in message({})
    for key in ("data", "stages"):
        values = {"output": "x", "data": data}
        values["stages"] = [{"name": "a", "steps": 1}]
        del values[key]
        assert f"{key}: this key is missing" in message(values)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_can_be_overridden(values, name):
    config = check(RunSettings, values | {"model": {"preset": name, "dropout": 0.25}}, "")
    assert config.model.dropout == 0.25
    assert config.model.width == PRESETS[name]["width"]
    assert check(RunSettings, values | {"model": name}, "").model.width == PRESETS[name]["width"]


def test_the_papers_sizes():
    base = PRESETS["base"]
    assert base["width"] == 512
    assert base["feed_forward"] == 2048
    assert base["heads"] == 8
    assert base["encoder_layers"] == 6
    big = PRESETS["big"]
    assert big["width"] == 1024
    assert big["feed_forward"] == 4096
    assert big["heads"] == 16
    assert big["dropout"] == 0.3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sede": 1}, "unknown key 'sede' (did you mean 'seed'?)"),
        ({"validaet": {}}, "did you mean 'validate'"),
        (
            {"model": {"preset": "small", "dropot": 0.1}},
            "model: unknown key 'dropot' (did you mean 'dropout'?)",
        ),
        ({"model": "smal"}, "unknown preset 'smal' (did you mean 'small'?)"),
        (
            {"model": {"preset": "small", "dropout": 1.5}},
            "model.dropout: input should be less than 1, not 1.5",
        ),
        ({"model": {"preset": "small", "heads": 7}}, "width 256 should be divisible"),
        ({"batch": {"tokens": "many"}}, "batch.tokens: input should be a valid integer"),
        ({"batch": {"tokens": 0}}, "batch.tokens: input should be greater than 0, not 0"),
        (
            {"precision": "fp8"},
            "precision: input should be 'auto', 'fp32', 'bf16' or 'fp16', not 'fp8'",
        ),
        ({"stages": []}, "stages"),
        (
            {"stages": [{"name": "a", "steps": 1, "objective": 3}]},
            "stages.a.objective: should be an objective",
        ),
        (
            {"stages": [{"name": "a", "steps": 1}, {"name": "a", "steps": 1}]},
            "two stages are named 'a'",
        ),
        (
            {"stages": [{"name": "a", "steps": 1, "language_model": "frozen"}]},
            "'frozen' needs a language model",
        ),
        ({"optimizer": {"peak_lr": float("nan")}}, "optimizer.peak_lr"),
        ({"optimizer": 3, "model": "big"}, "optimizer: should be a mapping"),
        ({"batch": {"tokens": 10**20}}, "batch.tokens: input should be less than 2147483648"),
    ],
)
def test_mistakes_are_named(values, change, expected):
    assert expected in message(values | change)


def test_frozen_after_a_stage_that_trained_one_is_fine(values):
    assert check(RunSettings, values, "").stages[1].language_model == "frozen"


def test_yaml_reads_numbers_and_languages_as_people_write_them():
    text = "a: 7e-4\nb: 7.0e-4\nc: no\nd: on\ne: true\nf: 12\ng: off"
    assert parse_yaml(text, "x") == {
        "a": 7e-4,
        "b": 7e-4,
        "c": "no",
        "d": "on",
        "e": True,
        "f": 12,
        "g": "off",
    }
    text = "[-3, 0, +4, 1_000, 010, 12:30, 0x10]"
    assert parse_yaml(text, "x") == [-3, 0, 4, 1000, "010", "12:30", "0x10"]


def test_broken_yaml_is_named_by_line():
    with pytest.raises(UserError, match=r"x\.yaml, line 3"):
        parse_yaml("a: 1\nb: 2\na: 3", "x.yaml")
    with pytest.raises(UserError, match=r"x\.yaml, line 2"):
        parse_yaml("a: [1\nb: 2", "x.yaml")


def test_overrides(tmp_path, values):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values | {"model": "small"}))
    config = read_config(
        path,
        [
            "model.dropout=0.3",
            "stages.0.steps=11",
            "stages.adapt.objective.scale_token=0.2",
            "optimizer.peak_lr=5e-4",
            "data.vocabulary={size: 500, shared: false}",
            "stages.0.objective=ce",
        ],
    )
    assert config.model.dropout == 0.3
    assert config.stages[0].steps == 11
    assert config.stages[1].objective == {"name": "cbmi", "scale_token": 0.2}
    assert config.optimizer.peak_lr == 5e-4
    assert config.data.vocabulary.shared is False
    bad_ones = (
        "nonsense",
        "stages.7.steps=1",
        "=3",
        "seed.x=1",
        "seed=[1",
        "data.train.0.x=1",
        "data={[a, b]: 1}",
    )
    for bad in bad_ones:
        with pytest.raises(UserError):
            read_config(path, [bad])


def test_resolved_settings_read_back_the_same(values):
    config = check(RunSettings, values, "")
    again = check(RunSettings, parse_yaml(yaml.safe_dump(config.plain()), ""), "")
    assert again == config
    assert changes_between(config.plain(), again.plain()) == []


@pytest.mark.parametrize(
    "name", ["7e4", "no", "1:30", "true", "0x10", "null", "~", "2020-01-01", "a: b", "ü"]
)
def test_any_name_reads_back_as_it_was(values, name):
    config = check(RunSettings, values | {"output": name}, "")
    assert check(RunSettings, parse_yaml(dump_yaml(config.plain()), ""), "").output == name


def test_yaml_anchors_and_merges_are_understood():
    text = "a: &one {x: 1, y: 2}\nb: {<<: *one, y: 3}"
    assert parse_yaml(text, "")["b"] == {"x": 1, "y": 3}
    text = "a: &one {x: 1, y: 2}\nb: &two {<<: *one, y: 3}\nc: {<<: *two, y: 4}"
    assert parse_yaml(text, "") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 4},
    }


def test_an_override_changes_one_of_those_that_share_an_anchor(tmp_path, values):
    shared = {"name": "cbmi", "scale_token": 0.1}
    stages = [
        {"name": name, "steps": 1, "language_model": "joint", "objective": shared}
        for name in ("a", "b")
    ]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values | {"stages": stages}))
    assert "*" in path.read_text()
    config = read_config(path, ["stages.b.objective.scale_token=0.5"])
    assert [stage.objective["scale_token"] for stage in config.stages] == [0.1, 0.5]


def test_one_file_of_both_sides_will_do(values):
    data = values["data"] | {"train": "a.tsv", "valid": "b.tsv", "test": {"one": "c.tsv"}}
    found = check(RunSettings, values | {"data": data}, "").data
    assert found.train_files() == ("a.tsv",)
    assert (found.valid, found.test) == (("b.tsv",), {"one": ("c.tsv",)})


def test_a_language_is_part_of_files_names(values):
    assert "data.source: 'en/US' is not a name" in message(
        values | {"data": values["data"] | {"source": "en/US"}}
    )


def test_the_big_model_learns_more_slowly(values):
    plain = {key: value for key, value in values.items() if key != "optimizer"}
    rates = [
        check(RunSettings, plain | {"model": model}, "").optimizer.peak_lr
        for model in ("base", "big")
    ]
    assert rates == [7e-4, 5e-4]
    config = check(
        RunSettings, values | {"model": {"preset": "big"}, "optimizer": {"peak_lr": 1e-3}}, ""
    )
    assert config.optimizer.peak_lr == 1e-3


def test_changes_are_named():
    old = {"a": {"b": 1, "c": [1, 2]}, "d": 4}
    new = {"a": {"b": 2, "c": [1, 3]}, "d": 4, "e": 5}
    found = [str(change) for change in changes_between(old, new)]
    assert found == ["a.b: 1, now 2", "a.c.1: 2, now 3", "e: null, now 5"]


def test_sharded_weights_and_loss_scaling_are_refused_together(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "output: x\ndata: {source: a, target: b, train: [t.tsv]}\nmodel: tiny\n"
        "stages: [{name: a, steps: 1}]\n"
    )
    assert read_config(path, ["parallel=fsdp"]).parallel == "fsdp"
    with pytest.raises(
        UserError,
        match="parallel: fsdp cannot be combined with the loss scaling of precision: fp16",
    ):
        read_config(path, ["parallel=fsdp", "precision=fp16"])
