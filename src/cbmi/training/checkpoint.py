"""Checkpoints: safetensors and JSON in a folder that exists whole or not at all.

checkpoints/step-N/translator.safetensors, language_model.safetensors
                               weights to use: with `ema` the averaged ones
                   optimizer.safetensors
                   latest.safetensors
                               with `ema`: the weights of the last update, which training continues
                   state.json  where training stands
                   manifest.json
                               SHA-256 of each file above: damage is recognised
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from cbmi.digests import sha256
from cbmi.errors import UserError
from cbmi.files import (
    atomic_folder,
    atomic_link,
    disk_errors,
    read_json,
    remove_folder,
    remove_litter_in,
    require_ordinary,
    to_json,
    unused_name,
)
from cbmi.model.fusion import FusionKind
from cbmi.progress import say
from cbmi.training.sharding import shard_like

FORMAT = 1
TRANSLATOR = "translator"
LANGUAGE_MODEL = "language_model"
OPTIMIZER = "optimizer"
LATEST = "latest"


@dataclass
class TrainingState:
    """Where training stands: with the weights and Adam's moments, all that a resumed run needs."""

    step: int = 0  # over all stages
    stage: int = 0
    stage_step: int = 0
    stage_done: bool = False
    epoch: int = 0
    batch: int = 0  # the next batch of the epoch
    stage_epoch: int = 0  # in which the stage began: its batches take their shape from it
    schedule_step: int = 0  # steps since the optimizer (re)started
    best_step: int | None = None  # of this stage
    best_score: float | None = None  # higher is better: BLEU, or minus the loss
    stale: int = 0  # validations since the best
    score: float | None = None  # of this checkpoint, if it was validated
    scored_by: str = ""  # how: other scores are not comparable
    fusion: FusionKind | None = None  # of translator and language model in translation
    step_tokens: int = 0  # the size of a step, which the plan of batches depends on
    scalers: dict[str, Any] = field(default_factory=dict)  # fp16's loss scaling
    averaged: dict[str, int] = field(default_factory=dict)  # updates in each network's average
    stage_steps: int = 0  # the length of the stage: what its learning rates were chosen for
    made_with: dict[str, Any] = field(default_factory=dict)  # see `belonging`

    def out_of_patience(self, patience: int) -> bool:
        """Whether so many validations have passed without a new best; `patience` 0: never."""
        return bool(patience) and self.stale >= patience

    def ended_early(self, patience: int) -> bool:
        """Whether the stage is over because patience ran out."""
        return self.stage_done and self.out_of_patience(patience)


def folder_name(step: int) -> str:
    return f"step-{step}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def save_checkpoint(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: TrainingState
) -> None:
    """Write a checkpoint: `tensors` maps a file's name to its tensors."""
    with atomic_folder(folder) as temporary:
        for name, group in tensors.items():
            plain = {key: value.detach().cpu().contiguous() for key, value in group.items()}
            (temporary / f"{name}.safetensors").write_bytes(save(plain))
        values = {"format": FORMAT, **asdict(state)}
        (temporary / "state.json").write_text(to_json(values), encoding="utf-8")
        digests = {file.name: sha256(file) for file in sorted(temporary.iterdir())}
        (temporary / "manifest.json").write_text(to_json(digests), encoding="utf-8")


def damage(folder: Path, wanted: Sequence[str] = ()) -> str | None:
    """What is wrong with a checkpoint, or None.

    If `wanted` names files of tensors, the others do not matter. A file that cannot be read, for
    lack of permission, say, is not damaged: that is an error.
    """
    require_ordinary(folder / "manifest.json")
    try:
        digests = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if {"state.json", f"{TRANSLATOR}.safetensors"} - set(digests):
            return "its manifest is incomplete"
        for name, expected in digests.items():
            if name != Path(name).name:
                return "manifest.json is damaged"
            stem, _, suffix = name.partition(".")
            if wanted and suffix == "safetensors" and stem not in wanted:
                continue
            if sha256(folder / name) != expected:
                return f"{name} is damaged"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (NotADirectoryError, IsADirectoryError, ValueError, AttributeError, TypeError):
        return "manifest.json is damaged"
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be read: {error.strerror}.") from None
    return None


def all_checkpoints(checkpoints: Path) -> list[Path]:
    """Folders of training's checkpoints, oldest first."""
    found = [p for p in checkpoints.glob("step-*") if p.name.removeprefix("step-").isdecimal()]
    return sorted(found, key=step_of)


