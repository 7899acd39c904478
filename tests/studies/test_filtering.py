"""The arithmetic of the filtering study: what is spoilt is known, and signals are judged by it."""

import importlib.util
import json
import random

import numpy as np
import pytest
from tasks import ROOT

from cbmi.demo.corpus import generate


@pytest.fixture(scope="module")
def filtering():
    spec = importlib.util.spec_from_file_location("filtering", ROOT / "studies" / "filtering.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pairs():
    return [(pair.source, pair.target) for pair in generate(600, seed=2)]


def test_a_known_share_is_spoilt_in_equal_parts(filtering, pairs):
    dirty, truth = filtering.spoil(pairs, 0.3, seed=1)
    counts = [truth.count(name) for name in filtering.KINDS]
    assert len(dirty) == len(pairs)
    assert 170 <= sum(counts) <= 180  # a draw may come out as it was
    assert max(counts) - min(counts) <= 4
    for before, after, kind in zip(pairs, dirty, truth, strict=True):
        assert after[0] == before[0]
        assert (after == before) == (kind == "")
        assert after[1]
    assert (dirty, truth) == filtering.spoil(pairs, 0.3, seed=1)


def test_the_ways_of_spoiling(filtering):
    pair = ("one two three four five", "eins zwei drei vier fünf")
    other = ("a b c d", "w x y z")
    draw = random.Random(3)
    made = {name: spoil(pair, other, draw) for name, spoil in filtering.KINDS.items()}
    words = pair[1].split()
    assert made["shuffled targets"] == "w x y z"
    assert made["copied source"] == pair[0]
    assert made["wrong language"] == "a b c d"
    assert words[: len(made["truncated"].split())] == made["truncated"].split()
    assert sorted(made["misordered words"].split()) == sorted(words)
    assert 0 < len(made["under-translation"].split()) < len(words)
    unspaced = filtering.truncated(("x", "我们喜欢看书"), other, draw)
    assert "我们喜欢看书".startswith(unspaced)
    assert len(unspaced) < 6


def test_signals_are_judged_by_the_truth(filtering, pairs):
    _, truth = filtering.spoil(pairs, 0.3, seed=1)
    bad = np.array([bool(kind) for kind in truth])
    perfect = filtering.quality(-bad.astype(float), truth)
    assert all(one["auc"] == one["recall"] == 1 for one in perfect.values())
    assert perfect["all"]["precision"] == 1
    blind = filtering.quality(np.zeros(len(bad)), truth)
    assert all(one["auc"] == 0.5 for one in blind.values())
    upside_down = filtering.quality(bad.astype(float), truth)
    assert upside_down["all"] == {"auc": 0.0, "recall": 0.0, "precision": 0.0}


def test_rules_come_before_scores(filtering):
    pairs = [
        ("one two three", "eins zwei drei"),
        ("one two three", "one  two three"),
        ("one two three", "eins"),
        ("a b", "x y"),
    ]
    scored = {
        "cbmi": np.array([2.0, 9.0, 5.0, 1.0]),
        "likelihood": np.array([-1.0, -0.1, -0.2, -3.0]),
    }
    found = filtering.signals(pairs, scored, seed=1)
    assert found["CBMI and rules"].tolist() == [2.0, -np.inf, -np.inf, 1.0]
    ratios = np.log([14 / 13, 14 / 13, 4 / 13, 1])  # characters
    assert found["length ratio"] == pytest.approx(-np.abs(ratios - np.median(ratios)))
    kept = filtering.keep_best(found["likelihood and rules"], 2)
    assert kept.tolist() == [True, False, False, True]
    truth = ["", "copied source", "truncated", ""]
    perfect = {"auc": 1.0, "recall": 1.0, "precision": 1.0}
    assert filtering.quality(found["CBMI and rules"], truth)["all"] == perfect
    cells = filtering.rules_table(pairs, truth).splitlines()[2].split(" | ")[1:5]
    assert cells == ["0.0%", "–", "100.0%", "100.0%"]


def test_copies_among_the_translations_are_counted(filtering, tmp_path):
    files = [tmp_path / "test.en", tmp_path / "test.de"]
    files[0].write_text("one two\nthree\nfour\nfive\n")
    files[1].write_text("eins zwei\ndrei\nvier\nfünf\n")
    copying = "one  two\ndrei\nvier\nfünf\n"
    for task, seed, output in (
        ("dirty", 1, copying),
        ("dirty", 2, files[1].read_text()),
        ("good", 1, copying),
    ):
        job = tmp_path / "jobs" / f"{task}-{seed}-ce"
        (job / "run" / "test").mkdir(parents=True)
        (job / "run" / "test" / "test.txt").write_text(output)
        result = {"kind": "system", "task": task, "seed": seed, "system": "ce"}
        (job / "result.json").write_text(
            json.dumps(result | {"scores": {"test": {"bleu": 50.0, "chrf": 60.0}}})
        )
    start = tmp_path / "jobs" / "dirty-1-start"
    start.mkdir()
    (start / "result.json").write_text(json.dumps({"kind": "start"}))
    found = filtering.scores(tmp_path, {"test": tuple(map(str, files))}, ("en", "de"))
    shares = {name: own["test"]["copies"] for name, own in found.items()}
    assert shares == {"dirty, ce": 0.25, "dirty, ce, seed 2": 0.0, "good, ce": 0.25}
    printed = filtering.table(
        {
            "signals": {"random": {"all": {"auc": 0.5, "recall": 0.3, "precision": 0.3}}},
            "scores": found,
            "pairs": dict.fromkeys([*filtering.KINDS, "all"], 1),
        }
    )
    assert "| dirty, ce | 50.00 | 60.00 | 25.0% |" in printed
