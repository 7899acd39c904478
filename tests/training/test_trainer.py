"""The training loop: when it logs, validates and saves, and what ends it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import PrivateAttr
from safetensors.torch import load_file
from tasks import (
    PIECES,
    random_corpus,
    read_log,
    run_values,
    tiny_live_run,
    without_dropout,
    write_task,
)
from torch import Tensor

import cbmi
from cbmi.config import RunSettings
from cbmi.data.statistics import Statistics
from cbmi.errors import UserError
from cbmi.objectives import Objective, TokenScores, Weighting, build
from cbmi.schema import check
from cbmi.training import checkpoint as store
from cbmi.training import stage as stage_module
from cbmi.training.trainer import Trainer


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch):
    """The device's speed is not what is tested here."""
    monkeypatch.setattr(stage_module, "matrix_rate", lambda device, precision: 1e9)


class ScriptedValidator:
    """Gives one BLEU score after the other; the last one again and again."""

    def __init__(self, scores: Sequence[float] = (1.0,), loss: float = 2.0) -> None:
        self.scores = list(scores)
        self.loss = loss
        self.calls = 0

    def validate(self, *networks: Any) -> dict[str, float]:
        score = self.scores[min(self.calls, len(self.scores) - 1)]
        self.calls += 1
        return {"valid_loss": self.loss, "valid_ppl": 7.4, "valid_bleu": score}


class NanAfter(Weighting):
    """Weights that are NaN from some step on."""

    step: int
    _calls: int = PrivateAttr(default=0)

    def token_weights(self, scores: TokenScores) -> Tensor:
        self._calls += 1  # one call per step: there is one micro-batch
        return scores.mask * (torch.nan if self._calls > self.step else 1.0)


