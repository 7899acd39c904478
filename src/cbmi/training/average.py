"""Averages of checkpoints: often a little better than any of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from cbmi.errors import UserError
from cbmi.progress import counted, say
from cbmi.training import checkpoint as store
from cbmi.training.run import RunDirectory


def average_checkpoints(run: RunDirectory, count: int, kind: Literal["last", "best"]) -> Path:
    """Average the weights of the `count` last or best checkpoints of the last stage.

    The result is `checkpoints/average-KIND-COUNT`.
    """
    run.config()  # refuses what is not a run directory
    folders = [
        folder for folder in store.all_checkpoints(run.checkpoints) if store.damage(folder) is None
    ]
    states = {folder: store.read_state(folder) for folder in folders}
    newest = states[folders[-1]] if folders else store.TrainingState()
    if kind == "best":
        # The best last, as the newest is.
        candidates = store.best_first(states, newest)[::-1]
        described = "validated checkpoint"
    else:
        candidates = [folder for folder in folders if states[folder].stage == newest.stage]
        described = "checkpoint"
    if len(candidates) < count:
        raise UserError(
            f"{run.path} has {counted(len(candidates), described)} of its last stage, not {count}: "
            f"ask for fewer, or keep more (checkpoints.keep_{kind})."
        )
    chosen = sorted(candidates[-count:], key=store.step_of)
    tensors = {}
    for name in (store.TRANSLATOR, store.LANGUAGE_MODEL):
        mean = _mean(chosen, name)
        if mean is not None:
            tensors[name] = mean
    if store.TRANSLATOR not in tensors:
        raise UserError(f"{run.path}: a checkpoint was removed while it was read; try again.")
    target = run.checkpoints / f"average-{kind}-{count}"
    store.save_checkpoint(target, tensors, replace(states[chosen[-1]], score=None))
    say(f"Averaged {', '.join(folder.name for folder in chosen)}")
    return target


def _mean(folders: list[Path], name: str) -> dict[str, torch.Tensor] | None:
    """The mean of one network's weights, summed in float64; None if a checkpoint lacks it."""
    sums: dict[str, torch.Tensor] = {}
    for folder in folders:
        tensors = store.load_tensors(folder, name)
        if tensors is None:
            return None
        for key, value in tensors.items():
            sums[key] = sums[key] + value.double() if key in sums else value.double()
    return {key: (value / len(folders)).float() for key, value in sums.items()}
