"""A run's networks and state: placed for a stage, saved, resumed."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from tasks import tiny_live_run
from torch import nn

from cbmi.errors import UserError
from cbmi.training import live_run as module
from cbmi.training.checkpoint import TrainingState
from cbmi.training.learner import Learner
from cbmi.training.live_run import LiveRun

STAGES = [
    {"name": "pretrain", "language_model": "train", "steps": 8},
    {"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 8},
    {"name": "joint", "objective": "cbmi", "language_model": "joint", "steps": 8},
]
CE = [{"name": "ce", "language_model": "off", "steps": 8}]
KEEP_ALL = {"keep_last": 9, "keep_best": 9}


def new_run(folder: Path, stages=STAGES, **changes) -> LiveRun:
    return tiny_live_run(folder, stages=stages, checkpoints=KEEP_ALL, **changes)


def update(learner: Learner, step: int = 1) -> None:
    """One update, with a gradient that is a function of the weights alone."""
    loss = torch.stack([p.square().sum() for p in learner.network.parameters()]).sum()
    learner.backward(loss, sync=True)
    learner.prepare_update(1e-3 / step)
    learner.update()


def weights(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    if first.keys() != second.keys():
        return False
    return all(torch.equal(first[name], second[name]) for name in first)


def moments(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.moments("x").items()}


def trained(folder: Path, **changes) -> LiveRun:
    """In its first stage, with two updates of both networks."""
    live = new_run(folder, **changes)
    live.set_language_model_mode(live.config.stages[0])
    for step in (1, 2):
        update(live.translator, step)
        update(live.language_model_learner, step)
    live.state.step = 2
    live.state.stage_step = 2
    live.state.schedule_step = 2
    return live


def test_networks_are_a_function_of_the_seed(tmp_path):
    runs = [new_run(tmp_path, seed=seed) for seed in (1, 1, 2)]
    for live in runs:
        live.set_language_model_mode(live.config.stages[0])
    for network in ("translator", "language model"):
        first, same, other = (
            weights(live.translator.network if network == "translator" else live.language_model)
            for live in runs
        )
        assert equal(first, same)
        assert not equal(first, other)


def test_a_new_stage_starts_its_own_count(tmp_path):
    live = trained(tmp_path)
    live.state = TrainingState(
        step=8,
        stage_step=8,
        stage_done=True,
        epoch=3,
        batch=5,
        schedule_step=8,
        best_step=4,
        best_score=20.0,
        stale=1,
        score=19.0,
        step_tokens=200,
    )
    live.begin_stage(1)
    expected = TrainingState(
        step=8, stage=1, epoch=3, batch=5, stage_epoch=3, step_tokens=200, schedule_step=0
    )
    assert live.state == expected
    assert moments(live.translator) == {}
    assert moments(live.language_model_learner) == {}


def test_a_stage_may_keep_the_optimizer_and_its_schedule(tmp_path):
    stages = [STAGES[0], STAGES[1] | {"restart_optimizer": False}]
    live = trained(tmp_path, stages=stages)
    before = moments(live.translator)
    live.begin_stage(1)
    assert live.state.schedule_step == 2
    assert live.state.stage_step == 0
    assert before
    assert equal(moments(live.translator), before)


def test_the_language_model_is_trained_where_the_stage_says_so(tmp_path):
    live = new_run(tmp_path)
    assert live.language_model is None
    live.set_language_model_mode(live.config.stages[0])
    assert live.language_model_learner.network is live.language_model
    assert live.language_model.training
    assert all(p.requires_grad for p in live.language_model.parameters())


def test_it_is_frozen_as_it_is_and_trained_further(tmp_path):
    live = trained(tmp_path)
    network = live.language_model
    before = weights(network)
    live.set_language_model_mode(live.config.stages[1])
    assert live.language_model is network
    assert live.language_model_learner is None
    assert not network.training
    assert not any(p.requires_grad for p in network.parameters())
    live.set_language_model_mode(live.config.stages[2])
    assert live.language_model_learner.network is network
    assert network.training
    assert all(p.requires_grad for p in network.parameters())
    assert equal(weights(network), before)


def test_placing_it_twice_keeps_its_optimizer(tmp_path):
    live = trained(tmp_path)
    learner = live.language_model_learner
    live.set_language_model_mode(live.config.stages[0])
    assert live.language_model_learner is learner
    assert moments(learner)


def test_a_stage_without_one_makes_none(tmp_path):
    live = new_run(tmp_path, stages=CE)
    live.set_language_model_mode(live.config.stages[0])
    assert live.language_model is None
    with pytest.raises(UserError):
        live.require_language_model()


def test_there_is_nothing_to_resume_at_first(tmp_path):
    live = new_run(tmp_path)
    before = weights(live.translator.network)
    assert not live.resume()
    assert live.state == TrainingState(step_tokens=200)
    assert equal(weights(live.translator.network), before)


def test_a_resumed_run_is_the_one_that_was_saved(tmp_path):
    live = trained(tmp_path)
    live.state.epoch = 1
    live.state.batch = 3
    live.state.best_step = 2
    live.state.best_score = 12.5
    live.state.score = 12.5
    live.save()
    again = new_run(tmp_path)
    assert not equal(weights(again.translator.network), weights(live.translator.network))
    assert again.resume()
    assert asdict(again.state) == asdict(live.state)
    for ours, theirs in (
        (again.translator, live.translator),
        (again.language_model_learner, live.language_model_learner),
    ):
        assert equal(weights(ours.network), weights(theirs.network))
        assert moments(theirs)
        assert equal(moments(ours), moments(theirs))
        update(ours, 3)
        update(theirs, 3)
        assert equal(weights(ours.network), weights(theirs.network))


def test_a_run_saved_with_a_frozen_language_model_is_resumed_with_it(tmp_path):
    live = trained(tmp_path)
    live.begin_stage(1)
    live.set_language_model_mode(live.config.stages[1])
    update(live.translator, 3)
    live.state.step = 3
    live.save()
    again = new_run(tmp_path)
    assert again.resume()
    assert again.language_model_learner is None
    assert equal(weights(again.language_model), weights(live.language_model))
    assert not any(p.requires_grad for p in again.language_model.parameters())


def test_saving_changes_nothing(tmp_path):
    live = trained(tmp_path)
    before = weights(live.translator.network)
    moments_before = moments(live.translator)
    live.save()
    assert equal(weights(live.translator.network), before)
    assert equal(moments(live.translator), moments_before)


def test_another_run_takes_the_weights_but_not_the_state(tmp_path):
    live = trained(tmp_path)
    live.save()
    other = new_run(tmp_path, output=str(tmp_path / "other"))
    other.load_networks(live.run.checkpoints / "step-2")
    assert equal(weights(other.translator.network), weights(live.translator.network))
    assert equal(weights(other.language_model), weights(live.language_model))
    assert other.state.step == 0
    assert moments(other.translator) == {}


def validated(folder: Path, scores: dict[int, float | None]) -> LiveRun:
    """A run with a checkpoint at each of these steps; None: not validated."""
    live = new_run(folder, stages=CE)
    state = live.state
    for step, score in scores.items():
        state.step = step
        state.score = score
        if score is not None and (state.best_score is None or score > state.best_score):
            state.best_score = score
            state.best_step = step
        live.save()
    return live


def best_of(live: LiveRun) -> str:
    return live.run.best.resolve().name


def test_the_best_checkpoint_is_pointed_to(tmp_path):
    live = validated(tmp_path, {1: 10.0, 2: 30.0, 3: 20.0, 4: None})
    assert best_of(live) == "step-2"
    again = new_run(tmp_path, stages=CE)
    again.resume()
    assert again.state.step == 4
    assert again.state.best_step == 2
    assert best_of(again) == "step-2"


def test_without_validation_the_newest_is_the_best(tmp_path):
    live = validated(tmp_path, {1: None, 2: None})
    assert live.state.best_step is None
    assert best_of(live) == "step-2"


def test_the_next_best_takes_the_place_of_one_that_was_removed(tmp_path):
    live = validated(tmp_path, {1: 10.0, 2: 30.0, 3: 20.0, 4: None, 5: 5.0})
    shutil.rmtree(live.run.checkpoints / "step-2")
    again = new_run(tmp_path, stages=CE)
    assert again.resume()
    assert again.state.best_step == 3
    assert again.state.best_score == 20.0
    assert best_of(again) == "step-3"


def test_if_no_validated_one_remains_the_newest_takes_its_place(tmp_path):
    live = validated(tmp_path, {1: 10.0, 2: None, 3: None})
    shutil.rmtree(live.run.checkpoints / "step-1")
    again = new_run(tmp_path, stages=CE)
    assert again.resume()
    assert again.state.best_step is None
    assert again.state.best_score is None
    assert best_of(again) == "step-3"


def test_the_best_of_an_earlier_stage_does_not_count(tmp_path):
    live = trained(tmp_path)
    live.state.score = 30.0
    live.save()
    live.begin_stage(1)
    for step, score in ((3, 10.0), (4, 20.0), (5, 15.0)):
        live.state.step = step
        live.state.score = score
        live.state.best_step = 4
        live.save()
    shutil.rmtree(live.run.checkpoints / "step-4")
    again = new_run(tmp_path)
    again.resume()
    assert again.state.best_step == 5


def test_the_teacher_is_the_translator_at_the_start_of_the_stage(tmp_path):
    live = trained(tmp_path)
    live.begin_stage(1)
    stage = live.config.stages[1]
    start = weights(live.translator.network)
    first = live.teacher(stage)
    assert first is not live.translator.network
    update(live.translator, 1)
    live.state.stage_step = 1
    assert not equal(weights(live.translator.network), start)
    for teacher in (first, live.teacher(stage), new_run_at(tmp_path, 1).teacher(stage)):
        assert equal(weights(teacher), start)
        assert not teacher.training
        assert not any(p.requires_grad for p in teacher.parameters())


def new_run_at(folder: Path, stage_step: int) -> LiveRun:
    live = new_run(folder)
    live.state.stage_step = stage_step
    return live


def test_a_teacher_that_is_gone_is_refused(tmp_path):
    live = new_run_at(tmp_path, 3)
    with pytest.raises(UserError, match="teachers"):
        live.teacher(live.config.stages[1])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("network", ["translator", "language_model"])
def test_one_weight_is_enough_not_to_be_finite(tmp_path, network, value):
    live = trained(tmp_path)
    assert live.is_finite()
    chosen = live.translator.network if network == "translator" else live.language_model
    with torch.no_grad():
        list(chosen.parameters())[-1].view(-1)[-1] = value
    assert not live.is_finite()


@pytest.mark.parametrize(("step_tokens", "micro_batches"), [(200, 1), (201, 2), (400, 2), (100, 1)])
def test_steps_keep_their_size(tmp_path, step_tokens, micro_batches):
    """Saved by a run with other batches or more ranks, done here with 200 tokens at a time."""
    live = new_run(tmp_path)
    live.state.step_tokens = step_tokens
    assert live.accumulate == micro_batches


def test_a_step_is_what_all_micro_batches_hold(tmp_path):
    live = new_run(tmp_path, batch={"tokens": 50, "accumulate": 3})
    assert live.state.step_tokens == 150
    assert live.accumulate == 3


def test_sharding_and_loss_scaling_are_refused_together(tmp_path, monkeypatch):
    """Also where precision=auto chose fp16, on a GPU without bfloat16."""
    monkeypatch.setattr(module, "choose_precision", lambda setting, device: torch.float16)
    with pytest.raises(UserError, match="fsdp"):
        new_run(tmp_path, parallel="fsdp")
