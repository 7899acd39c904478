"""Checkpoints: safetensors and JSON in a folder that is there whole or not at all.

checkpoints/step-N/translator.safetensors, language_model.safetensors, optimizer.safetensors
                   state.json       where training stands
                   manifest.json    SHA-256 of each file above: a torn or damaged checkpoint is recognised
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from cbmi.errors import UserError
from cbmi.files import atomic_folder, read_json, remove_folder, sha256, to_json
from cbmi.progress import say

FORMAT = 1
TRANSLATOR, LANGUAGE_MODEL, OPTIMIZER = "translator", "language_model", "optimizer"


@dataclass
class State:
    """Where training stands: with the weights and Adam's moments, all that a resumed run needs."""

    step: int = 0  # over all stages
    stage: int = 0
    stage_step: int = 0
    stage_done: bool = False
    epoch: int = 0
    batch: int = 0  # the next batch of the epoch
    schedule_step: int = 0  # steps since the optimiser (re)started
    best_step: int | None = None  # of this stage
    best_score: float | None = None  # higher is better: BLEU, or minus the loss
    stale: int = 0  # validations since the best
    score: float | None = None  # of this checkpoint, where it was validated
    scalers: dict[str, Any] = field(default_factory=dict)  # fp16's loss scaling


def folder_name(step: int) -> str:
    return f"step-{step}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def save_checkpoint(folder: Path, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    """Write a checkpoint: `tensors` maps a file's name to its tensors."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as temporary:
        for name, group in tensors.items():
            plain = {key: value.detach().cpu().contiguous() for key, value in group.items()}
            (temporary / f"{name}.safetensors").write_bytes(save(plain))
        (temporary / "state.json").write_text(to_json({"format": FORMAT, **state}), encoding="utf-8")
        sums = {file.name: sha256(file) for file in sorted(temporary.iterdir())}
        (temporary / "manifest.json").write_text(to_json(sums), encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        sums = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if {"state.json", f"{TRANSLATOR}.safetensors"} - set(sums):
            return "its manifest is incomplete"
        for name, expected in sums.items():
            if sha256(folder / name) != expected:
                return f"{name} is damaged"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, AttributeError):
        return "manifest.json is damaged"
    return None


def all_checkpoints(checkpoints: Path) -> list[Path]:
    """Folders of training's checkpoints, oldest first."""
    found = [p for p in checkpoints.glob("step-*") if p.name.removeprefix("step-").isdigit()]
    return sorted(found, key=step_of)


def newest_good(checkpoints: Path) -> Path | None:
    """The newest checkpoint that is whole; damaged newer ones are named and passed over."""
    for folder in reversed(all_checkpoints(checkpoints)):
        problem = damage(folder)
        if problem is None:
            return folder
        say(f"{folder}: {problem}; the checkpoint before it is used.")
    return None


def read_state(folder: Path) -> State:
    values = read_json(folder / "state.json")
    if values.pop("format", None) != FORMAT:
        raise UserError(f"{folder}: this checkpoint was written by another version of cbmi.")
    return State(**values)


def state_values(state: State) -> dict[str, Any]:
    return asdict(state)


def load_tensors(folder: Path, name: str) -> dict[str, Tensor] | None:
    """The tensors of one file of a checkpoint, or None where it has no such file."""
    path = folder / f"{name}.safetensors"
    if not path.exists():
        return None
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from None


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Each parameter once, under its first name (shared matrices have several)."""
    return dict(network.named_parameters())


def load_weights(network: nn.Module, tensors: dict[str, Tensor], where: Path) -> None:
    own = weights_of(network)
    if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
        raise UserError(f"{where}: these weights are of a network of another shape or vocabulary.")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def point_to(link: Path, folder: Path) -> None:
    """Make the link `run/best` name a checkpoint, in one step."""
    temporary = link.with_name(f".{link.name}.partial")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(folder, link.parent))
    os.replace(temporary, link)


def retain(checkpoints: Path, keep_last: int, keep_best: int) -> None:
    """Remove old checkpoints, but not the last ones, the best ones and the ends of stages."""
    folders = all_checkpoints(checkpoints)
    states = {folder: read_state(folder) for folder in folders[:-keep_last]}
    scored = [(state.score, step_of(f)) for f in folders if (state := read_state(f)).score is not None]
    best = {step for _, step in sorted(scored, reverse=True)[:keep_best]}
    best.add(read_state(folders[-1]).best_step)
    for folder, state in states.items():
        if step_of(folder) not in best and not state.stage_done:
            remove_folder(folder)


def sweep(checkpoints: Path) -> None:
    """Remove what an interrupted save or removal left behind."""
    for leftover in [*checkpoints.glob(".*.partial"), *checkpoints.glob(".*.removed")]:
        if leftover.is_dir():
            remove_folder(leftover)
