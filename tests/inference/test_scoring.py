"""A scored pair as a line of `cbmi score`: what is written can be read; a broken one is refused."""

import json

import numpy as np
import pytest
from tasks import cbmi

from cbmi.errors import UserError
from cbmi.inference.scoring import ScoredPair


def record(**changes):
    """A line of `cbmi score`."""
    values = {
        "source": "The house.",
        "target": "Das Haus.",
        "pieces": ["▁Das", "▁Haus", ".", "</s>"],
        "nmt": [-0.5, -1.0, -0.25, -0.125],
        "lm": [-3.0, -4.0, -0.25, -0.5],
        "cbmi": [2.5, 3.0, 0.0, 0.375],
        "sentence_cbmi": 1.46875,
        "token_weights": [1.1, 1.2, 0.8, 0.9],
        "sentence_weight": 1.1,
        "weights": [1.21, 1.32, 0.88, 0.99],
    }
    return values | changes


def test_what_is_written_can_be_read():
    pair = ScoredPair.from_json(record())
    assert pair.to_json() == record()
    assert pair.cbmi.tolist() == record()["cbmi"]
    assert [word.text for word in pair.words] == ["Das", "Haus.", "</s>"]
    assert pair.filled


def test_weights_may_be_absent():
    bare = record()
    for key in ("token_weights", "sentence_weight", "weights"):
        del bare[key]
    pair = ScoredPair.from_json(bare)
    assert pair.token_weights is pair.sentence_weight is pair.weights is None
    assert pair.to_json() == bare


def test_without_a_language_model_there_is_log_p_alone():
    bare = {key: record()[key] for key in ("source", "target", "pieces", "nmt")}
    pair = ScoredPair.from_json(bare)
    assert pair.log_p_lm is None
    assert np.isnan(pair.cbmi).all()
    assert np.isnan(pair.sentence_cbmi)
    assert pair.likelihood == pytest.approx(-1.875 / 4)
    assert pair.to_json() == bare


def test_a_run_without_one_scores_and_says_so(small_run, without_language_model, tmp_path):
    files = ("--source", small_run / "test.src", "--target", small_run / "test.tgt")
    result = cbmi("score", without_language_model, *files, "-o", tmp_path / "scores.jsonl")
    assert result.returncode == 0, result.stderr.decode()
    assert "has no language model, so there are neither CBMI nor weights" in result.stderr.decode()
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert len(lines) == len((small_run / "test.src").read_text().splitlines())
    for line in lines:
        assert list(json.loads(line)) == ["source", "target", "pieces", "nmt"]


def test_values_in_files_have_six_digits():
    pair = ScoredPair("a", "b", ("▁b",), np.array([-1 / 3]), np.array([-2 / 3]), 0.333333)
    assert pair.to_json()["nmt"] == [-0.333333]
    assert pair.to_json()["cbmi"] == [0.333333]


@pytest.mark.parametrize(("source", "target"), [("", "b"), ("a", " "), ("", "")])
def test_a_pair_with_an_empty_side_is_not_filled(source, target):
    assert not ScoredPair.from_json(record(source=source, target=target)).filled


@pytest.mark.parametrize("key", ["source", "target", "pieces", "nmt", "lm", "sentence_cbmi"])
def test_errors_name_the_record_and_the_missing_key(key):
    incomplete = record()
    del incomplete[key]
    with pytest.raises(UserError, match=f"Record 2 has no '{key}'"):
        ScoredPair.from_json(incomplete, "Record 2")


@pytest.mark.parametrize("key", ["nmt", "lm", "token_weights", "weights"])
def test_errors_name_the_record_and_the_key_of_another_length(key):
    with pytest.raises(UserError, match=f"Record 1 has 4 pieces but 1 values in '{key}'"):
        ScoredPair.from_json(record(**{key: [1.0]}), "Record 1")
