"""Values put into run files, by `key=value` and by dotted keys."""

from __future__ import annotations

import copy

import pytest

from cbmi.errors import UserError
from cbmi.overrides import nearest, read_mapping, with_changes, with_overrides

VALUES = {
    "seed": 1,
    "model": "small",
    "optimizer": {"peak_lr": 7e-4},
    "stages": [
        {"name": "pretrain", "steps": 8},
        {"name": "adapt", "steps": 4, "objective": "cbmi"},
    ],
}


def test_an_override_replaces_one_value():
    found = with_overrides(VALUES, ["optimizer.peak_lr=5e-4"])
    assert found == VALUES | {"optimizer": {"peak_lr": 5e-4}}


def test_values_are_yaml():
    overrides = ["a=3", "b=[1, two]", "c={d: null}", "e=true", "f=x=y", "g="]
    found = with_overrides({}, overrides)
    assert found == {"a": 3, "b": [1, "two"], "c": {"d": None}, "e": True, "f": "x=y", "g": None}


def test_groups_that_are_missing_are_made():
    assert with_overrides({}, ["a.b.c=1"]) == {"a": {"b": {"c": 1}}}


@pytest.mark.parametrize("item", ["adapt", "1"])
def test_items_go_by_name_or_number(item):
    found = with_overrides(VALUES, [f"stages.{item}.steps=9"])
    assert found["stages"][1]["steps"] == 9
    assert found["stages"][0] == VALUES["stages"][0]


def test_a_name_goes_before_a_number():
    values = {"stages": [{"name": "1", "steps": 5}, {"name": "0", "steps": 6}]}
    found = with_overrides(values, ["stages.0.steps=7"])
    assert [stage["steps"] for stage in found["stages"]] == [5, 7]


def test_an_item_can_be_replaced():
    assert with_overrides({"files": ["a", "b"]}, ["files.1=c"]) == {"files": ["a", "c"]}


def test_settings_below_a_shorthand_spell_it_out():
    found = with_overrides(VALUES, ["model.dropout=0.3", "stages.adapt.objective.scale_token=0.2"])
    assert found["model"] == {"preset": "small", "dropout": 0.3}
    assert found["stages"][1]["objective"] == {"name": "cbmi", "scale_token": 0.2}


def test_later_overrides_see_earlier_ones():
    assert with_overrides({}, ["a={b: 1}", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}


@pytest.mark.parametrize(
    "override",
    [
        "seed",
        "=3",
        "seed.x=1",
        "stages.7.steps=1",
        "stages.-1.steps=1",
        "stages.nosuch.steps=1",
        "seed=[1",
    ],
)
def test_a_bad_override_is_named_and_leaves_the_values_alone(override):
    values = copy.deepcopy(VALUES)
    with pytest.raises(UserError, match="'") as caught:
        with_overrides(values, ["seed=2", override])
    assert override in str(caught.value)
    assert values == VALUES


def test_overrides_do_not_mutate_their_input():
    values = copy.deepcopy(VALUES)
    found = with_overrides(
        values, ["seed=2", "model.dropout=0.3", "stages.adapt.steps=9", "optimizer.warmup=1"]
    )
    found["stages"][0]["steps"] = 100
    assert values == VALUES


def test_changes_do_not_mutate_their_input():
    values = copy.deepcopy(VALUES)
    stages = [{"name": "only", "steps": 1}]
    changes = {"stages": stages, "stages.only.steps": 3, "model.dropout": 0.3}
    found = with_changes(values, changes)
    assert found["stages"] == [{"name": "only", "steps": 3}]
    assert found["model"] == {"preset": "small", "dropout": 0.3}
    assert stages == [{"name": "only", "steps": 1}]
    assert values == VALUES


def test_changes_are_taken_as_they_are():
    """Unlike overrides, which are text."""
    assert with_changes({}, {"a.b": "1", "c": "[x"}) == {"a": {"b": "1"}, "c": "[x"}


def test_the_nearest_name_is_offered_or_all_of_them():
    assert nearest("stpes", ["steps", "name"]) == " (did you mean 'steps'?)"
    assert nearest("zzz", ["steps", "name"]) == " (known: name, steps)"


def test_a_file_of_values_is_read(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("a: {b: 7e-4}\n")
    assert read_mapping(path, "run file") == {"a": {"b": 7e-4}}


@pytest.mark.parametrize("content", [b"- a\n", b"text", b"", b"\xff"])
def test_a_file_without_keys_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"run\.yaml"):
        read_mapping(path, "run file")


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nosuch.yaml"):
        with pytest.raises(UserError, match=path.name):
            read_mapping(path, "run file")
