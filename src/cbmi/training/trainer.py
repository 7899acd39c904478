"""The training loop: stages, steps, validation, checkpoints. It knows no objective by name."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cbmi.config import RunConfig, Stage
from cbmi.data.corpus import Corpus
from cbmi.data.plan import EpochPlan
from cbmi.model import LanguageModel
from cbmi.objectives import Objective
from cbmi.progress import Bar, bar, say
from cbmi.training import checkpoint as store
from cbmi.training.checkpoint import LANGUAGE_MODEL, OPTIMIZER, TRANSLATOR, State
from cbmi.training.learner import Learner, learning_rate
from cbmi.training.log import Log, Meter, figures
from cbmi.training.networks import new_language_model, new_translator
from cbmi.training.run import Run
from cbmi.training.step import Stepper, make_parts
from cbmi.training.validation import Validator
from cbmi.training.world import World, choose_precision

STEPS_BETWEEN_AGREEMENTS = 10  # ranks agree this often on whether one of them was asked to stop


class Trainer:
    """A run in progress."""

    def __init__(
        self,
        config: RunConfig,
        run: Run,
        objectives: list[Objective],
        corpus: Corpus,
        validator: Validator | None,
        sizes: tuple[int, int],
        world: World,
    ) -> None:
        self.config, self.run, self.objectives = config, run, objectives
        self.corpus, self.validator, self.sizes, self.world = corpus, validator, sizes, world
        self.precision = choose_precision(config.precision, world.device)
        self.lengths = corpus.lengths()
        self.tokens = config.batch.tokens * config.batch.accumulate * world.size
        self.state = State()
        shared = config.data.vocabulary.shared
        self.translator = self._learner(new_translator(config.model, sizes, shared, config.seed))
        self.language_model: LanguageModel | None = None
        self.language_model_learner: Learner | None = None
        self.plan: EpochPlan | None = None
        self.planned_epoch = -1
        self.stopping = False

    def _learner(self, network: torch.nn.Module) -> Learner:
        network.to(self.world.device)
        return Learner(network, self.config.optimizer, self.world, self.precision)

    # Where training stands

    def resume(self) -> bool:
        """Go on from the newest whole checkpoint, if there is one."""
        if self.world.first:
            store.sweep(self.run.checkpoints)
        folder = store.newest_good(self.run.checkpoints) if self.world.first else None
        folder = self.world.gather(folder)[0]
        if folder is None:
            return False
        self.state = store.read_state(folder)
        self._load_networks(folder)
        moments = store.load_tensors(folder, OPTIMIZER) or {}
        self.translator.load_moments(TRANSLATOR, moments)
        stage = self.config.stages[min(self.state.stage, len(self.config.stages) - 1)]
        self._place_language_model(stage)
        if self.language_model_learner:
            self.language_model_learner.load_moments(LANGUAGE_MODEL, moments)
        for name, learner in self._learners().items():
            if self.state.scalers.get(name):
                learner.scaler.load_state_dict(self.state.scalers[name])
        if self.world.first:
            self._point_to_best()
            say(f"Going on from {folder}")
        return True

    def initialise_from(self, folder: Path) -> None:
        """Take the weights of another run's checkpoint."""
        self._load_networks(folder)

    def _load_networks(self, folder: Path) -> None:
        store.load_weights(self.translator.network, store.load_tensors(folder, TRANSLATOR), folder)
        tensors = store.load_tensors(folder, LANGUAGE_MODEL)
        if tensors is not None:
            self.language_model = new_language_model(self.config.model, self.sizes[1]).to(self.world.device)
            store.load_weights(self.language_model, tensors, folder)

    def _learners(self) -> dict[str, Learner]:
        learners = {TRANSLATOR: self.translator, LANGUAGE_MODEL: self.language_model_learner}
        return {name: learner for name, learner in learners.items() if learner}

    def _place_language_model(self, stage: Stage) -> None:
        """Give the language model the part that the stage gives it."""
        if stage.language_model in ("train", "joint"):
            if self.language_model is None:
                network = new_language_model(self.config.model, self.sizes[1], self.config.seed)
                self.language_model = network.to(self.world.device)
            if self.language_model_learner is None:
                self.language_model_learner = self._learner(self.language_model)
            self.language_model.requires_grad_(True).train()
        else:
            self.language_model_learner = None
            if self.language_model is not None:
                self.language_model.requires_grad_(False).eval()

    def save(self) -> None:
        """Write a checkpoint, name the best, let go of old ones."""
        state = self.state
        state.scalers = {name: learner.scaler.state_dict() for name, learner in self._learners().items()}
        if self.world.first:
            tensors = {TRANSLATOR: store.weights_of(self.translator.network)}
            if self.language_model is not None:
                tensors[LANGUAGE_MODEL] = store.weights_of(self.language_model)
            tensors[OPTIMIZER] = {k: v for n, o in self._learners().items() for k, v in o.moments(n).items()}
            folder = self.run.checkpoints / store.folder_name(state.step)
            store.save_checkpoint(folder, tensors, store.state_values(state))
            self._point_to_best()
            keep = self.config.checkpoints
            store.retain(self.run.checkpoints, keep.keep_last, keep.keep_best)
        self.world.barrier()

    def _point_to_best(self) -> None:
        step = self.state.best_step if self.state.best_step is not None else self.state.step
        store.point_to(self.run.best, self.run.checkpoints / store.folder_name(step))

    # The loop

    def train(self) -> bool:
        """Run what is left of the stages; False if it was asked to stop before the end."""
        log = Log(self.run.log, self.state.step, self.config.log.tensorboard) if self.world.first else None
        with self._stop_signals():
            for number in range(self.state.stage, len(self.config.stages)):
                if number > self.state.stage:
                    self._next_stage(number)
                if not self._stage_over():
                    self._train_stage(self.config.stages[number], self.objectives[number], log)
                if self.stopping:
                    break
        if log:
            log.close()
        return not self.stopping

    def _next_stage(self, number: int) -> None:
        state = self.state
        state.stage, state.stage_step, state.stage_done = number, 0, False
        state.best_step = state.best_score = state.score = None
        state.stale = 0
        if self.config.stages[number].restart_optimizer:
            state.schedule_step = 0
            for learner in self._learners().values():
                learner.restart()

    def _stage_over(self) -> bool:
        """Also true after an early stop; a stage that was made longer goes on."""
        stage = self.config.stages[self.state.stage]
        patience = self.config.validate_.patience
        early = self.state.stage_done and patience and self.state.stale >= patience
        return bool(early) or self.state.stage_step >= stage.steps

    def _train_stage(self, stage: Stage, objective: Objective, log: Log | None) -> None:
        self._place_language_model(stage)
        frozen = self.language_model if stage.language_model == "frozen" else None
        self.translator.network.train()
        meter = Meter(self.world)
        stepper = Stepper(
            objective=objective,
            translator=self.translator,
            language_model=self.language_model_learner,
            frozen=frozen,
            smoothing=self.config.label_smoothing,
            precision=self.precision,
            world=self.world,
            meter=meter,
            seed=self.config.seed,
        )
        quiet = not self.world.first
        with bar(f"Stage {stage.name}", stage.steps, "steps", self.state.stage_step, quiet) as progress:
            clock, self.state.stage_done = _Clock(), False
            while not self._stage_over() and not self.stopping:
                clock.tokens += self._step(stepper)
                self._after_step(stage, meter, clock, progress, log)

    def _step(self, stepper: Stepper) -> int:
        state = self.state
        pairs = self._next_batch()
        tokens = int(self.lengths[1][pairs].sum())
        parts = make_parts(self.corpus, pairs, self.config.batch.accumulate, self.world)
        state.step += 1
        state.stage_step += 1
        state.schedule_step += 1
        self.norms = stepper.step(parts, tokens, state.step, state.schedule_step)
        return tokens

    def _next_batch(self) -> np.ndarray:
        """The pairs of the next step; the place in the epoch moves on."""
        state = self.state
        if self.planned_epoch != state.epoch:
            self.plan = EpochPlan(self.lengths, self.tokens, self.config.seed, state.epoch)
            self.planned_epoch = state.epoch
        pairs = self.plan[state.batch]
        state.batch += 1
        if state.batch == len(self.plan):
            state.epoch, state.batch = state.epoch + 1, 0
        return pairs

    def _after_step(self, stage: Stage, meter: Meter, clock: _Clock, progress: Bar, log: Log | None) -> None:
        step, stage_step, note = self.state.step, self.state.stage_step, None
        if step % self.config.log.every == 0 or stage_step == stage.steps:
            record = {"step": step, "stage": stage.name, "epoch": self.state.epoch, **figures(meter.read())}
            record["lr"] = learning_rate(self.state.schedule_step, self.config.optimizer)
            record |= {name: float(norm) for name, norm in self.norms.items()}
            record |= clock.read()
            note = f"loss {record['loss']:.3f}, {record['tokens_per_second']:,.0f} tokens/s"
            if log:
                log.write(record)
        progress.advance(1, note)
        self._agree_to_stop(step)
        self.state.score = None
        last = stage_step == stage.steps
        validated = self.validator and (last or stage_step % self.config.validate_.every == 0)
        if validated:
            with clock.paused():
                self._validate(stage, log)
        every = self.config.checkpoints.every or self.config.validate_.every
        self.state.stage_done = last or (bool(validated) and self._patience_is_over())
        if validated or self.state.stage_done or self.stopping or stage_step % every == 0:
            with clock.paused():
                self.save()

    def _validate(self, stage: Stage, log: Log | None) -> None:
        state = self.state
        result = self.validator.validate(self.translator.network, self.language_model, self.precision)
        state.score = result.get("valid_bleu", -result["valid_loss"])
        if state.best_score is None or state.score > state.best_score:
            state.best_score, state.best_step, state.stale = state.score, state.step, 0
        else:
            state.stale += 1
        if log:
            log.write({"step": state.step, "stage": stage.name, **result})
            shown = ", ".join(f"{key.removeprefix('valid_')} {value:.3f}" for key, value in result.items())
            say(f"Step {state.step:,} ({stage.name}), validation: {shown}{' *' if not state.stale else ''}")

    def _patience_is_over(self) -> bool:
        patience = self.config.validate_.patience
        return bool(patience) and self.state.stale >= patience

    # Being asked to stop

    def _agree_to_stop(self, step: int) -> None:
        if self.world.size > 1 and step % STEPS_BETWEEN_AGREEMENTS == 0:
            self.stopping = self.world.any(self.asked_to_stop)
        elif self.world.size == 1:
            self.stopping = self.asked_to_stop

    @contextmanager
    def _stop_signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C let the step finish and save; a second Ctrl-C interrupts at once."""
        self.asked_to_stop = False

        def ask(number: int, frame: Any) -> None:
            self.asked_to_stop = True
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
        seconds = time.monotonic() - self.since
        result = {"tokens_per_second": self.tokens / max(seconds, 1e-9), "seconds": seconds}
        self.__init__()
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.since += time.monotonic() - begun
