"""One step: what its gradients are divided by, and which of them reach which network."""

from __future__ import annotations

import pytest
import torch
from tasks import PIECES, WORLD, random_corpus

from cbmi.config import OptimizerSettings
from cbmi.model import LanguageModel, Translator
from cbmi.model.layers import Shape
from cbmi.objectives import build
from cbmi.training.batching.builder import BatchBuilder, Segmentation
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.stage_inputs import StageInputs
from cbmi.training.step import Stepper

SHAPE = Shape(16, 32, 2, 1, 1)  # no dropout
OPTIMIZER = OptimizerSettings(warmup=0, peak_lr=1e-2)


def new_stepper(**objective) -> Stepper:
    """Both networks are trained."""
    torch.manual_seed(0)
    return Stepper(
        objective=build(objective, "test"),
        translator=Learner(
            Translator(SHAPE, PIECES, PIECES, shared=True), OPTIMIZER, WORLD, torch.float32
        ),
        language_model=Learner(LanguageModel(SHAPE, PIECES), OPTIMIZER, WORLD, torch.float32),
        stage_inputs=StageInputs(),
        smoothing=0.1,
        precision=torch.float32,
        world=WORLD,
        meter=Meter(WORLD),
    )


def step(stepper: Stepper, corpus, accumulate: int) -> None:
    """The first step of a plan, in so many micro-batches."""
    builder = BatchBuilder([Segmentation(corpus, {})], 150, accumulate, 1, WORLD)
    batch = next(builder.batches(0, 0, 1, None))
    assert len(batch.micro_batches) == accumulate
    stepper.prepare_update(1e-3)
    stepper.compute([pinned.to_device(WORLD.device) for pinned in batch.micro_batches])


@pytest.mark.parametrize("name", ["ce", "cbmi", "self-paced"])
def test_micro_batches_add_up_to_the_step(tmp_path, name):
    """Their losses are divided by the tokens of the whole step, not by their own."""
    corpus = random_corpus(tmp_path)
    norms = []
    for accumulate in (1, 3):
        stepper = new_stepper(name=name)
        step(stepper, corpus, accumulate)
        norms.append({key: float(norm) for key, norm in stepper.grad_norms.items()})
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_carry_no_gradient_into_the_language_model(tmp_path, accumulate):
    """It learns by its own loss alone, whatever its scores are used for."""
    corpus = random_corpus(tmp_path)
    weights = []
    for objective in ({"name": "ce"}, {"name": "cbmi", "scale_sentence": 0.0, "scale_token": 0.5}):
        stepper = new_stepper(**objective)
        step(stepper, corpus, accumulate)
        weights.append(stepper.language_model.network.output_weight)
    assert torch.equal(weights[0], weights[1])
