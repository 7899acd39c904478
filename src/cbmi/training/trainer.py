"""The training loop: stages, steps, validation, checkpoints. It knows no objective by name."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from cbmi.config import Stage
from cbmi.data.plan import EpochPlan
from cbmi.data.statistics import Statistics
from cbmi.errors import UserError
from cbmi.objectives import Objective
from cbmi.progress import Bar, bar, say
from cbmi.training.learner import learning_rate
from cbmi.training.live_run import LiveRun
from cbmi.training.log import Log, Meter, figures
from cbmi.training.part import make_parts
from cbmi.training.step import Stepper
from cbmi.training.supply import Supply, frequency_of_pieces, numbers_of_tokens
from cbmi.training.validation import Validator

STEPS_BETWEEN_AGREEMENTS = 10  # ranks agree this often on whether one of them was asked to stop


class Trainer:
    """Takes a run through what is left of its stages."""

    def __init__(
        self, live: LiveRun, objectives: list[Objective], statistics: Statistics, validator: Validator | None
    ) -> None:
        self.live, self.objectives, self.statistics, self.validator = live, objectives, statistics, validator
        self.corpus = corpus = statistics.corpus
        self.config, self.world, self.state = live.config, live.world, live.state
        self.lengths = corpus.lengths()
        self.plan: EpochPlan | None = None
        self.planned_epoch = -1
        self.norms: dict[str, torch.Tensor] = {}
        self.stop_signal: int | None = None  # that this process has received
        self.stopping = False

    def train(self) -> None:
        """Run what is left of the stages; `stopping` says whether it was asked to stop before the end."""
        log = None
        if self.world.first:
            log = Log(self.live.run.log, self.state.step, self.config.log.tensorboard)
        with self._stop_signals():
            for number in range(self.state.stage, len(self.config.stages)):
                if number > self.state.stage:
                    self.live.begin_stage(number)
                if not self._stage_over():
                    self._train_stage(self.config.stages[number], self.objectives[number], log)
                if self.stopping:
                    break
        if log:
            log.close()

    def _stage_over(self) -> bool:
        """A stage that patience ended stays ended; one that was made longer goes on."""
        state = self.state
        return (state.stage_done and self._out_of_patience()) or state.stage_step >= self._stage().steps

    def _stage(self) -> Stage:
        return self.config.stages[self.state.stage]

    def _out_of_patience(self) -> bool:
        patience = self.config.validate_.patience
        return bool(patience) and self.state.stale >= patience

    def _train_stage(self, stage: Stage, objective: Objective, log: Log | None) -> None:
        live = self.live
        live.place_language_model(stage)
        live.translator.network.train()
        self.state.fusion = objective.fusion
        meter = Meter(self.world)
        stepper = Stepper(
            objective=objective,
            translator=live.translator,
            language_model=live.language_model_learner,
            supply=self._supply(stage, objective),
            smoothing=self.config.label_smoothing,
            precision=live.precision,
            world=self.world,
            meter=meter,
            seed=self.config.seed,
        )
        quiet = not self.world.first
        with bar(f"Stage {stage.name}", stage.steps, "steps", self.state.stage_step, quiet) as progress:
            clock, self.state.stage_done = _Clock(), False
            while not self._stage_over() and not self.stopping:
                clock.tokens += self._step(stepper)
                self._after_step(meter, clock, progress, log)

    def _supply(self, stage: Stage, objective: Objective) -> Supply:
        return Supply(
            frozen=self.live.language_model if stage.language_model == "frozen" else None,
            teacher=self.live.teacher(stage) if "teacher" in objective.needs else None,
            frequency=frequency_of_pieces(objective, self.statistics, self.world.device),
            numbers=numbers_of_tokens(objective, self.statistics),
        )

    def _step(self, stepper: Stepper) -> int:
        state = self.state
        pairs = self._next_batch()
        tokens = int(self.lengths[1][pairs].sum())
        parts = make_parts(self.corpus, pairs, self.live.accumulate, self.world, stepper.supply.numbers)
        state.step += 1
        state.stage_step += 1
        state.schedule_step += 1
        self.norms = stepper.step(parts, tokens, state.step, state.schedule_step)
        return tokens

    def _next_batch(self) -> np.ndarray:
        """The pairs of the next step; the place in the epoch moves on."""
        state = self.state
        if self.planned_epoch != state.epoch:
            self.plan = EpochPlan(self.lengths, state.step_tokens, self.config.seed, state.epoch)
            self.planned_epoch = state.epoch
        pairs = self.plan[state.batch]
        state.batch += 1
        if state.batch == len(self.plan):
            state.epoch, state.batch = state.epoch + 1, 0
        return pairs

    def _after_step(self, meter: Meter, clock: _Clock, progress: Bar, log: Log | None) -> None:
        state, stage = self.state, self._stage()
        last = state.stage_step == stage.steps
        every = self.config.checkpoints.every or self.config.validate_.every
        validating = bool(self.validator) and (last or state.stage_step % self.config.validate_.every == 0)
        self._agree_to_stop()
        saving = validating or last or self.stopping or state.stage_step % every == 0
        if saving:
            self._check(meter.loss())
        note = self._log_figures(meter, clock, log) if last or state.step % self.config.log.every == 0 else None
        progress.advance(1, note)
        state.score = None
        with clock.paused():
            if validating:
                self._validate(log)
            state.stage_done = last or (validating and self._out_of_patience())
            if state.stage_done and not last and log:
                say(f"Stage {stage.name} ends: {state.stale} validations without a new best.")
            if saving:
                self.live.save()

    def _log_figures(self, meter: Meter, clock: _Clock, log: Log | None) -> str:
        """Write a record; gives its gist for the progress bar."""
        state = self.state
        record = {"step": state.step, "stage": self._stage().name, "epoch": state.epoch}
        record |= figures(meter.read()) | meter.quantiles()
        self._check(record["loss"])
        record["lr"] = learning_rate(state.schedule_step, self.config.optimizer)
        record |= {name: float(norm) for name, norm in self.norms.items()} | clock.read()
        if log:
            log.write(record)
        return f"loss {record['loss']:.3f}, {record['tokens_per_second']:,.0f} tokens/s"

    def _check(self, loss: float) -> None:
        """Weights that are no numbers are never saved and never the best."""
        if not math.isfinite(loss):
            raise UserError(
                f"{self.live.run.path}: the loss is not a number at step {self.state.step}; begin anew with "
                "a lower optimizer.peak_lr, a longer warmup, or precision=fp32 (with an objective of your own, "
                "see first whether its weights are numbers)."
            )

    def _validate(self, log: Log | None) -> None:
        state, live = self.state, self.live
        result = self.validator.validate(live.translator.network, live.language_model, live.precision, state.fusion)
        state.score = result.get("valid_bleu", -result["valid_loss"])
        if state.best_score is None or state.score > state.best_score:
            state.best_score, state.best_step, state.stale = state.score, state.step, 0
        else:
            state.stale += 1
        if log:
            name = self._stage().name
            log.write({"step": state.step, "stage": name, **result})
            shown = ", ".join(f"{key.removeprefix('valid_')} {value:.3f}" for key, value in result.items())
            say(f"Step {state.step:,} ({name}), validation: {shown}{' *' if not state.stale else ''}")

    def _agree_to_stop(self) -> None:
        if self.world.size == 1:
            self.stopping = self.stop_signal is not None
        elif self.state.step % STEPS_BETWEEN_AGREEMENTS == 0:
            self.stopping = self.world.any(self.stop_signal is not None)

    @contextmanager
    def _stop_signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C let the step finish and save; a second Ctrl-C interrupts at once."""

        def ask(number: int, frame: Any) -> None:
            self.stop_signal = number
            signal.signal(signal.SIGINT, signal.default_int_handler)

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Clock:
    """Time spent training and target tokens seen since the last reading."""

    def __init__(self) -> None:
        self.tokens, self.since = 0, time.monotonic()

    def read(self) -> dict[str, float]:
        now = time.monotonic()
        result = {"tokens_per_second": self.tokens / max(now - self.since, 1e-9), "seconds": now - self.since}
        self.tokens, self.since = 0, now
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.since += time.monotonic() - begun
