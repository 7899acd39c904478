"""The training loop: stages, steps, validation, checkpoints. It knows no objective by name."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from cbmi.config import StageSettings
from cbmi.data.statistics import Statistics
from cbmi.errors import UserError
from cbmi.objectives import Objective
from cbmi.progress import Bar, bar, counted, say
from cbmi.signals import stop_signals
from cbmi.training.batching.mixing import mixing_of
from cbmi.training.cache import Interrupted
from cbmi.training.live_run import LiveRun
from cbmi.training.log import OnRecord, TrainingLog, figures
from cbmi.training.records import Figures
from cbmi.training.stage import StageSession, open_stage
from cbmi.training.validation import Validator

# Ranks agree this often, in steps, on whether one of them was asked to stop.
STEPS_BETWEEN_AGREEMENTS = 10
SHOWN = {"valid_ppl": "ppl", "valid_lm_ppl": "language model's ppl", "valid_bleu": "BLEU"}


class Trainer:
    """Takes a run through what is left of its stages."""

    def __init__(
        self,
        live: LiveRun,
        objectives: Sequence[Objective],
        statistics: Sequence[Statistics],
        validator: Validator | None,
        on_record: OnRecord | None = None,
    ) -> None:
        """`statistics`: of each segmentation that epochs are trained on in turn.

        `on_record` is called with every record of the log, on the first rank.
        """
        self.live = live
        self.objectives = objectives
        self.statistics = statistics
        self.validator = validator
        self.on_record = on_record
        self.config = live.config
        self.world = live.world
        self.state = live.state
        self.stop_signal: int | None = None  # that this process has received
        self.stopping = False

    def train(self) -> None:
        """Train what is left of the stages; `stopping`: it was stopped before the end."""
        log = None
        if self.world.first:
            log = TrainingLog(self.live.run.log, self.state.step, self.config, self.on_record)
        try:
            with stop_signals(self._receive_signal):
                self._train_stages(log)
        finally:
            if log:
                log.close()

    def _train_stages(self, log: TrainingLog | None) -> None:
        for number in range(self.state.stage, len(self.config.stages)):
            if number > self.state.stage:
                self.live.begin_stage(number)
            if not self._stage_over():
                with suppress(Interrupted):
                    self._train_stage(number, log)
            elif not self.state.stage_done:
                self._end_stage_here(log)
            if self.stopping:
                break

    def _end_stage_here(self, log: TrainingLog | None) -> None:
        """A stage that was cut short to the steps that are done ends as any other does."""
        if self.validator is not None and self.state.score is None:
            self._validate(log)
        self.state.stage_done = True
        self.live.save()

    def summary(self) -> str:
        """What is trained on what, for the person at the terminal."""
        device = self.world.device
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
        else:
            threads = torch.get_num_threads()
            name = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
        if self.world.size > 1:
            name = f"{self.world.size} × {name}"
        precision = str(self.live.precision).removeprefix("torch.")
        weights = sum(p.numel() for p in self.live.translator.network.parameters())
        tokens = self.state.step_tokens
        lengths = self.statistics[0].corpus.lengths()
        mixing = mixing_of(self.statistics[0].corpus.meta, self.config.data)
        share = mixing.share() if mixing else 1
        steps = max(1, round(int(lengths.sum(axis=1).max()) * share / tokens))
        too_long = int((lengths.max(axis=0) > tokens).sum())
        remark = ""
        if too_long:
            longer = "1 pair is" if too_long == 1 else f"{too_long:,} pairs are"
            remark = f"; {longer} longer than that, and each is a step of its own"
        return (
            f"Training on {name}, in {precision}: a translator of {weights / 1e6:,.1f} million "
            f"weights, {tokens:,} tokens per step, about {counted(steps, 'step')} per epoch{remark}"
        )

    def _stage(self) -> StageSettings:
        return self.config.stages[self.state.stage]

    def _stage_over(self) -> bool:
        """A stage that patience ended continues if it has more now; one made longer, too."""
        ended_early = self.state.ended_early(self.config.validate_.patience)
        return ended_early or self.state.stage_step >= self._stage().steps

    def _out_of_patience(self) -> bool:
        return self.state.out_of_patience(self.config.validate_.patience)

    def _train_stage(self, number: int, log: TrainingLog | None) -> None:
        stage = self.config.stages[number]
        objective = self.objectives[number]
        self._report_new_length(stage)
        self.state.stage_steps = stage.steps
        with (
            open_stage(
                self.live, stage, objective, self.statistics, self._asked_to_stop
            ) as session,
            bar(
                f"Stage {stage.name}",
                stage.steps,
                "steps",
                done=self.state.stage_step,
                quiet=not self.world.first,
            ) as progress,
        ):
            self.state.stage_done = False
            while not self._stage_over() and not self.stopping:
                session.step()
                self._after_step(session, progress, log)

    def _report_new_length(self, stage: StageSettings) -> None:
        """A schedule that ends with its stage follows the stage's new length from here on."""
        before = self.state.stage_steps
        schedule = self.config.optimizer.schedule
        if before in (0, stage.steps) or schedule == "inverse-sqrt" or not self.world.first:
            return
        say(
            f"Stage {stage.name} now has {stage.steps:,} steps instead of {before:,}: from step "
            f"{self.state.stage_step + 1:,} on, the learning rate is that of the {schedule} "
            "schedule of the new length."
        )

    def _after_step(self, session: StageSession, progress: Bar, log: TrainingLog | None) -> None:
        """Log, validate and save, each when it is due."""
        state = self.state
        stage_step = state.stage_step
        is_last = stage_step == self._stage().steps
        validation_every = self.config.validate_.every
        save_every = self.config.checkpoints.every or validation_every
        self._agree_to_stop()
        validate = self.validator is not None and (is_last or stage_step % validation_every == 0)
        save = validate or is_last or self.stopping or stage_step % save_every == 0
        if save:
            self._require_finite(self.live.is_finite())

        # A record before every checkpoint: a run resumed there continues from the same sums.
        note = None
        if save or state.step % self.config.log.every == 0:
            note = self._log_figures(session, log)
        progress.advance(1, note)

        with session.paused():
            state.score = None
            if validate:
                self._validate(log)
            ended_early = validate and self._out_of_patience() and not is_last
            state.stage_done = is_last or ended_early
            if ended_early and self.world.first:
                name = self._stage().name
                say(f"Stage {name} ends: {state.stale} validations without a new best.")
            if save:
                self.live.save()

    def _log_figures(self, session: StageSession, log: TrainingLog | None) -> str:
        """Write a record; returns a short summary for the progress bar."""
        state = self.state
        meter = session.stepper.meter
        loss_figures = figures(meter.read())
        self._require_finite(math.isfinite(loss_figures["loss"]))
        record: Figures = {"step": state.step, "stage": self._stage().name, "epoch": state.epoch}
        record.update(loss_figures)
        record.update(meter.quantiles())
        record["lr"] = session.learning_rate()
        for name, norm in session.stepper.grad_norms.items():
            record[name] = float(norm)
        speed = session.read_throughput()
        record.update(speed)
        if log:
            log.write(record)
        note = (
            f"loss {loss_figures['loss']:.3f}, ppl {loss_figures['ppl']:,.2f}, "
            f"{speed['tokens_per_second']:,.0f} tokens/s"
        )
        if self.world.device.type == "cuda":
            note += f", MFU {speed['mfu']:.0%}"
        return note

    def _require_finite(self, finite: bool) -> None:
        """Stop if loss or weights are NaN or infinite: such weights are never saved."""
        if not finite:
            raise UserError(
                f"{self.live.run.path}: loss or weights are NaN or infinite at step "
                f"{self.state.step}; start again with a lower optimizer.peak_lr, a longer "
                "warmup, or precision=fp32 (with an objective of your own, check first that its "
                "weights are finite)."
            )

    def _validate(self, log: TrainingLog | None) -> None:
        assert self.validator is not None
        live = self.live
        state = self.state
        with live.weights_to_use():
            language_model = None
            if live.language_model is not None:
                language_model = live.unsharded(live.language_model)
            result = self.validator.validate(
                live.unsharded(live.translator.network),
                language_model,
                live.precision,
                state.fusion,
            )
        self._require_finite(math.isfinite(result["valid_loss"]))
        state.score = result.get("valid_bleu", -result["valid_loss"])
        state.scored_by = self.config.validate_.scored_by()
        if state.best_score is None or state.score > state.best_score:
            state.best_score = state.score
            state.best_step = state.step
            state.stale = 0
        else:
            state.stale += 1
        if log:
            stage = self._stage().name
            log.write({"step": state.step, "stage": stage, **result})
            shown = []
            for key, name in SHOWN.items():
                if key in result:
                    shown.append(f"{name} {result[key]:,.2f}")
            remark = "" if state.stale else " (the best so far)"
            say(f"Step {state.step:,} ({stage}), validation: {', '.join(shown)}{remark}")

    def _agree_to_stop(self) -> None:
        if self.world.size == 1 or self.state.step % STEPS_BETWEEN_AGREEMENTS == 0:
            self._asked_to_stop()

    def _asked_to_stop(self) -> bool:
        """Whether any process was asked to stop; all of them have to call this."""
        self.stopping = self.world.any(self.stop_signal is not None)
        return self.stopping

    def _receive_signal(self, number: int, frame: Any) -> None:
        """SIGTERM and Ctrl-C let the step finish and save; a second Ctrl-C interrupts at once."""
        self.stop_signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
