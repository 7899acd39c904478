"""A run's networks and where training stands: begun anew, taken from another run, resumed, saved."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from cbmi.config import RunConfig, Stage
from cbmi.errors import UserError
from cbmi.model import LanguageModel, Translator, kernels
from cbmi.model.layers import Stack
from cbmi.progress import say
from cbmi.training import checkpoint as store
from cbmi.training.checkpoint import LANGUAGE_MODEL, OPTIMIZER, TRANSLATOR, State
from cbmi.training.learner import Learner
from cbmi.training.networks import new_language_model, new_translator
from cbmi.training.run import Run
from cbmi.training.sharding import is_sharded, local, whole
from cbmi.training.world import World, choose_precision

Network = TypeVar("Network", bound=nn.Module)


class LiveRun:
    """What a checkpoint holds, alive."""

    def __init__(self, config: RunConfig, run: Run, sizes: tuple[int, int], world: World) -> None:
        self.config, self.run, self.sizes, self.world = config, run, sizes, world
        kernels.use(config.compile == "auto")
        self.precision = choose_precision(config.precision, world.device)
        if config.parallel == "fsdp" and self.precision == torch.float16:
            raise UserError(
                "parallel: fsdp does not go with fp16's loss scaling; say precision=bf16 or parallel=ddp."
            )
        self.state = State(step_tokens=config.batch.tokens * config.batch.accumulate * world.size)
        shared = config.data.vocabulary.shared
        self.translator = self._learner(new_translator(config.model, sizes, shared, config.seed))
        self.language_model: LanguageModel | None = None
        self.language_model_learner: Learner | None = None  # where it learns

    def _learner(self, network: torch.nn.Module) -> Learner:
        network.to(self.world.device)
        for module in network.modules():
            if isinstance(module, Stack):
                module.recompute = self.config.memory.recompute_layers
        return Learner(network, self.config.optimizer, self.world, self.precision, self.config.parallel)

    def resume(self) -> bool:
        """Go on from the newest whole checkpoint, if there is one."""
        if self.world.first:
            store.sweep(self.run.checkpoints)
        folder = store.newest_good(self.run.checkpoints) if self.world.first else None
        folder = self.world.gather(folder)[0]
        if folder is None:
            return False
        self.state = store.read_state(folder)
        self.load_networks(folder)
        self._load_learners(store.load_tensors(folder, OPTIMIZER) or {})
        best = self._best_left() if self.world.first else None
        self.state.best_step, self.state.best_score = self.world.gather(best)[0]
        if self.world.first:
            self._point_to_best()
            say(f"Going on from {folder}")
            if self.accumulate != self.config.batch.accumulate:
                say(f"Its steps of {self.state.step_tokens:,} tokens are done in {self.accumulate} parts here.")
        return True

    @property
    def accumulate(self) -> int:
        """Parts of a step on each rank. A run keeps its steps' size when it goes on with more or fewer ranks."""
        return -(-self.state.step_tokens // (self.config.batch.tokens * self.world.size))

    def load_networks(self, folder: Path) -> None:
        """Take the weights of a checkpoint, of this run or of another."""
        store.load_weights(self.translator.network, store.load_tensors(folder, TRANSLATOR), folder)
        tensors = store.load_tensors(folder, LANGUAGE_MODEL)
        if tensors is not None:
            self.language_model = new_language_model(self.config.model, self.sizes[1]).to(self.world.device)
            store.load_weights(self.language_model, tensors, folder)

    def _load_learners(self, moments: dict[str, torch.Tensor]) -> None:
        self.place_language_model(self.config.stages[self.state.stage])
        for name, learner in self._learners().items():
            learner.load_moments(name, moments)
            if self.state.scalers.get(name):
                learner.scaler.load_state_dict(self.state.scalers[name])

    def _learners(self) -> dict[str, Learner]:
        learners = {TRANSLATOR: self.translator, LANGUAGE_MODEL: self.language_model_learner}
        return {name: learner for name, learner in learners.items() if learner}

    def place_language_model(self, stage: Stage) -> None:
        """Give the language model the part that the stage gives it."""
        if stage.language_model in ("train", "joint"):
            if self.language_model is None:
                network = new_language_model(self.config.model, self.sizes[1], self.config.seed)
                self.language_model = network.to(self.world.device)
            self.language_model.requires_grad_(True).train()
            if self.language_model_learner is None:
                self.language_model_learner = self._learner(self.language_model)
        else:
            self.language_model_learner = None
            if self.language_model is not None:
                self.language_model = self.whole(self.language_model).requires_grad_(False).eval()

    def whole(self, network: Network) -> Network:
        """The network with all of its weights on this rank: itself, unless they are spread over the ranks."""
        if not is_sharded(network):
            return network
        shared = self.config.data.vocabulary.shared
        if isinstance(network, Translator):
            copy = new_translator(self.config.model, self.sizes, shared)
        else:
            copy = new_language_model(self.config.model, self.sizes[1])
        copy.to(self.world.device)
        store.load_weights(copy, {n: whole(p.detach()) for n, p in store.weights_of(network).items()}, self.run.path)
        return copy.train(network.training)

    def _gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors as they go to disk, on the first rank; the others only take part where weights are spread."""
        whole_ones = ((name, whole(tensor.detach())) for name, tensor in tensors.items())
        return {name: tensor.cpu() for name, tensor in whole_ones if self.world.first}

    def teacher(self, stage: Stage) -> Translator:
        """The translator as it was when the stage began, kept in the run directory while the stage goes on."""
        folder = self.run.teachers / stage.name
        if self.state.stage_step == 0:
            tensors = {TRANSLATOR: self._gathered(store.weights_of(self.translator.network))}
            if self.world.first:
                store.save_checkpoint(folder, tensors, store.state_values(self.state))
        self.world.barrier()
        problem = store.damage(folder)
        if problem:
            raise UserError(f"{folder}: {problem}; without it stage {stage.name} cannot go on.")
        network = new_translator(self.config.model, self.sizes, self.config.data.vocabulary.shared)
        store.load_weights(network, store.load_tensors(folder, TRANSLATOR), folder)
        return network.to(self.world.device).eval().requires_grad_(False)

    def begin_stage(self, number: int) -> None:
        state = self.state
        state.stage, state.stage_step, state.stage_done = number, 0, False
        state.stage_epoch = state.epoch
        state.best_step = state.best_score = state.score = None
        state.stale = 0
        if self.config.stages[number].restart_optimizer:
            state.schedule_step = 0
            for learner in self._learners().values():
                learner.restart()

    def finite(self) -> bool:
        """Whether the weights of all that learns are numbers, on every rank."""
        weights = [local(p.detach()) for o in self._learners().values() for p in o.network.parameters()]
        return not self.world.any(not torch.stack([weight.isfinite().all() for weight in weights]).all())

    def save(self) -> None:
        """Write a checkpoint, name the best, let go of old ones."""
        state = self.state
        state.scalers = {name: learner.scaler.state_dict() for name, learner in self._learners().items()}
        tensors = {TRANSLATOR: self._gathered(store.weights_of(self.translator.network))}
        if self.language_model is not None:
            tensors[LANGUAGE_MODEL] = self._gathered(store.weights_of(self.language_model))
        moments = {k: v for n, o in self._learners().items() for k, v in o.moments(n).items()}
        tensors[OPTIMIZER] = self._gathered(moments)
        if self.world.first:
            folder = self.run.checkpoints / store.folder_name(state.step)
            store.save_checkpoint(folder, tensors, store.state_values(state))
            self._point_to_best()
            keep = self.config.checkpoints
            store.retain(self.run.checkpoints, state, keep.keep_last, keep.keep_best)
        self.world.barrier()

    def _best_left(self) -> tuple[int | None, float | None]:
        """The stage's best step and its score; where someone has removed that checkpoint, of those that are left."""
        step, checkpoints = self.state.best_step, self.run.checkpoints
        if step is None or (checkpoints / store.folder_name(step)).exists():
            return step, self.state.best_score
        states = store.states_of(checkpoints)
        left = [states[folder] for folder in store.best_first(states, self.state.stage)]
        best = left[0] if left else None
        used = store.folder_name(best.step if best else self.state.step)
        say(f"{checkpoints / store.folder_name(step)}, the best, is missing; {used} takes its place.")
        return (best.step, best.score) if best else (None, None)

    def _point_to_best(self) -> None:
        step = self.state.best_step if self.state.best_step is not None else self.state.step
        store.point_to(self.run.best, self.run.checkpoints / store.folder_name(step))
