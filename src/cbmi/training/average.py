"""Averages of checkpoints: often a little better than any of them."""

from __future__ import annotations

from pathlib import Path

import torch

from cbmi.errors import UserError
from cbmi.progress import say
from cbmi.training import checkpoint as store
from cbmi.training.run import Run


def average(run: Run, count: int, kind: str) -> Path:
    """Average the weights of the `count` last or best checkpoints of the last stage into
    `checkpoints/average-KIND-COUNT`."""
    run.config()
    folders = [folder for folder in store.all_checkpoints(run.checkpoints) if store.damage(folder) is None]
    states = {folder: store.read_state(folder) for folder in folders}
    stage = states[folders[-1]].stage if folders else 0
    folders = [folder for folder in folders if states[folder].stage == stage]
    if kind == "best":
        folders = store.best_first(states, stage)[::-1]
    if len(folders) < count:
        described = "validated checkpoints of its last stage" if kind == "best" else "checkpoints of its last stage"
        raise UserError(
            f"{run.path} has {len(folders)} {described}, not {count}: "
            f"ask for fewer, or keep more (checkpoints.keep_{kind})."
        )
    chosen = sorted(folders[-count:], key=store.step_of)
    names = (store.TRANSLATOR, store.LANGUAGE_MODEL)
    tensors = {name: mean for name in names if (mean := _mean(chosen, name)) is not None}
    if store.TRANSLATOR not in tensors:
        raise UserError(f"{run.path}: a checkpoint was removed while it was read; try again.")
    target = run.checkpoints / f"average-{kind}-{count}"
    newest = store.state_values(states[chosen[-1]]) | {"score": None}
    store.save_checkpoint(target, tensors, newest)
    say(f"Averaged {', '.join(folder.name for folder in chosen)}")
    return target


def _mean(folders: list[Path], name: str) -> dict[str, torch.Tensor] | None:
    """The mean of one network's weights, added up in float64; None where a checkpoint does not have it."""
    sums: dict[str, torch.Tensor] = {}
    for folder in folders:
        tensors = store.load_tensors(folder, name)
        if tensors is None:
            return None
        for key, value in tensors.items():
            sums[key] = sums[key] + value.double() if key in sums else value.double()
    return {key: (value / len(folders)).float() for key, value in sums.items()}
