"""What must not change a run: accumulation, ranks, sharding, a language model beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tasks import cbmi, every_objective, two_ranks, without_dropout, write_run, write_task

TWO_STAGES = [
    {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 6},
    {"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 6},
]
BACK_AGAIN = [
    {"name": "back", "objective": "ce", "language_model": "train", "steps": 4},
    {"name": "frozen", "objective": "cbmi", "language_model": "frozen", "steps": 4},
    {"name": "again", "objective": "cbmi", "language_model": "joint", "steps": 4},
]
JOINT = [{"name": "joint", "objective": "cbmi", "language_model": "joint", "steps": 10}]
CE = [{"name": "ce", "objective": "ce", "steps": 10}]
NO_SEARCH = {"validate": {"every": 4, "beam": 0}}

pytestmark = pytest.mark.slow


def losses(run: Path) -> list[float]:
    return figures(run, "loss")


def figures(run: Path, name: str) -> list[float]:
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record[name] for record in records if name in record]


def assert_same_course(first: Path, second: Path) -> None:
    """The same losses; and the same gradients, whose scale Adam would hide."""
    assert losses(first) == pytest.approx(losses(second), abs=1e-5)
    for name in ("grad_norm", "lm_grad_norm"):
        assert figures(first, name) == pytest.approx(figures(second, name), rel=1e-3)


def train(folder: Path, name: str, ranks: int = 1, **changes) -> Path:
    output = folder / name
    path = write_run(folder, f"{name}.yaml", output=str(output), **changes)
    result = cbmi("train", path) if ranks == 1 else two_ranks("-m", "cbmi", "train", path)
    assert result.returncode == 0, result.stderr.decode()
    return output


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, train=120, valid=11)
    return folder


def batch(tokens, accumulate=1):
    return {"batch": {"tokens": tokens, "accumulate": accumulate}, "model": without_dropout()}


@pytest.mark.parametrize(
    "stages", [TWO_STAGES, JOINT, BACK_AGAIN], ids=["two-stages", "joint", "back-again"]
)
def test_two_ranks_follow_one(task, stages):
    name = stages[0]["name"]
    one = train(task, f"one-{name}", stages=stages, **batch(200))
    two = train(task, f"two-{name}", ranks=2, stages=stages, **batch(100))
    assert_same_course(one, two)
    assert len(losses(one)) >= 10
    assert figures(one, "valid_loss") == pytest.approx(figures(two, "valid_loss"), abs=1e-4)


def test_two_ranks_follow_one_through_every_objective(task):
    """Without dropout, which ranks draw differently; `self-paced` weights are then all equal."""
    stages = every_objective(task, steps=1)
    one = train(task, "one-every", stages=stages, **NO_SEARCH, **batch(200))
    two = train(task, "two-every", ranks=2, stages=stages, **NO_SEARCH, **batch(100))
    assert_same_course(one, two)
    assert len(losses(one)) == 4 + len(stages) - 1
    assert figures(one, "weight_std") == pytest.approx(figures(two, "weight_std"), abs=1e-4)


def test_a_run_of_two_ranks_is_resumed_with_one(task):
    """Steps keep their size, the plan its order, and the objective its mini-batch."""
    whole = train(task, "never-moved", stages=JOINT, **batch(200))
    train(task, "moved", ranks=2, stages=[JOINT[0] | {"steps": 5}], **batch(100))
    moved = train(task, "moved", stages=JOINT, **batch(100))
    assert_same_course(moved, whole)


def test_two_ranks_follow_one_in_steps_of_groups(task):
    """A group's statistics are those of its sentences on all ranks."""
    objective = {"name": "cbmi", "preset": "public"}
    stages = [TWO_STAGES[0], {"name": "adapt", "objective": objective, "steps": 6, "groups": 60}]
    one = train(task, "one-groups", stages=stages, **batch(240))
    two = train(task, "two-groups", ranks=2, stages=stages, **batch(120))
    assert_same_course(one, two)
    assert figures(one, "weight_std") == pytest.approx(figures(two, "weight_std"), abs=1e-4)


def test_more_ranks_than_sentences(task):
    """A step of one sentence: one rank computes it, the other only keeps in step."""
    one = train(task, "one-single", stages=JOINT, **batch(2))
    two = train(task, "two-single", ranks=2, stages=JOINT, **batch(1))
    assert_same_course(one, two)


