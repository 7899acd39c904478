"""A run's networks and where training stands: new, taken from another run, resumed, saved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from cbmi.config import RunSettings, StageSettings
from cbmi.errors import UserError
from cbmi.model import LanguageModel, Translator
from cbmi.model.layers import Stack
from cbmi.progress import say
from cbmi.training import checkpoint as store
from cbmi.training.belonging import check_belongs, made_with
from cbmi.training.checkpoint import (
    LANGUAGE_MODEL,
    LATEST,
    OPTIMIZER,
    TRANSLATOR,
    TrainingState,
)
from cbmi.training.learner import Learner
from cbmi.training.networks import new_language_model, new_translator
from cbmi.training.run import RunDirectory
from cbmi.training.sharding import is_sharded, local_shard, unsharded
from cbmi.training.world import World, choose_precision

Network = TypeVar("Network", Translator, LanguageModel)


class LiveRun:
    """The networks, optimizers and training state of a run, in memory: what a checkpoint saves."""

    def __init__(
        self, config: RunSettings, run: RunDirectory, sizes: tuple[int, int], world: World
    ) -> None:
        """`sizes`: pieces of the source and of the target vocabulary."""
        self.config = config
        self.run = run
        self.sizes = sizes
        self.world = world
        self.precision = choose_precision(config.precision, world.device)
        if config.parallel == "fsdp" and self.precision == torch.float16:
            raise UserError(
                "parallel: fsdp cannot be combined with fp16's loss scaling; set precision=bf16 or "
                "parallel=ddp."
            )
        step_tokens = config.batch.tokens * config.batch.accumulate * world.size
        self.state = TrainingState(step_tokens=step_tokens)
        self.translator = self._learner(new_translator(config, sizes, config.seed))
        self.language_model: LanguageModel | None = None
        self.language_model_learner: Learner[LanguageModel] | None = None  # where it is trained

    def _learner(self, network: Network) -> Learner[Network]:
        network.to(self.world.device)
        for module in network.modules():
            if isinstance(module, Stack):
                module.recompute = self.config.memory.recompute_layers
        return Learner(
            network,
            self.config.optimizer,
            self.world,
            self.precision,
            self.config.parallel,
            self.config.ema,
        )

    def resume(self) -> bool:
        """Resume from the newest intact checkpoint, if there is one."""
        newest = None
        if self.world.first:
            store.sweep(self.run.checkpoints)
            newest = store.newest_intact(self.run.checkpoints)
        folder = self.world.gather(newest)[0]
        if folder is None:
            if os.path.lexists(self.run.best):
                raise UserError(
                    f"{self.run.path}: this run has been trained before, but its checkpoints are "
                    "gone: restore them, or start from scratch with cbmi train --restart."
                )
            return False
        self.state = store.read_state(folder)
        check_belongs(self.run, self.config, self.state.made_with, folder, data=True)
        self.load_networks(folder)
        self._load_learners(folder)
        best = self._best_remaining() if self.world.first else (None, None)
        self.state.best_step, self.state.best_score = self.world.gather(best)[0]
        self._score_as_now()
        if self.world.first:
            self._point_to_best()
            say(f"Resuming from {folder}")
            if self.accumulate != self.config.batch.accumulate:
                say(
                    f"Its steps of {self.state.step_tokens:,} tokens are done in "
                    f"{self.accumulate} micro-batches here."
                )
        return True

    @property
    def accumulate(self) -> int:
        """Micro-batches of a step on each rank.

        A run keeps the size of its steps when it is resumed with more or fewer ranks.
        """
        return -(-self.state.step_tokens // (self.config.batch.tokens * self.world.size))

    def load_networks(self, folder: Path) -> None:
        """Take the weights to use of a checkpoint, of this run or of another."""
        store.load_weights(
            self.translator.network, store.require_tensors(folder, TRANSLATOR), folder
        )
        if self.translator.average is not None:
            self.translator.average.restart()
        tensors = store.load_tensors(folder, LANGUAGE_MODEL)
        if tensors is not None:
            network = new_language_model(self.config, self.sizes[1])
            self.language_model = network.to(self.world.device)
            store.load_weights(self.language_model, tensors, folder)

    def _load_learners(self, folder: Path) -> None:
        """Take what training needs besides the weights to use, once the networks have those."""
        self.set_language_model_mode(self.config.stages[self.state.stage])
        moments = store.load_tensors(folder, OPTIMIZER) or {}
        for name, learner in self._learners().items():
            learner.load_moments(name, moments)
            if self.state.scalers.get(name):
                learner.scaler.load_state_dict(self.state.scalers[name])
            if learner.average is not None and name in self.state.averaged:
                # Its weights are the averaged ones, from which the average has just started.
                learner.average.updates = self.state.averaged[name]
                latest = _with_prefix(store.require_tensors(folder, LATEST), name)
                store.load_weights(learner.network, latest, folder)

    def _learners(self) -> dict[str, Learner[Translator] | Learner[LanguageModel]]:
        learners: dict[str, Learner[Translator] | Learner[LanguageModel]]
        learners = {TRANSLATOR: self.translator}
        if self.language_model_learner is not None:
            learners[LANGUAGE_MODEL] = self.language_model_learner
        return learners

    def set_language_model_mode(self, stage: StageSettings) -> None:
        """Have the language model trained, or frozen, as the stage says."""
        if stage.language_model in ("train", "joint"):
            if self.language_model is None:
                network = new_language_model(self.config, self.sizes[1], self.config.seed)
                self.language_model = network.to(self.world.device)
            self.language_model.requires_grad_(True).train()
            if self.language_model_learner is None:
                self.language_model_learner = self._learner(self.language_model)
        else:
            if self.language_model_learner is not None:
                # From now on it scores: with the averaged weights, if there are any.
                average = self.language_model_learner.average
                if average is not None:
                    average.copy_to_network()
                self.language_model_learner = None
            if self.language_model is not None:
                network = self.unsharded(self.language_model)
                self.language_model = network.requires_grad_(False).eval()

    def require_language_model(self) -> LanguageModel:
        if self.language_model is None:
            raise UserError(
                f"{self.run.path}: this stage needs a language model, but there is none."
            )
        return self.language_model

    @contextmanager
    def weights_to_use(self) -> Iterator[None]:
        """All networks in training have, in this block, the weights that are validated and used."""
        with ExitStack() as stack:
            for learner in self._learners().values():
                stack.enter_context(learner.with_weights_to_use())
            yield

    def unsharded(self, network: Network) -> Network:
        """The network with all of its weights on this rank: itself, unless it is sharded."""
        if not is_sharded(network):
            return network
        copy: nn.Module
        if isinstance(network, Translator):
            copy = new_translator(self.config, self.sizes)
        else:
            copy = new_language_model(self.config, self.sizes[1])
        copy.to(self.world.device)
        weights = {}
        for name, parameter in store.weights_of(network).items():
            weights[name] = unsharded(parameter.detach())
        store.load_weights(copy, weights, self.run.path)
        return cast(Network, copy.train(network.training))  # type: ignore[redundant-cast]

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors as they go to disk, on the first rank; the others take part in the gathering."""
        gathered = {}
        for name, tensor in tensors.items():
            whole = unsharded(tensor.detach())
            if self.world.first:
                gathered[name] = whole.cpu()
        return gathered

    def teacher(self, stage: StageSettings) -> Translator:
        """The translator as it was when the stage began, kept in the run directory meanwhile."""
        folder = self.run.teachers / stage.name
        if self.state.stage_step == 0:
            weights = self._gathered(self.translator.weights_to_use())
            if self.world.first:
                store.save_checkpoint(folder, {TRANSLATOR: weights}, self.state)
        self.world.barrier()
        problem = store.damage(folder)
        if problem:
            raise UserError(f"{folder}: {problem}; without it stage {stage.name} cannot continue.")
        network = new_translator(self.config, self.sizes)
        store.load_weights(network, store.require_tensors(folder, TRANSLATOR), folder)
        return network.to(self.world.device).eval().requires_grad_(False)

    def begin_stage(self, number: int) -> None:
        """Set the state to the start of a stage; restart the optimizer if the stage says so."""
        state = self.state
        stages = self.config.stages
        if stages[number].groups != stages[number - 1].groups and state.batch > 0:
            # The epoch would go on with other batches: a new one begins.
            state.epoch += 1
            state.batch = 0
        state.stage = number
        state.stage_step = 0
        state.stage_done = False
        state.stage_epoch = state.epoch
        state.stage_steps = 0
        state.best_step = None
        state.best_score = None
        state.score = None
        state.stale = 0
        if stages[number].restart_optimizer:
            state.schedule_step = 0
            for learner in self._learners().values():
                learner.restart()

    def is_finite(self) -> bool:
        """Whether the weights of all networks in training are finite, on every rank."""
        finite = []
        for learner in self._learners().values():
            for parameter in learner.network.parameters():
                finite.append(local_shard(parameter.detach()).isfinite().all())
        return not self.world.any(not bool(torch.stack(finite).all()))

    def save(self) -> None:
        """Write a checkpoint, point to the best, remove old ones."""
        state = self.state
        state.made_with = made_with(self.run, self.config)
        learners = self._learners()
        state.scalers = {name: learner.scaler.state_dict() for name, learner in learners.items()}
        tensors = {}
        moments: dict[str, Tensor] = {}
        latest: dict[str, Tensor] = {}
        state.averaged = {}
        for name, learner in learners.items():
            tensors[name] = self._gathered(learner.weights_to_use())
            moments.update(learner.moments(name))
            if learner.average is not None:
                state.averaged[name] = learner.average.updates
                for parameter_name, parameter in store.weights_of(learner.network).items():
                    latest[f"{name}/{parameter_name}"] = parameter
        if self.language_model is not None and LANGUAGE_MODEL not in tensors:
            tensors[LANGUAGE_MODEL] = self._gathered(store.weights_of(self.language_model))
        tensors[OPTIMIZER] = self._gathered(moments)
        if latest:
            tensors[LATEST] = self._gathered(latest)
        if self.world.first:
            folder = self.run.checkpoints / store.folder_name(state.step)
            store.save_checkpoint(folder, tensors, state)
            self._point_to_best()
            keep = self.config.checkpoints
            store.retain(self.run.checkpoints, state, keep.keep_last, keep.keep_best)
        self.world.barrier()

    def _score_as_now(self) -> None:
        """Forget the best score if validation has changed since: the next one is the best so far.

        Its checkpoint stays the one to use until then.
        """
        state = self.state
        scored_by = self.config.validate_.scored_by()
        if state.scored_by not in ("", scored_by) and state.best_score is not None:
            state.best_score = None
            state.stale = 0
            state.scored_by = scored_by
            if self.world.first:
                say("Validation has changed, so the best checkpoint is chosen again from now on.")

    def _best_remaining(self) -> tuple[int | None, float | None]:
        """The stage's best step and its score.

        If someone has removed that checkpoint, the best of those that remain.
        """
        step = self.state.best_step
        checkpoints = self.run.checkpoints
        if step is None or (checkpoints / store.folder_name(step)).exists():
            return step, self.state.best_score
        states = store.states_of(checkpoints)
        best_first = store.best_first(states, self.state)
        best = states[best_first[0]] if best_first else None
        used = store.folder_name(best.step if best else self.state.step)
        missing = checkpoints / store.folder_name(step)
        say(f"{missing}, the best checkpoint, is missing; {used} takes its place.")
        return (best.step, best.score) if best else (None, None)

    def _point_to_best(self) -> None:
        step = self.state.best_step if self.state.best_step is not None else self.state.step
        store.point_to(self.run.best, self.run.checkpoints / store.folder_name(step))


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under `prefix`/, without it."""
    found = {}
    for name, tensor in tensors.items():
        if name.startswith(f"{prefix}/"):
            found[name.removeprefix(f"{prefix}/")] = tensor
    return found
