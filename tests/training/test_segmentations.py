"""Training on several segmentations of every pair."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tasks import WORLD, cbmi, every_objective, read_log, refused, run_values, write_run, write_task

from cbmi.data.corpus import DIGEST
from cbmi.data.prepare import open_training_corpora
from cbmi.digests import sha256
from cbmi.experiments.results import preparation_cost
from cbmi.training.batching.builder import BatchBuilder, Segmentation
from cbmi.training.run import RunDirectory

SAMPLED = {"dropout": 0.3, "samples": 3}


def settings(folder: Path, **changes) -> dict:
    data = run_values(folder)["data"] | {"segmentations": SAMPLED}
    return {"data": data, "validate": {"every": 100, "beam": 0}} | changes


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, train=60, valid=5, reverse=True)
    return folder


def train(folder: Path, name: str, **changes) -> Path:
    run = folder / name
    path = write_run(folder, f"{name}.yaml", output=str(run), **settings(folder, **changes))
    result = cbmi("train", path)
    assert result.returncode == 0, result.stderr.decode()
    return run


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_log(run) if "loss" in record]


@pytest.fixture(scope="module")
def prepared(task):
    path = write_run(task, "prepared.yaml", output=str(task / "prepared"), **settings(task))
    assert cbmi("prepare", path).returncode == 0
    return path


@pytest.fixture(scope="module")
def builder(task, prepared):
    corpora = open_training_corpora(task / "prepared")
    return BatchBuilder([Segmentation(one, {}) for one in corpora], 200, 1, 1, WORLD)


def test_an_epoch_is_trained_on_its_segmentation(builder):
    batches = builder.batches(0, 0, 1, None)
    for epoch in range(5):
        ids = []
        for _ in range(len(builder.plan(epoch))):
            batch = next(batches)
            ids.append(batch.micro_batches[0].to_device(WORLD.device).target.ids.numpy())
        corpus = builder.segmentations[epoch % 3].corpus
        assert np.array_equal(np.sort(np.concatenate(ids)), np.sort(corpus.target.ids))
        assert (batch.next_epoch, batch.next_batch) == (epoch + 1, 0)
    # Seeking gives the same batches.
    walk = builder.batches(3, 0, 1, None)
    for _ in range(len(builder.plan(3)) + 1):
        next(walk)
    (reached,) = next(walk).micro_batches
    (sought,) = next(builder.batches(4, 1, len(builder.plan(3)) + 2, None)).micro_batches
    views = reached.views(reached.memory)
    for name, values in sought.views(sought.memory).items():
        assert torch.equal(views[name], values)


def test_which_segmentations_a_stage_uses(builder):
    steps = [len(builder.plan(epoch)) for epoch in range(3)]
    assert builder.segmentations_of(0, 0, steps[0]) == {0}
    assert builder.segmentations_of(0, 0, steps[0] + 1) == {0, 1}
    assert builder.segmentations_of(1, steps[1] - 1, 1) == {1}
    assert builder.segmentations_of(1, steps[1] - 1, 2) == {1, 2}
    assert builder.segmentations_of(2, 0, 1000) == {0, 1, 2}


@pytest.mark.slow
def test_every_objective_trains(task):
    stages = every_objective(task, steps=2)
    assert len(losses(train(task, "every", stages=stages))) == 4 + 2 * (len(stages) - 1)


@pytest.mark.slow
def test_a_cached_language_model_is_the_frozen_one(task):
    """Scores are kept for each segmentation that the stage uses."""
    first = {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 4}
    runs = {}
    for choice in ("frozen", "cached"):
        stage = {"name": "adapt", "objective": "cbmi", "language_model": choice, "steps": 24}
        runs[choice] = train(task, choice, stages=[first, stage])
    assert losses(runs["cached"]) == pytest.approx(losses(runs["frozen"]), abs=1e-5)
    folders = sorted((runs["cached"] / "cache" / "adapt").iterdir())
    assert [folder.name for folder in folders] == ["0", "1", "2"]
    cost = preparation_cost(RunDirectory(runs["cached"]), ["adapt"])
    assert cost.bytes == sum((folder / "log_p").stat().st_size for folder in folders)
    assert cost.bytes > 3 * 60  # a value for every token of 60 pairs at least
    assert cost.seconds > 0


@pytest.mark.slow
def test_targets_that_are_not_sampled_are_scored_once(task):
    first = {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 4}
    data = run_values(task)["data"] | {"segmentations": SAMPLED | {"sides": "source"}}
    runs = {}
    for choice in ("frozen", "cached"):
        stage = {"name": "adapt", "objective": "cbmi", "language_model": choice, "steps": 12}
        runs[choice] = train(task, f"source-{choice}", stages=[first, stage], data=data)
    assert losses(runs["cached"]) == pytest.approx(losses(runs["frozen"]), abs=1e-5)
    assert (runs["cached"] / "cache" / "adapt" / "log_p").exists()


@pytest.mark.slow
def test_resumed_it_ends_with_the_same_weights(task):
    stage = {"name": "ce", "objective": "ce", "steps": 20}
    whole = train(task, "whole", stages=[stage])
    train(task, "resumed", stages=[stage | {"steps": 9}])
    resumed = train(task, "resumed", stages=[stage])
    name = "checkpoints/step-20/translator.safetensors"
    assert (resumed / name).read_bytes() == (whole / name).read_bytes()


def test_other_draws_are_not_those_of_the_checkpoint(task):
    """Another version of NumPy may draw others: they are named in checkpoints, too."""
    stage = {"name": "ce", "objective": "ce", "steps": 4}
    run = train(task, "drawn", stages=[stage])
    folder = run / "data" / "segmentations"
    meta = json.loads((folder / "meta.json").read_text())
    ids = np.fromfile(folder / "1" / "source.ids", np.uint16)[::-1]
    ids.tofile(folder / "1" / "source.ids")
    meta["digests"]["1/source.ids"] = sha256(folder / "1" / "source.ids")[:DIGEST]
    (folder / "meta.json").write_text(json.dumps(meta))
    path = write_run(
        task, "drawn.yaml", output=str(run), **settings(task, stages=[stage | {"steps": 6}])
    )
    message = refused("train", path)
    assert "/1/source.ids: these are not the data that step-4 was trained on" in message


def test_all_segmentations_with_weights_of_another_file_are_named(task):
    weights = task / "pair-weights.txt"
    weights.write_text("1\n" * 60)
    objective = {"name": "weights-file", "file": str(weights), "per": "pair"}
    stages = [{"name": "given", "objective": objective, "steps": 2}]
    run = train(task, "pairs", stages=stages)
    weights.write_text("2\n" * 60)
    longer = [stages[0] | {"steps": 4}]
    path = write_run(task, "pairs.yaml", output=str(run), **settings(task, stages=longer))
    advice = re.search(r"or delete (\S+) to continue", refused("train", path)).group(1)
    subprocess.run(f"rm {advice}", shell=True, check=True)
    assert cbmi("train", path).returncode == 0


def test_weights_of_tokens_are_refused(task):
    (task / "weights.txt").write_text("1\n" * 60)
    objective = {"name": "weights-file", "file": str(task / "weights.txt"), "per": "token"}
    stages = [{"name": "given", "objective": objective, "steps": 2}]
    path = write_run(
        task, "given.yaml", output=str(task / "given"), **settings(task, stages=stages)
    )
    assert "weights of tokens belong to one segmentation" in refused("train", path)


def test_other_segmentations_are_refused_once_prepared(prepared):
    message = refused("train", prepared, "data.segmentations.dropout=0.2")
    assert "data.segmentations.dropout" in message
