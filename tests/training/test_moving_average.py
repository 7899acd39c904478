"""Averaged weights: the formula, what is saved, and what is validated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tasks import (
    PIECES,
    cbmi,
    random_corpus,
    tiny_live_run,
    two_ranks,
    without_dropout,
    write_run,
    write_task,
)

from cbmi.data.statistics import Statistics
from cbmi.objectives import build
from cbmi.training.moving_average import MovingAverage
from cbmi.training.trainer import Trainer

STAGES = [
    {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 6},
    {"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 6},
    {"name": "again", "objective": "cbmi", "language_model": "joint", "steps": 4},
]


def test_it_follows_the_formula():
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    average = MovingAverage(network, 0.9)
    expected = network.weight.detach().double().clone()
    for step in range(1, 200):
        with torch.no_grad():
            network.weight.add_(torch.randn(2, 3))
        average.prepare_update()
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * network.weight.detach().double()
        # At every step: an old average has forgotten its warm-up.
        assert torch.allclose(average.weights["weight"].double(), expected, atol=1e-5)
    assert average.updates == 199


def test_the_network_has_it_only_inside_the_block():
    network = torch.nn.Linear(3, 2)
    average = MovingAverage(network, 0.9)
    averaged = average.weights["weight"].clone()
    with torch.no_grad():
        network.weight.mul_(2)
    own = network.weight.detach().clone()
    with average.in_network():
        assert torch.equal(network.weight, averaged)
    assert torch.equal(network.weight, own)


def test_a_checkpoint_has_both_sets(tmp_path):
    live = tiny_live_run(tmp_path, ema=0.5)
    with torch.no_grad():
        live.translator.network.output_weight.add_(1.0)
    live.translator.prepare_update(0.0)
    live.translator.average.update()
    live.save()
    folder = live.run.checkpoints / "step-0"
    used = load_file(folder / "translator.safetensors")
    latest = load_file(folder / "latest.safetensors")
    name = "source_embedding.weight"  # its first name: it is shared
    assert torch.equal(latest[f"translator/{name}"], live.translator.network.state_dict()[name])
    assert torch.equal(used[name], live.translator.average.weights[name])
    assert not torch.equal(used[name], latest[f"translator/{name}"])

    again = tiny_live_run(tmp_path, ema=0.5)
    again.resume()
    assert again.translator.average.updates == 1
    for key, value in live.translator.average.weights.items():
        assert torch.equal(again.translator.average.weights[key], value)
    for key, value in live.translator.network.state_dict().items():
        assert torch.equal(again.translator.network.state_dict()[key], value)


def test_a_language_model_that_is_frozen_has_the_averaged_weights(tmp_path):
    live = tiny_live_run(tmp_path, ema=0.5)
    trained, frozen = live.config.stages
    live.set_language_model_mode(trained)
    averaged = live.language_model_learner.average.weights["embedding.weight"].clone()
    with torch.no_grad():
        live.language_model.embedding.weight.add_(1.0)
    live.set_language_model_mode(frozen)
    assert torch.equal(live.language_model.embedding.weight, averaged)


def test_validation_sees_the_averaged_weights(tmp_path):
    stages = [{"name": "ce", "steps": 4}]
    live = tiny_live_run(tmp_path, ema=0.9, stages=stages, batch={"tokens": 60})
    live.run.path.mkdir()
    seen = {}

    class Recorder:
        def validate(self, translator, *others):
            for name, parameter in translator.named_parameters():
                seen[name] = parameter.detach().clone()
            return {"valid_loss": 1.0, "valid_ppl": 2.7, "valid_bleu": 1.0}

    statistics = [Statistics(random_corpus(tmp_path), (PIECES, PIECES))]
    Trainer(live, [build({"name": "ce"}, "")], statistics, Recorder()).train()
    assert live.state.step == 4
    for name, weight in live.translator.average.weights.items():
        assert torch.equal(seen[name], weight)
    assert not torch.equal(seen["source_embedding.weight"], live.translator.network.output_weight)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, train=120, valid=11)
    return folder


def train(folder: Path, name: str, ranks: int = 1, **changes) -> Path:
    output = folder / name
    changes = {"validate": {"every": 4, "beam": 0}, "stages": STAGES, "ema": 0.9} | changes
    path = write_run(folder, f"{name}.yaml", output=str(output), **changes)
    result = cbmi("train", path) if ranks == 1 else two_ranks("-m", "cbmi", "train", path)
    assert result.returncode == 0, result.stderr.decode()
    return output


def tensors(run: Path, step: int, file: str) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step}" / f"{file}.safetensors")


def assert_equal(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_the_average_does_not_touch_training(task):
    plain = train(task, "plain", ema=0.0, stages=STAGES[:1])
    averaged = train(task, "averaged", stages=STAGES[:1])
    latest = tensors(averaged, 6, "latest")
    for name, weight in tensors(plain, 6, "translator").items():
        assert torch.equal(latest[f"translator/{name}"], weight)
    assert not (plain / "checkpoints" / "step-6" / "latest.safetensors").exists()


@pytest.mark.slow
def test_resumed_it_ends_with_the_same_weights(task):
    """Resumed after the end of a stage and within the next ones."""
    whole = train(task, "uninterrupted", checkpoints={"keep_last": 99})
    for step in (4, 6, 10, 14):
        part = task / f"resumed-{step}"
        shutil.copytree(whole, part, symlinks=True)
        for folder in (part / "checkpoints").iterdir():
            if int(folder.name.removeprefix("step-")) > step:
                shutil.rmtree(folder)
        train(task, part.name, checkpoints={"keep_last": 99})
        for file in ("translator", "language_model", "latest", "optimizer"):
            assert_equal(tensors(part, 16, file), tensors(whole, 16, file))


def without_key_bias(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A bias of attention without the keys' part.

    Softmax does not change if all scores of a query move by the same amount, so the gradient of the
    keys' bias is zero except for rounding, which Adam scales up.
    """
    parts = {"self_attention.inputs.bias": (3, 1), "cross_attention.memory.bias": (2, 0)}
    for ending, (count, of_keys) in parts.items():
        if name.endswith(ending):
            rest = [part for place, part in enumerate(tensor.chunk(count)) if place != of_keys]
            return torch.cat(rest)
    return tensor


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_average_as_one(task, parallel):
    settings = {"model": without_dropout(), "parallel": parallel}
    one = train(task, f"one-{parallel}", batch={"tokens": 200}, **settings)
    two = train(task, f"two-{parallel}", ranks=2, batch={"tokens": 100}, **settings)
    for file in ("translator", "language_model", "latest"):
        ours = tensors(two, 16, file)
        theirs = tensors(one, 16, file)
        assert ours.keys() == theirs.keys()
        for name in ours:
            own = without_key_bias(name, ours[name])
            assert torch.allclose(own, without_key_bias(name, theirs[name]), atol=3e-5), name
    # The tolerance would tell the averaged weights from the latest.
    name = "source_embedding.weight"
    latest = tensors(two, 16, "latest")[f"translator/{name}"]
    distance = tensors(two, 16, "translator")[name] - latest
    assert distance.abs().max() > 6e-4