class Run:
    """A tiny run on a random corpus, as far as it has got; `train` takes it to the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus = random_corpus(folder)
        self.records: list[dict[str, Any]] = []

    def train(
        self,
        stages: Sequence[int] = (10,),
        validator: ScriptedValidator | None = None,
        objective: Objective | None = None,
        on_record=None,
        **changes: Any,
    ) -> Trainer:
        """`stages`: their steps."""
        settings = [{"name": f"stage{n}", "steps": steps} for n, steps in enumerate(stages)]
        changes.setdefault("checkpoints", {"keep_last": 99})
        live = tiny_live_run(self.folder, stages=settings, batch={"tokens": 60}, **changes)
        live.resume()
        objectives = [objective or build(stage.objective, "") for stage in live.config.stages]
        statistics = [Statistics(self.corpus, (PIECES, PIECES))]
        live.run.path.mkdir(exist_ok=True)
        trainer = Trainer(live, objectives, statistics, validator, on_record or self.records.append)
        trainer.train()
        return trainer

    @property
    def path(self) -> Path:
        return self.folder / "run"

    def saved(self) -> list[int]:
        return [store.step_of(path) for path in store.all_checkpoints(self.path / "checkpoints")]

    def logged(self) -> list[int]:
        return [record["step"] for record in read_log(self.path) if "loss" in record]

    def validated(self) -> list[int]:
        return [record["step"] for record in read_log(self.path) if "valid_loss" in record]

    def best(self) -> str:
        return (self.path / "best").resolve().name

    def weights(self, step: int) -> dict[str, Tensor]:
        return load_file(self.path / "checkpoints" / f"step-{step}" / "translator.safetensors")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def every(steps: int, **more: Any) -> dict[str, Any]:
    """Settings: validate this often."""
    return {"validate": {"every": steps, **more}}


def test_it_validates_every_n_steps_and_at_the_end(run):
    run.train([10], ScriptedValidator(), log={"every": 3}, **every(4))
    assert run.validated() == [4, 8, 10]


def test_it_logs_every_n_steps_and_before_each_checkpoint(run):
    run.train([10], ScriptedValidator(), log={"every": 3}, **every(4))
    assert run.logged() == [3, 4, 6, 8, 9, 10]


def test_it_saves_whenever_it_validates(run):
    run.train([10], ScriptedValidator(), **every(4))
    assert run.saved() == [4, 8, 10]


def test_it_saves_more_often_if_asked(run):
    checkpoints = {"every": 3, "keep_last": 99}
    run.train([10], ScriptedValidator(), checkpoints=checkpoints, **every(4))
    assert run.saved() == [3, 4, 6, 8, 9, 10]
    assert run.validated() == [4, 8, 10]


def test_without_a_validation_set_it_only_saves(run):
    trainer = run.train([10], None, **every(4))
    assert run.saved() == [4, 8, 10]
    assert run.validated() == []
    assert run.best() == "step-10"
    assert trainer.state.best_step is None


def test_each_stage_counts_its_own_steps(run):
    run.train([3, 5], ScriptedValidator(), **every(2))
    assert run.validated() == [2, 3, 5, 7, 8]
    stages = [record["stage"] for record in read_log(run.path) if "valid_loss" in record]
    assert stages == ["stage0", "stage0", "stage1", "stage1", "stage1"]


def test_the_end_of_a_stage_is_marked(run):
    run.train([3, 5], ScriptedValidator(), **every(2))
    folders = store.all_checkpoints(run.path / "checkpoints")
    ends = [store.step_of(folder) for folder in folders if store.read_state(folder).stage_done]
    assert ends == [3, 8]


def test_the_best_is_that_of_the_last_stage(run):
    trainer = run.train([4, 4], ScriptedValidator([9.0, 8.0, 1.0, 3.0]), **every(2))
    assert run.validated() == [2, 4, 6, 8]
    assert trainer.state.best_step == 8
    assert trainer.state.best_score == 3.0
    assert run.best() == "step-8"


def test_a_score_that_is_only_equal_is_not_a_new_best(run):
    trainer = run.train([6], ScriptedValidator([5.0, 5.0, 4.0]), **every(2))
    assert trainer.state.best_step == 2
    assert trainer.state.stale == 2
    assert run.best() == "step-2"


def test_without_bleu_the_lowest_loss_is_the_best(run):
    class LossOnly(ScriptedValidator):
        def validate(self, *networks: Any) -> dict[str, float]:
            score = super().validate()["valid_bleu"]
            return {"valid_loss": score, "valid_ppl": 7.4}

    trainer = run.train([6], LossOnly([3.0, 2.0, 2.5]), **every(2))
    assert trainer.state.best_step == 4
    assert trainer.state.best_score == -2.0


def test_patience_ends_a_stage(run):
    validator = ScriptedValidator([1.0, 2.0, 1.5, 1.5, 3.0])
    trainer = run.train([10], validator, **every(1, patience=2))
    assert run.validated() == [1, 2, 3, 4]
    assert trainer.state.stage_done
    assert not trainer.stopping
    assert run.best() == "step-2"


def test_the_next_stage_has_patience_again(run):
    """Scores of the first stage do not count in the second."""
    validator = ScriptedValidator([9.0, 8.0, 7.0, 1.0, 2.0, 1.0, 1.0])
    trainer = run.train([10, 10], validator, **every(1, patience=2))
    assert run.validated() == [1, 2, 3, 4, 5, 6, 7]
    assert trainer.state.stage == 1
    assert trainer.state.best_step == 5


def test_a_stage_that_patience_ended_stays_ended(run):
    run.train([10], ScriptedValidator([2.0, 1.0, 1.0]), **every(1, patience=2))
    trainer = run.train([50], ScriptedValidator([9.0]), **every(1, patience=2))
    assert trainer.state.step == 3
    assert run.saved() == [1, 2, 3]


def test_a_stage_that_patience_ended_continues_with_more_patience(run):
    run.train([10], ScriptedValidator([2.0, 1.0, 1.0]), **every(1, patience=2))
    trainer = run.train([10], ScriptedValidator([3.0, 1.0]), **every(1, patience=3))
    assert trainer.state.step == 7
    assert run.best() == "step-4"


def test_a_stage_may_be_cut_short_where_it_stands(run):
    run.train([4], ScriptedValidator([1.0, 2.0]), **every(2))
    os.rename(run.path / "checkpoints" / "step-4", run.folder / "step-4")
    trainer = run.train([2, 3], ScriptedValidator([1.0]), **every(2))
    assert trainer.state.step == 5
    assert run.saved() == [2, 4, 5]


def test_a_stage_that_is_cut_short_ends_as_any_other(run):
    """It is validated there, and its last checkpoint stays."""
    keep = {"checkpoints": {"every": 1, "keep_last": 1, "keep_best": 1}}
    run.train([3], ScriptedValidator([1.0]), **every(3), **keep)
    state = store.read_state(run.path / "checkpoints" / "step-3")
    state.stage_done = False  # as after Ctrl-C
    state.score = None
    tensors = {}
    for file in (run.path / "checkpoints" / "step-3").glob("*.safetensors"):
        tensors[file.stem] = load_file(file)
    store.save_checkpoint(run.path / "checkpoints" / "step-3", tensors, state)
    validator = ScriptedValidator([5.0, 1.0])
    run.train([3, 4], validator, **every(2), **keep)
    assert store.read_state(run.path / "checkpoints" / "step-3").stage_done
    assert store.read_state(run.path / "checkpoints" / "step-3").score == 5.0
    assert run.saved() == [3, 5, 7] or run.saved() == [3, 7]


def test_checkpoints_of_older_versions_are_still_the_best(run):
    """They do not say how they were validated."""
    run.train([6], ScriptedValidator([3.0, 2.0, 1.0]), **every(2))
    for folder in store.all_checkpoints(run.path / "checkpoints"):
        state = store.read_state(folder)
        state.scored_by = ""
        tensors = {file.stem: load_file(file) for file in folder.glob("*.safetensors")}
        store.save_checkpoint(folder, tensors, state)
    keep = {"checkpoints": {"keep_last": 1, "keep_best": 3}}
    run.train([8], ScriptedValidator([0.5]), **every(2), **keep)
    assert run.saved() == [2, 4, 6, 8]


def test_scores_of_another_validation_are_not_compared(run, capsys):
    """A lower BLEU with another beam is the best so far; the old best is used until then."""
    run.train([4], ScriptedValidator([9.0, 8.0]), **every(2))
    validate = {"every": 2, "beam": 1}
    run.train([4], ScriptedValidator(), validate=validate)
    assert run.best() == "step-2"
    assert "chosen again from now on" in capsys.readouterr().err
    trainer = run.train([8], ScriptedValidator([5.0, 4.0]), validate=validate)
    assert run.best() == "step-6"
    assert trainer.state.best_score == 5.0


def test_another_learning_rate_counts_from_the_next_step_on(run):
    run.train([3], optimizer={"schedule": "inverse-sqrt", "warmup": 0, "peak_lr": 1e-3})
    run.train([6], optimizer={"schedule": "inverse-sqrt", "warmup": 0, "peak_lr": 1e-4})
    rates = {record["step"]: record["lr"] for record in read_log(run.path)}
    assert rates[3] == pytest.approx(1e-3 / 3**0.5)
    assert rates[4] == pytest.approx(1e-4 / 4**0.5)


def test_a_stage_that_reached_its_end_continues_if_it_is_made_longer(run):
    run.train([4], ScriptedValidator([1.0, 2.0]), **every(2, patience=2))
    trainer = run.train([7], ScriptedValidator([3.0]), **every(2, patience=2))
    assert trainer.state.step == 7
    assert run.validated() == [2, 4, 6, 7]


def test_a_longer_stage_follows_the_schedule_of_its_new_length(run, capsys):
    """After the decay to zero the learning rate rises again, and a message says so."""
    optimizer = {"schedule": "linear", "warmup": 2, "peak_lr": 1.0e-3}
    run.train([6], optimizer=optimizer)
    assert "instead of" not in capsys.readouterr().err
    run.train([10], optimizer=optimizer)
    assert "Stage stage0 now has 10 steps instead of 6: from step 7 on" in capsys.readouterr().err
    rates = {record["step"]: record["lr"] for record in read_log(run.path)}
    assert rates[6] == pytest.approx(1e-3 / 5)
    assert rates[7] == pytest.approx(1e-3 * (1 - 5 / 9))
    assert rates[10] == pytest.approx(1e-3 / 9)


def test_a_stage_that_ends_before_the_warm_up_cannot_decay(tmp_path):
    write_task(tmp_path, train=20, valid=5)
    values = run_values(tmp_path, optimizer={"schedule": "cosine", "warmup": 50})
    with pytest.raises(UserError, match="ends after 8 steps, within the warm-up of 50"):
        cbmi.train(check(RunSettings, values, ""))


def test_a_finished_run_is_not_trained_again(run):
    run.train([4], ScriptedValidator(), **every(2))
    log = (run.path / "log.jsonl").read_text()
    validator = ScriptedValidator()
    run.train([4], validator, **every(2))
    assert validator.calls == 0
    assert (run.path / "log.jsonl").read_text() == log


def test_stages_may_follow_later(run):
    run.train([4], ScriptedValidator(), **every(2))
    trainer = run.train([4, 3], ScriptedValidator(), **every(2))
    assert trainer.state.step == 7
    assert trainer.state.stage == 1
    assert trainer.state.stage_step == 3


def test_a_resumed_run_follows_the_undisturbed_one(run, tmp_path):
    """With dropout and several epochs: the same weights, bit by bit, and the same records."""
    (tmp_path / "whole").mkdir()
    whole = Run(tmp_path / "whole")
    trainer = whole.train([30], **every(5))
    assert trainer.state.epoch >= 2
    for steps in (10, 20, 30):
        run.train([steps], **every(5))
    first = run.weights(30)
    second = whole.weights(30)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    figures = ("step", "epoch", "loss", "grad_norm", "lr")
    ours = [[record[key] for key in figures] for record in read_log(run.path)]
    theirs = [[record[key] for key in figures] for record in read_log(whole.path)]
    assert ours == theirs


def test_a_loss_that_is_nan_ends_the_run_and_is_not_saved(run):
    validator = ScriptedValidator()
    objective = NanAfter(step=5)
    with pytest.raises(UserError, match="step 6"):
        run.train([10], validator, objective, log={"every": 1}, **every(4))
    assert run.saved() == [4]
    assert run.best() == "step-4"
    assert run.logged() == [1, 2, 3, 4, 5]
    assert validator.calls == 1


def test_a_nan_that_no_record_showed_is_not_saved_either(run):
    """Nothing is logged between the NaN and the checkpoint."""
    objective = NanAfter(step=5)
    with pytest.raises(UserError, match="step 8"):
        run.train([10], ScriptedValidator(), objective, log={"every": 100}, **every(4))
    assert run.saved() == [4]


def test_weights_that_become_infinite_are_not_saved(run):
    """The loss before the update was finite, so only the weights show it."""
    optimizer = {"peak_lr": 1e38, "warmup": 0}
    with pytest.raises(UserError, match="step 1"):
        run.train([1], ScriptedValidator(), optimizer=optimizer, **every(4))
    assert run.saved() == []
    assert not (run.path / "best").exists()


def test_a_validation_loss_that_is_nan_ends_the_run(run):
    with pytest.raises(UserError, match="step 4"):
        run.train([10], ScriptedValidator(loss=torch.nan), **every(4))
    assert run.saved() == []
    assert run.validated() == []


def stop_at(step: int, number: int, records: list[dict[str, Any]]):
    """A listener that sends this process a signal at a step."""

    def listener(record: dict[str, Any]) -> None:
        records.append(record)
        if record["step"] == step and "loss" in record:
            signal.raise_signal(number)

    return listener


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_step_finish_and_saves(run, number):
    handler = signal.getsignal(number)
    listener = stop_at(3, number, run.records)
    trainer = run.train([10], ScriptedValidator(), on_record=listener, log={"every": 1}, **every(9))
    assert trainer.stopping
    assert trainer.stop_signal == number
    assert trainer.state.step == 4
    assert run.saved() == [4]
    assert run.logged() == [1, 2, 3, 4]
    assert run.validated() == []
    assert signal.getsignal(number) is handler


def test_a_stopped_run_ends_as_one_that_was_not(run, tmp_path):
    (tmp_path / "whole").mkdir()
    whole = Run(tmp_path / "whole")
    whole.train([10], **every(9))
    run.train([10], on_record=stop_at(3, signal.SIGTERM, []), log={"every": 1}, **every(9))
    trainer = run.train([10], log={"every": 1}, **every(9))
    assert not trainer.stopping
    first = run.weights(10)
    second = whole.weights(10)
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_a_stop_at_the_end_of_a_stage_leaves_the_next_one_untouched(run):
    listener = stop_at(3, signal.SIGTERM, run.records)
    trainer = run.train([4, 4], None, on_record=listener, log={"every": 1}, **every(9))
    assert trainer.stopping
    assert trainer.state.stage == 0
    assert run.saved() == [4]
    again = run.train([4, 4], None, **every(9))
    assert again.state.step == 8


def test_a_second_interrupt_ends_it_at_once(run):
    def listener(record: dict[str, Any]) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.train([10], on_record=listener, log={"every": 1}, **every(9))
    assert run.saved() == []


def test_the_listener_gets_every_record(run):
    run.train([10], ScriptedValidator(), log={"every": 3}, **every(4))
    written = read_log(run.path)
    assert len(written) == 9
    assert [record.keys() for record in run.records] == [record.keys() for record in written]
    for ours, theirs in zip(run.records, written, strict=True):
        assert ours.pop("stage") == theirs.pop("stage")
        assert ours == pytest.approx(theirs, rel=1e-6)


def test_a_listener_cannot_change_the_log(run):
    run.train([2], on_record=lambda record: record.clear(), log={"every": 1}, **every(9))
    assert run.logged() == [1, 2]


def test_the_summary_counts_steps_and_pairs_that_are_too_long(run):
    trainer = run.train([1], **every(9))
    tokens = int(run.corpus.lengths().sum(axis=1).max())
    assert f"60 tokens per step, about {round(tokens / 60)} steps per epoch" in trainer.summary()
    assert "longer" not in trainer.summary()
    trainer.state.step_tokens = 10
    too_long = int((run.corpus.lengths().max(axis=0) > 10).sum())
    assert f"; {too_long} pairs are longer than that" in trainer.summary()


def test_training_from_python(tmp_path, capsys):
    """From text files to a tested run: a mapping in, a run directory out, nothing printed."""
    write_task(tmp_path, train=40, valid=4)
    values = run_values(tmp_path, model=without_dropout(encoder_layers=1, decoder_layers=1))
    values["data"]["test"] = {"one": [str(tmp_path / "test.src"), str(tmp_path / "test.tgt")]}
    before = json.dumps(values)
    records: list[dict[str, Any]] = []
    changes = {"stages.pretrain.steps": 2, "stages.adapt.steps": 3}
    path = cbmi.train(values, on_log=records.append, progress=False, **changes)
    assert path == tmp_path / "run"
    assert json.dumps(values) == before
    assert capsys.readouterr().err == ""
    assert [record["step"] for record in records if "loss" in record] == [1, 2, 3, 4, 5]
    assert len(records) == len(read_log(path))
    assert os.listdir(path / "test")
