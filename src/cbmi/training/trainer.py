"""The training loop: stages, steps, validation, checkpoints. It knows no objective by name."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cbmi.config import Stage
from cbmi.data.prepare import vocabulary_files
from cbmi.data.statistics import Statistics
from cbmi.errors import UserError
from cbmi.model import kernels
from cbmi.model.layers import POSITIONS
from cbmi.objectives import Objective
from cbmi.progress import Bar, bar, say
from cbmi.signals import stop_signals
from cbmi.training.cache import Interrupted, ScoreCache, Scorer, fill_cache
from cbmi.training.graph import GraphSteps, PlainSteps
from cbmi.training.learner import learning_rate
from cbmi.training.live_run import LiveRun
from cbmi.training.loader import Loader, Recipe
from cbmi.training.log import Log, Meter, figures
from cbmi.training.step import Stepper
from cbmi.training.supply import Supply, frequency_of_pieces, numbers_of_tokens
from cbmi.training.validation import Validator
from cbmi.training.work import Work, language_model_flops, matrix_rate, passes, translator_flops

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
        self.stop_signal: int | None = None  # that this process has received
        self.stopping = False

    def train(self) -> None:
        """Run what is left of the stages; `stopping` says whether it was asked to stop before the end."""
        log = None
        if self.world.first:
            log = Log(self.live.run.log, self.state.step, self.config.log.tensorboard)
        with stop_signals(self._ask_to_stop):
            for number in range(self.state.stage, len(self.config.stages)):
                if number > self.state.stage:
                    self.live.begin_stage(number)
                if not self._stage_over():
                    with suppress(Interrupted):
                        self._train_stage(self.config.stages[number], self.objectives[number], log)
                if self.stopping:
                    break
        if log:
            log.close()

    def summary(self) -> str:
        """What is trained on what, for the person at the terminal."""
        device, weights = self.world.device, sum(p.numel() for p in self.live.translator.network.parameters())
        on_gpu, tokens, threads = device.type == "cuda", self.state.step_tokens, torch.get_num_threads()
        name = torch.cuda.get_device_name(device) if on_gpu else f"CPU, {threads} thread{'s' * (threads > 1)}"
        ranks = f"{self.world.size} × " if self.world.size > 1 else ""
        precision = str(self.live.precision).removeprefix("torch.")
        steps = max(1, round(int(self.lengths.sum(axis=1).max()) / tokens))
        alone = int((self.lengths.max(axis=0) > tokens).sum())
        longer = f"; {alone:,} pairs are longer than that, and each is a step of its own" if alone else ""
        return (
            f"Training on {ranks}{name}, in {precision}: a translator of {weights / 1e6:,.1f} million weights, "
            f"{tokens:,} tokens per step, about {steps:,} steps once through the corpus{longer}"
        )

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
        title, quiet = f"Stage {stage.name}", not self.world.first
        with (
            self.running(stage, objective) as running,
            bar(title, stage.steps, "steps", self.state.stage_step, quiet) as progress,
        ):
            self.state.stage_done = False
            while not self._stage_over() and not self.stopping:
                self.step(running)
                self._after_step(running, progress, log)

    @contextmanager
    def running(self, stage: Stage, objective: Objective) -> Iterator[Running]:
        """A stage, ready to go on step by step."""
        live = self.live
        live.place_language_model(stage)
        live.translator.network.train()
        self.state.fusion = objective.fusion
        stepper = Stepper(
            objective=objective,
            translator=live.translator,
            language_model=live.language_model_learner,
            supply=self._supply(stage, objective),
            smoothing=self.config.label_smoothing,
            precision=live.precision,
            world=self.world,
            meter=Meter(self.world),
            head_tokens=self.config.memory.head_tokens,
        )
        if "distribution" in objective.needs:
            torch.compiler.reset()  # each objective's term is compiled on its own
        steps = GraphSteps(stepper) if self._graphs() else PlainSteps(stepper)
        least = self._least_time(stage, objective)
        with self._loader(stepper.supply, fixed_shape=self._graphs()) as loader:
            yield Running(stepper, steps, _Clock(loader, least))

    def step(self, running: Running) -> None:
        batch, state = running.clock.loader.next(), self.state
        state.epoch, state.batch = batch.epoch, batch.batch
        state.step += 1
        state.stage_step += 1
        state.schedule_step += 1
        running.stepper.schedule(state.schedule_step)
        running.steps.run(batch.parts)
        running.clock.work += batch.work

    def _graphs(self) -> bool:
        """Whether steps are replayed from a CUDA graph: not among several processes, nor with fp16's loss scaling."""
        alone, model = self.world.size == 1, self.config.model
        chosen = self.world.device.type == "cuda" and kernels.wanted()
        fitting = model.width // model.heads <= 128 and self.lengths.max() <= POSITIONS
        return chosen and alone and fitting and self.live.precision == torch.bfloat16

    def _supply(self, stage: Stage, objective: Objective) -> Supply:
        numbers = numbers_of_tokens(objective, self.statistics)
        if stage.language_model == "cached":
            numbers["lm"] = self._cached_scores(stage)
        return Supply(
            frozen=self.live.language_model if stage.language_model == "frozen" else None,
            teacher=self.live.teacher(stage) if "teacher" in objective.needs else None,
            frequency=frequency_of_pieces(objective, self.statistics, self.world.device),
            numbers=numbers,
        )

    def _cached_scores(self, stage: Stage) -> np.ndarray:
        """log p_LM of every target token of the corpus."""
        live = self.live
        cache = ScoreCache(live.run.cache / stage.name, self.corpus, stage.cache_precision)
        vocabulary = vocabulary_files(live.run.vocab, self.config.data.vocabulary.shared)[1]
        identity = cache.identity(live.language_model, vocabulary, live.precision) if self.world.first else {}
        recipe = self._recipe({})
        scorer = Scorer(live.language_model, live.precision, self.world, self._asked_to_stop)
        return fill_cache(cache, identity, scorer, recipe, self.state.epoch)

    def _recipe(self, numbers: dict[str, np.ndarray]) -> Recipe:
        accumulate, seed = self.live.accumulate, self.config.seed
        return Recipe(self.corpus, self.lengths, self.state.step_tokens, accumulate, seed, self.world, numbers)

    def _least_time(self, stage: Stage, objective: Objective) -> Callable[[Work], float]:
        """Seconds that a large matrix product would take, on all ranks, for the arithmetic of some work."""
        model, pieces = self.config.model, self.live.sizes[1]
        of_translator, of_language_model = passes(stage.language_model, objective)
        possible = matrix_rate(self.world.device, self.live.precision) * self.world.size

        def seconds(work: Work) -> float:
            own, other = translator_flops(work, model, pieces), language_model_flops(work, model, pieces)
            return (of_translator * own + of_language_model * other) / possible

        return seconds

    def _loader(self, supply: Supply, fixed_shape: bool) -> Loader:
        state, recipe = self.state, self._recipe(supply.numbers)
        capacity = recipe.capacity(state.stage_epoch) if fixed_shape else None
        return Loader(recipe.batches(state.epoch, state.batch, state.step + 1, capacity))

    def _after_step(self, running: Running, progress: Bar, log: Log | None) -> None:
        state, stage = self.state, self._stage()
        last = state.stage_step == stage.steps
        every = self.config.checkpoints.every or self.config.validate_.every
        validating = bool(self.validator) and (last or state.stage_step % self.config.validate_.every == 0)
        self._agree_to_stop()
        saving = validating or last or self.stopping or state.stage_step % every == 0
        if saving:
            self._check(self.live.finite())
        # A record before every checkpoint: a run that goes on from there counts on from the same place.
        note = self._log_figures(running, log) if saving or state.step % self.config.log.every == 0 else None
        progress.advance(1, note)
        state.score = None
        with running.clock.paused():
            if validating:
                self._validate(log)
            state.stage_done = last or (validating and self._out_of_patience())
            if state.stage_done and not last and log:
                say(f"Stage {stage.name} ends: {state.stale} validations without a new best.")
            if saving:
                self.live.save()

    def _log_figures(self, running: Running, log: Log | None) -> str:
        """Write a record; gives its gist for the progress bar."""
        state, stepper = self.state, running.stepper
        record = {"step": state.step, "stage": self._stage().name, "epoch": state.epoch}
        record |= figures(stepper.meter.read()) | stepper.meter.quantiles()
        self._check(math.isfinite(record["loss"]))
        record["lr"] = learning_rate(state.schedule_step, self.config.optimizer)
        record |= {name: float(norm) for name, norm in stepper.norms.items()} | running.clock.read()
        if log:
            log.write(record)
        note = f"loss {record['loss']:.3f}, ppl {record['ppl']:,.2f}, {record['tokens_per_second']:,.0f} tokens/s"
        return note + (f", MFU {record['mfu']:.0%}" if self.world.device.type == "cuda" else "")

    def _check(self, finite: bool) -> None:
        """Weights that are no numbers, or give none, are never saved and never the best."""
        if not finite:
            raise UserError(
                f"{self.live.run.path}: loss or weights are not numbers at step {self.state.step}; begin anew with "
                "a lower optimizer.peak_lr, a longer warmup, or precision=fp32 (with an objective of your own, "
                "see first whether its weights are numbers)."
            )

    def _validate(self, log: Log | None) -> None:
        state, live = self.state, self.live
        translator = live.whole(live.translator.network)
        language_model = live.whole(live.language_model) if live.language_model else None
        result = self.validator.validate(translator, language_model, live.precision, state.fusion)
        self._check(math.isfinite(result["valid_loss"]))
        state.score = result.get("valid_bleu", -result["valid_loss"])
        if state.best_score is None or state.score > state.best_score:
            state.best_score, state.best_step, state.stale = state.score, state.step, 0
        else:
            state.stale += 1
        if log:
            name = self._stage().name
            log.write({"step": state.step, "stage": name, **result})
            named = {"valid_ppl": "ppl", "valid_lm_ppl": "language model's ppl", "valid_bleu": "BLEU"}
            shown = ", ".join(f"{named[key]} {value:,.2f}" for key, value in result.items() if key in named)
            say(f"Step {state.step:,} ({name}), validation: {shown}{'' if state.stale else ' (the best so far)'}")

    def _agree_to_stop(self) -> None:
        if self.world.size == 1 or self.state.step % STEPS_BETWEEN_AGREEMENTS == 0:
            self._asked_to_stop()

    def _asked_to_stop(self) -> bool:
        """Whether this process or, by the agreement of all, any of them was asked to stop."""
        self.stopping = self.world.any(self.stop_signal is not None)
        return self.stopping

    def _ask_to_stop(self, number: int, frame: Any) -> None:
        """SIGTERM and Ctrl-C let the step finish and save; a second Ctrl-C interrupts at once."""
        self.stop_signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Running:
    """A stage under way."""

    stepper: Stepper
    steps: PlainSteps
    clock: _Clock


class _Clock:
    """Time spent training and work done since the last reading."""

    def __init__(self, loader: Loader, least: Callable[[Work], float]) -> None:
        """`least`: seconds that the arithmetic alone would take."""
        self.loader, self.least, self.work, self.since = loader, least, Work(), time.monotonic()

    def read(self) -> dict[str, float]:
        now = time.monotonic()
        seconds = max(now - self.since, 1e-9)
        result = {"tokens_per_second": self.work.target / seconds, "seconds": seconds}
        result["mfu"] = self.least(self.work) / seconds
        result["waiting"] = self.loader.waited / seconds  # share of the time, for batches
        self.work, self.since, self.loader.waited = Work(), now, 0.0
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.since += time.monotonic() - begun
