"""Several corpora with weights: how often an epoch has their pairs, and that runs resume."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tasks import cbmi, refused, run_values, write_run, write_task

from cbmi.data_settings import DataSettings
from cbmi.training.batching.mixing import Mixing
from cbmi.training.batching.plan import EpochPlan


def test_weights_are_how_often_pairs_come():
    mixing = Mixing((10, 20), (2.0, 0.5))
    counts = Counter(mixing.draw(seed=1, epoch=0).tolist())
    assert [counts[pair] for pair in range(10)] == [2] * 10
    assert sum(counts[pair] for pair in range(10, 30)) == 10
    assert mixing.share() == pytest.approx(1.0)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.05, 4)), min_size=1, max_size=4),
    st.integers(0, 9),
    st.integers(0, 99),
)
def test_an_epoch_is_a_function_of_seed_and_epoch(corpora, seed, epoch):
    pairs, weights = zip(*corpora, strict=True)
    mixing = Mixing(pairs, weights)
    drawn = mixing.draw(seed, epoch)
    assert len(drawn) > 0
    assert drawn.tolist() == mixing.draw(seed, epoch).tolist()
    start = 0
    for count, weight in corpora:
        own = drawn[(drawn >= start) & (drawn < start + count)]
        assert abs(len(own) - weight * count) <= 1
        start += count


def test_fractions_take_turns():
    """With a weight of 0.25, four epochs have every pair once."""
    mixing = Mixing((40,), (0.25,))
    drawn = np.concatenate([mixing.draw(3, epoch) for epoch in range(8, 12)])
    assert sorted(drawn.tolist()) == list(range(40))


def test_pairs_do_not_always_come_in_the_same_epochs():
    """Epochs take turns with segmentations: a pair is to meet all of them."""
    mixing = Mixing((40,), (0.5,))
    epochs: dict[int, set[int]] = {}
    for epoch in range(200):
        for pair in mixing.draw(1, epoch).tolist():
            epochs.setdefault(pair, set()).add(epoch % 8)
    assert all(len(found) == 8 for found in epochs.values())


def test_a_small_weight_leaves_nothing_out_for_ever():
    mixing = Mixing((400, 10), (0.001, 1.0))
    seen = set()
    for epoch in range(1000):
        seen.update(mixing.draw(1, epoch).tolist())
    assert seen == set(range(410))
    assert len(Mixing((3,), (0.1,)).draw(1, 0)) == 1  # an epoch is never empty


@pytest.mark.parametrize("group", [None, 100])
def test_a_plan_has_the_pairs_of_its_epoch(group):
    draw = np.random.default_rng(0)
    lengths = draw.integers(2, 20, (2, 50))
    mixing = Mixing((20, 30), (1.5, 2.0))
    plan = EpochPlan(lengths, 200, 1, 3, group, mixing)
    planned = np.concatenate([plan[number] for number in range(len(plan))])
    assert sorted(planned.tolist()) == sorted(mixing.draw(1, 3).tolist())
    sizes = plan.sizes()
    for number in range(len(plan)):
        assert sizes[:2, number].tolist() == lengths[:, plan[number]].sum(1).tolist()


def settings(train: object) -> DataSettings:
    return DataSettings(source="en", target="de", train=train)


def test_what_training_data_may_be():
    assert settings("a.tsv").train[0].files == ("a.tsv",)
    assert settings(["a", "b"]).train[0].files == ("a", "b")
    assert settings([["a", "b"], ["c", "d"]]).train_files() == ("a", "b", "c", "d")
    several = settings([{"files": ["a", "b"], "weight": 2.0}, {"files": "c.tsv"}])
    assert [corpus.weight for corpus in several.train] == [2.0, 1.0]
    for train in ("a.tsv", ["a", "b"], [{"files": ["a", "b"], "weight": 2.0}]):
        data = settings(train)
        assert settings(data.model_dump(mode="json")["train"]) == data
    assert settings(["a", "b"]).model_dump(mode="json")["train"] == ["a", "b"]


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("[]", "data.train"),
        ("[{files: [a, b], weight: 0}]", "data.train.0.weight"),
        ("[{files: [a, b], weight: 1e30}]", "data.train.0.weight"),
        ("[{file: [a, b]}]", "unknown key 'file'"),
        ("[a, b, c]", "should name two aligned files"),
    ],
)
def test_what_it_may_not_be(tmp_path, train, expected):
    write_task(tmp_path, train=40, valid=4)
    assert expected in refused("prepare", write_run(tmp_path), f"data.train={train}")


@pytest.fixture
def two_corpora(tmp_path):
    """A run file with a clean corpus, twice an epoch, and half of another."""
    write_task(tmp_path, train=40, valid=4)
    for side in ("src", "tgt"):
        lines = (tmp_path / f"train.{side}").read_text().splitlines(keepends=True)
        (tmp_path / f"more.{side}").write_text("".join(lines[::-1][:20]))
    corpora = []
    for name, weight in (("train", 2.0), ("more", 0.5)):
        files = [str(tmp_path / f"{name}.{side}") for side in ("src", "tgt")]
        corpora.append({"files": files, "weight": weight})
    data = run_values(tmp_path)["data"] | {"train": corpora}
    return lambda name, **changes: write_run(
        tmp_path, f"{name}.yaml", data=data, output=str(tmp_path / name), **changes
    )


@pytest.mark.slow
def test_a_run_with_two_corpora_is_the_same_wherever_it_stops(two_corpora, tmp_path):
    stages = [
        {"name": "pretrain", "language_model": "train", "steps": 10},
        {"name": "adapt", "objective": "cbmi", "language_model": "cached", "steps": 10},
    ]
    assert cbmi("train", two_corpora("whole", stages=stages)).returncode == 0
    meta = json.loads((tmp_path / "whole" / "data" / "train" / "meta.json").read_text())
    assert meta["parts"] == [40, 20]
    short = [stages[0] | {"steps": 10}, stages[1] | {"steps": 3}]
    path = two_corpora("parts", stages=short)
    assert cbmi("train", path).returncode == 0
    result = cbmi("train", two_corpora("parts", stages=stages))
    assert result.returncode == 0, result.stderr.decode()
    name = "checkpoints/step-20/translator.safetensors"
    whole = load_file(tmp_path / "whole" / name)
    resumed = load_file(tmp_path / "parts" / name)
    assert all(bool((whole[key] == resumed[key]).all()) for key in whole)
    result = cbmi("weights", tmp_path / "whole", "--objective", "cbmi", "-o", tmp_path / "w")
    assert result.returncode == 0, result.stderr.decode()
    assert len((tmp_path / "w").read_text().splitlines()) == 60  # every line of both, once
    message = refused("train", two_corpora("whole", stages=stages), "data.train.1.weight=1.0")
    assert "data.train.1.weight: 0.5, now 1.0" in message