def newest_intact(checkpoints: Path) -> Path | None:
    """The newest checkpoint that is intact, or None if there has never been one.

    Damaged ones that are newer are reported and set aside, once there is one to continue from. If
    there is none, nothing is touched: a run that has had checkpoints does not start from scratch
    by itself.
    """
    problems: dict[Path, str] = {}
    for folder in reversed(all_checkpoints(checkpoints)):
        problem = damage(folder)
        if problem is None:
            _set_aside(problems, folder)
            return folder
        problems[folder] = problem
    if problems:
        newest = next(iter(problems))
        raise UserError(
            f"{checkpoints}: no checkpoint is intact ({newest.name}: {problems[newest]}): restore "
            "one, or start from scratch with cbmi train --restart."
        )
    if any(checkpoints.glob("damaged-*")):
        raise UserError(
            f"{checkpoints}: only damaged checkpoints are left: restore one, or start from scratch "
            "with cbmi train --restart."
        )
    return None


def _set_aside(problems: Mapping[Path, str], used: Path) -> None:
    """Rename damaged checkpoints, and say so."""
    for folder, problem in problems.items():
        aside = unused_name(folder.with_name(f"damaged-{folder.name}"))
        say(f"{folder}: {problem}; it is set aside as {aside.name}, and {used.name} is used.")
        with disk_errors(aside):
            os.replace(folder, aside)


def read_state(folder: Path) -> TrainingState:
    """Where training stood; refuses a checkpoint of another version."""
    values = read_json(folder / "state.json")
    other_version = UserError(f"{folder}: this checkpoint was written by another version of cbmi.")
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise other_version
    try:
        state = TrainingState(**{key: value for key, value in values.items() if key != "format"})
    except TypeError:  # a key that this version does not know
        raise other_version from None
    for name, default in asdict(TrainingState()).items():
        kind = type(default)
        if kind in (int, bool, dict) and type(getattr(state, name)) is not kind:
            raise UserError(f"{folder / 'state.json'}: '{name}' is not of the right kind.")
        if kind is int and getattr(state, name) < 0:
            raise UserError(f"{folder / 'state.json'}: '{name}' is negative.")
    return state


def shapes(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a file, from its header: nothing is read or allocated."""
    path = folder / f"{name}.safetensors"
    require_ordinary(path)
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            return {key: tuple(file.get_slice(key).get_shape()) for key in names}
    except FileNotFoundError:
        raise UserError(f"{folder}: {path.name} is missing.") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from None


def load_tensors(folder: Path, name: str) -> dict[str, Tensor] | None:
    """The tensors of one file of a checkpoint, or None if it has no such file."""
    path = folder / f"{name}.safetensors"
    if not path.exists():
        return None
    require_ordinary(path)
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from None
    return tensors


def require_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a file that every checkpoint has."""
    tensors = load_tensors(folder, name)
    if tensors is None:
        raise UserError(f"{folder}: {name}.safetensors is missing.")
    return tensors


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Each parameter once, under its first name (shared matrices have several)."""
    return dict(network.named_parameters())


def load_weights(network: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copy tensors into a network; refuses other names or shapes."""
    own = weights_of(network)
    fits = own.keys() == tensors.keys()
    fits = fits and all(own[name].shape == tensors[name].shape for name in own)
    if not fits:
        raise UserError(f"{where}: these weights are of a network of another shape or vocabulary.")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(shard_like(tensors[name], parameter))


def point_to(link: Path, folder: Path) -> None:
    """Make the link `run/best` point to a checkpoint, in one step."""
    with atomic_link(link) as temporary:
        temporary.symlink_to(os.path.relpath(folder, link.parent))


def states_of(checkpoints: Path) -> dict[Path, TrainingState]:
    """Where training stood at each checkpoint that can be read, oldest first."""
    states = {}
    for folder in all_checkpoints(checkpoints):
        with suppress(UserError):
            states[folder] = read_state(folder)
    return states


def best_first(states: Mapping[Path, TrainingState], now: TrainingState) -> list[Path]:
    """The checkpoints of this stage that were validated as it is now, the best first.

    Those of older versions do not say how they were validated.
    """
    scores = {}
    for folder, state in states.items():
        is_comparable = state.stage == now.stage and state.scored_by in ("", now.scored_by)
        if is_comparable and state.score is not None:
            scores[folder] = state.score
    return sorted(scores, key=lambda folder: scores[folder], reverse=True)


def retain(checkpoints: Path, now: TrainingState, keep_last: int, keep_best: int) -> None:
    """Remove old checkpoints.

    The last ones, this stage's best ones, the ends of stages and damaged ones stay.
    """
    states = states_of(checkpoints)
    last = list(states)[-keep_last:]
    best = best_first(states, now)[:keep_best]
    for folder, state in states.items():
        in_use = state.step in (now.step, now.best_step)
        if not (folder in last or folder in best or state.stage_done or in_use):
            remove_folder(folder)


def sweep(checkpoints: Path) -> None:
    """Remove what an interrupted save or removal left behind."""
    remove_litter_in(checkpoints, "step-")