def test_accumulation_follows_whole_batches(task):
    """Also where weights depend on other sentences, of all micro-batches of the step."""
    stages = every_objective(task, steps=1)
    whole = train(task, "whole", stages=stages, **NO_SEARCH, **batch(200))
    parts = train(task, "parts", stages=stages, **NO_SEARCH, **batch(50, 4))
    assert_same_course(parts, whole)
    assert figures(parts, "weight_std") == pytest.approx(figures(whole, "weight_std"), abs=1e-4)


def test_a_language_model_beside_leaves_the_translator_bitwise_the_same(task):
    alone = train(task, "alone", stages=CE)
    beside = train(task, "beside", stages=[CE[0] | {"language_model": "train"}])
    first, second = (load_file(run / "best" / "translator.safetensors") for run in (alone, beside))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (beside / "best" / "language_model.safetensors").exists()
    assert not (alone / "best" / "language_model.safetensors").exists()


def test_a_frozen_language_model_stays_as_it_was(task):
    run = train(task, "frozen", stages=TWO_STAGES)
    before, after = (
        load_file(run / "checkpoints" / f"step-{n}" / "language_model.safetensors") for n in (6, 12)
    )
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_cbmi_with_both_scales_zero_is_cross_entropy(task):
    zero = {"name": "cbmi", "scale_token": 0.0, "scale_sentence": 0.0}
    weighted = train(task, "zero", stages=[JOINT[0] | {"objective": zero, "name": "ce"}])
    plain = train(task, "plain", stages=CE)
    first, second = (
        load_file(run / "best" / "translator.safetensors") for run in (weighted, plain)
    )
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(task, precision):
    full = train(task, f"full-{precision}", stages=CE, **batch(200))
    half = train(task, precision, stages=CE, precision=precision, **batch(200))
    assert losses(half) == pytest.approx(losses(full), rel=0.02)
    assert losses(half)[-1] < losses(half)[0]


def test_weights_sharded_over_two_ranks_follow_one(task):
    """FSDP: the same losses, gradients and checkpoints."""
    one = train(task, "one-whole", stages=BACK_AGAIN, **batch(200))
    two = train(task, "two-sharded", ranks=2, stages=BACK_AGAIN, parallel="fsdp", **batch(100))
    assert_same_course(one, two)
    assert figures(one, "valid_loss") == pytest.approx(figures(two, "valid_loss"), abs=1e-4)
    for file in ("translator", "language_model", "optimizer"):
        ours, theirs = (load_file(run / "best" / f"{file}.safetensors") for run in (two, one))
        assert {key: value.shape for key, value in ours.items()} == {
            key: v.shape for key, v in theirs.items()
        }


def test_sharded_weights_are_resumed_elsewhere_and_back(task):
    """Two ranks, one with accumulation, two with accumulation."""
    stage = {"name": "joint", "objective": "cbmi", "language_model": "joint", "steps": 9}
    whole = train(task, "never-sharded", stages=[stage], **batch(200))
    train(task, "wandering", ranks=2, stages=[stage | {"steps": 3}], parallel="fsdp", **batch(100))
    train(task, "wandering", stages=[stage | {"steps": 6}], **batch(100))
    wandering = train(task, "wandering", ranks=2, stages=[stage], parallel="fsdp", **batch(100))
    assert_same_course(wandering, whole)
    split = train(task, "split", ranks=2, stages=[stage], parallel="fsdp", **batch(50, 2))
    assert_same_course(split, whole)


def test_every_objective_works_with_sharded_weights(task):
    stages = every_objective(task, steps=1)
    one = train(task, "one-of-all", stages=stages, **NO_SEARCH, **batch(200))
    two = train(
        task, "all-sharded", ranks=2, stages=stages, **NO_SEARCH, parallel="fsdp", **batch(100)
    )
    assert_same_course(two, one)


def test_memory_is_saved_and_nothing_changes(task):
    plain = train(task, "kept", stages=JOINT)
    spared = train(
        task, "spared", stages=JOINT, memory={"head_tokens": 7, "recompute_layers": True}
    )
    assert_same_course(spared, plain)
