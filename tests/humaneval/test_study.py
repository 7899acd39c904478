"""A study of human evaluation: blind, complete, lossless."""

import json

import pytest
from tasks import cbmi, refused

from cbmi.errors import UserError
from cbmi.humaneval.schemes import Rating
from cbmi.humaneval.study import create_study, open_study


def test_every_translation_is_an_item_once(study):
    items = study.items("annotator-1")
    shown = [(item.source, item.translation) for item in items]
    assert len(set(shown)) == len(shown) == study.size()
    lines = {source.split()[1] for source, _ in shown}
    assert len(lines) == 10
    odd = sum(int(line) % 2 for line in lines)
    assert study.size() == 3 * 10 - odd  # "one" and "same" share the odd lines
    assert all(item.reference == item.source.replace("source", "reference") for item in items)


def test_it_is_blind_and_every_order_is_its_own(study):
    first = study.items("annotator-1")
    second = study.items("annotator-2")
    shown = {"item", "source", "reference", "translation", "ratings", "spans"}
    assert set(first[0].to_json()) == shown
    first_order = [item.number for item in first]
    second_order = [item.number for item in second]
    assert sorted(first_order) == sorted(second_order)
    assert first_order != second_order
    by_system = [item.number for item in sorted(first, key=lambda item: item.translation)]
    assert by_system != sorted(by_system)  # numbers do not follow the systems


def test_the_same_seed_draws_the_same(files, tmp_path):
    systems = [("one", files["one"])]
    one = create_study(tmp_path / "a", files["source"], None, systems, 5, 1, seed=7)
    other = create_study(tmp_path / "b", files["source"], None, systems, 5, 1, seed=7)
    assert one.items("annotator-1") == other.items("annotator-1")
    assert one.annotators() != other.annotators()  # links are private


def test_ratings_are_kept_and_may_change(study):
    item = study.items("annotator-1")[0].number
    study.rate("annotator-1", [Rating(item, "adequacy", 2)])
    study.rate("annotator-1", [Rating(item, "adequacy", 4), Rating(item, "fluency", 5)])
    again = open_study(study.path.parent)
    assert again.items("annotator-1")[0].ratings == {"adequacy": 4, "fluency": 5}
    assert all(not one.ratings for one in again.items("annotator-2"))
    for wrong in (
        [Rating(item, "fluency", 1), Rating(item, "beauty", 1)],
        [Rating(item, "fluency", 6)],
        [Rating(item, "fluency", 1), Rating(999, "fluency", 1)],
    ):
        with pytest.raises(UserError):
            again.rate("annotator-1", wrong)
    # All of it, or nothing.
    assert again.items("annotator-1")[0].ratings == {"adequacy": 4, "fluency": 5}


def test_a_system_may_have_any_name(files, tmp_path):
    systems = [("reference", files["one"]), ("source", files["same"])]
    study = create_study(tmp_path / "named", files["source"], None, systems, 4, 1, seed=1)
    assert all(item.reference is None for item in study.items("annotator-1"))
    study = create_study(
        tmp_path / "both", files["source"], files["reference"], systems, 4, 1, seed=1
    )
    items = study.items("annotator-1")
    assert all(item.reference.startswith("reference") for item in items)
    assert any(item.translation.startswith("one") for item in items)


def test_repaired_lines_are_reported(files, tmp_path, capsys):
    for name in ("source", "one"):
        with open(files[name], "r+b") as file:
            file.write(b"\0")
    systems = [("one", files["one"])]
    create_study(tmp_path / "odd", files["source"], None, systems, 4, 1, seed=1)
    assert "2 lines" in capsys.readouterr().err


def test_a_study_that_was_moved_away_is_missed(study):
    study.path.rename(study.path.with_name("elsewhere.db"))
    with pytest.raises(UserError, match=r"study\.db"):
        study.items("annotator-1")
    assert not study.path.exists()


def test_bad_studies_are_refused(files, tmp_path):
    (tmp_path / "short.txt").write_text("one\n")

    def create(*arguments):
        return refused(
            "humaneval", "create", "--source", files["source"], "-o", tmp_path / "new", *arguments
        )

    one = ("--system", f"one={files['one']}")
    assert "should be NAME=FILE" in create("--system", files["one"])
    assert "two systems are named 'one'" in create(*one, *one)
    assert "short.txt has 1" in create(*one, "--system", f"x={tmp_path / 'short.txt'}")
    assert "cannot be read" in create("--system", f"x={tmp_path / 'none'}")
    assert "--sample: 13 is more than the 12 lines" in create(*one, "--sample", "13")
    assert not (tmp_path / "new").exists()
    assert "there is no study here" in refused("humaneval", "report", tmp_path)
    new = ("--source", files["source"], "-o", tmp_path / "new", *one, "--sample", "3")
    assert cbmi("humaneval", "create", *new).returncode == 0
    assert "already holds a study" in create(*one, "--sample", "3")
    assert "there is no 'x'" in refused("humaneval", "export", tmp_path / "new", "--annotator", "x")
    (tmp_path / "new" / "study.db").write_text(json.dumps("no database") * 100)
    assert "study.db" in refused("humaneval", "report", tmp_path / "new")
