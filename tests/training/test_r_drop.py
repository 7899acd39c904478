"""R-Drop in a training step, and what must not change it."""

from __future__ import annotations

import pytest
import torch
from tasks import (
    PIECES,
    WORLD,
    cbmi,
    every_objective,
    random_corpus,
    read_log,
    write_run,
    write_task,
)

from cbmi.config import OptimizerSettings
from cbmi.model import LanguageModel, Translator
from cbmi.model.layers import Shape
from cbmi.model.packed import twice
from cbmi.objectives import build
from cbmi.training.batching.builder import BatchBuilder, Segmentation
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.stage_inputs import StageInputs
from cbmi.training.step import Stepper

SHAPE = Shape(8, 16, 2, 1, 1, dropout=0.3)
STRENGTH = 5.0


def new_stepper(objective: str, r_drop: float) -> Stepper:
    torch.manual_seed(0)
    translator = Translator(SHAPE, PIECES, PIECES, shared=True).double()
    language_model = LanguageModel(SHAPE, PIECES).double()
    settings = OptimizerSettings()
    return Stepper(
        objective=build({"name": objective}, "test"),
        translator=Learner(translator, settings, WORLD, torch.float32),
        language_model=Learner(language_model, settings, WORLD, torch.float32),
        stage_inputs=StageInputs(),
        smoothing=0.1,
        precision=torch.float32,
        world=WORLD,
        meter=Meter(WORLD),
        r_drop=r_drop,
    )


def batch(folder, accumulate=1):
    corpus = random_corpus(folder)
    builder = BatchBuilder([Segmentation(corpus, {})], 150, accumulate, 1, WORLD)
    pinned = next(builder.batches(0, 0, 1, None)).micro_batches
    return [one.to_device(WORLD.device) for one in pinned]


@pytest.mark.parametrize("objective", ["ce", "cbmi"])
def test_the_loss_of_a_step(tmp_path, objective):
    """w·(ell + ell')/2 + strength/4·(KL + KL'), with w from the mean of both passes."""
    (micro_batch,) = batch(tmp_path)
    stepper = new_stepper(objective, STRENGTH)
    network = stepper.translator.network
    lm = stepper.language_model.network
    network.runtime.seed = lm.runtime.seed = micro_batch.dropout_seed

    def all_logits(hidden, weight, gold, *, fused):
        return hidden @ weight.T

    # The second pass has the masks of the second half of a doubled batch.
    doubled = network(
        twice(micro_batch.source), twice(micro_batch.inputs), micro_batch.target.ids, all_logits
    )
    log_p, log_q = doubled.log_softmax(1).chunk(2)
    assert not torch.allclose(log_p, log_q)
    gold = micro_batch.target.ids[:, None]
    ell = 0
    nmt = 0
    for log in (log_p, log_q):
        of_gold = log.gather(1, gold)[:, 0]
        nmt = nmt + of_gold / 2
        ell = ell - (0.9 * of_gold + 0.1 * log.mean(1)) / 2
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(1)
    weights = torch.ones_like(ell)
    if objective == "cbmi":
        layout = micro_batch.target.layout
        lm_log_p = lm(micro_batch.inputs, micro_batch.target.ids).log_p
        c = (nmt - lm_log_p).detach()
        count = layout.lengths
        mean = torch.zeros(layout.sentences).double().index_add_(0, layout.sentence, c) / count
        apart = c - mean[layout.sentence]
        variance = torch.zeros(layout.sentences).double()
        variance = variance.index_add_(0, layout.sentence, apart**2) / count
        token = 1 + 0.1 * apart / variance.sqrt()[layout.sentence].clamp(min=1e-30)
        token[variance[layout.sentence] < 1e-20] = 1
        sentence = 1 + 0.3 * (mean - mean.mean()) / mean.std(correction=0)
        weights = token.clamp(min=0) * sentence.clamp(min=0)[layout.sentence]
    expected = (weights * ell + STRENGTH / 4 * divergence).sum()

    stepper.prepare_update(0.0)
    stepper.compute([micro_batch])
    assert stepper.meter.read()["loss"] == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.slow
def test_it_trains_every_objective(tmp_path):
    """All objectives run; the loss has the divergence in it, so it is above the plain one."""
    write_task(tmp_path, train=60, valid=5)
    stages = every_objective(tmp_path, steps=2)
    settings = {"stages": stages, "validate": {"every": 100, "beam": 0}}
    losses = {}
    for strength in (0.0, 5.0):
        run = tmp_path / f"run-{strength}"
        path = write_run(tmp_path, output=str(run), r_drop=strength, **settings)
        result = cbmi("train", path)
        assert result.returncode == 0, result.stderr.decode()
        losses[strength] = [record["loss"] for record in read_log(run) if "loss" in record]
    assert len(losses[5.0]) == len(losses[0.0]) == 4 + 2 * (len(stages) - 1)
    assert losses[5.0][0] > losses[0.0][0]


@pytest.mark.slow
def test_resumed_it_ends_with_the_same_weights(tmp_path):
    write_task(tmp_path, train=60, valid=5)
    settings = {"r_drop": 5.0, "ema": 0.9, "validate": {"every": 3, "beam": 0}}
    stage = {"name": "ce", "objective": "ce", "steps": 6}
    whole = write_run(
        tmp_path, "whole.yaml", output=str(tmp_path / "whole"), stages=[stage], **settings
    )
    assert cbmi("train", whole).returncode == 0
    for steps in (3, 6):
        part = write_run(
            tmp_path,
            "part.yaml",
            output=str(tmp_path / "part"),
            stages=[stage | {"steps": steps}],
            **settings,
        )
        assert cbmi("train", part).returncode == 0
    for file in ("translator", "latest", "optimizer"):
        name = f"checkpoints/step-6/{file}.safetensors"
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_without_dropout_it_is_refused(tmp_path):
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    path = write_run(tmp_path, r_drop=5.0, model={"preset": "tiny", **rates})
    result = cbmi("train", path)
    assert result.returncode == 2
    assert "r_drop: without dropout" in result.stderr.decode()
