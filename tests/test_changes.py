"""What differs between two run files: where, from what, to what."""

from __future__ import annotations

import pytest

from cbmi.changes import Change, changes_between, describe_changes


def test_equal_values_have_no_changes():
    values = {"a": {"b": [1, 2]}, "c": None}
    assert changes_between(values, {"c": None, "a": {"b": [1, 2]}}) == []


def test_a_change_is_named_by_its_path():
    old = {"optimizer": {"peak_lr": 7e-4, "warmup": 4000}, "seed": 1}
    new = {"optimizer": {"peak_lr": 5e-4, "warmup": 4000}, "seed": 1}
    assert changes_between(old, new) == [Change("optimizer.peak_lr", 7e-4, 5e-4)]


def test_keys_come_in_the_old_order_and_new_keys_last():
    old = {"b": 1, "a": 1}
    new = {"c": 2, "a": 2, "b": 2}
    found = changes_between(old, new)
    assert found == [Change("b", 1, 2), Change("a", 1, 2), Change("c", None, 2)]


def test_a_key_that_is_gone_is_none_now():
    assert changes_between({"a": 1}, {}) == [Change("a", 1, None)]


def test_items_of_a_list_are_named_by_number():
    assert changes_between({"files": ["a", "b"]}, {"files": ["a", "c"]}) == [
        Change("files.1", "b", "c")
    ]


def test_items_that_keep_their_name_are_named_by_it():
    old = {"stages": [{"name": "adapt", "steps": 8}]}
    longer = {"stages": [{"name": "adapt", "steps": 9}]}
    assert changes_between(old, longer) == [Change("stages.adapt.steps", 8, 9)]
    renamed = {"stages": [{"name": "other", "steps": 8}]}
    assert changes_between(old, renamed) == [Change("stages.0.name", "adapt", "other")]


def test_lists_of_different_lengths_differ_as_a_whole():
    assert changes_between({"a": [1]}, {"a": [1, 2]}) == [Change("a", [1], [1, 2])]


def test_values_of_different_kinds_differ_as_a_whole():
    assert changes_between({"a": {"b": 1}}, {"a": 3}) == [Change("a", {"b": 1}, 3)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("data", True), ("data.train.0", True), ("database", False), ("log.data", False)],
)
def test_within_goes_by_whole_keys(path, expected):
    assert Change(path, 1, 2).within("data") is expected


def test_within_takes_several_keys_and_keys_below_others():
    change = Change("data.test.one", None, "a")
    assert change.within("log", "data.test")
    assert not change.within("log", "data.train")
    assert not change.within()


def test_a_change_reads_as_a_line():
    assert str(Change("batch.tokens", 200, 150)) == "batch.tokens: 200, now 150"
    assert str(Change("data.valid", None, ["a"])) == "data.valid: null, now ['a']"
    assert str(Change("log.tensorboard", False, True)) == "log.tensorboard: false, now true"


def test_changes_read_as_one_line():
    changes = [Change("a", 1, 2), Change("b", 3, 4), Change("c", 5, 6)]
    assert describe_changes(changes) == "a: 1, now 2; b: 3, now 4; c: 5, now 6"
    assert describe_changes(changes, most=2) == "a: 1, now 2; b: 3, now 4"
