"""What `cbmi.load` takes: a run directory, or a folder that was exported from one."""

from __future__ import annotations

from pathlib import Path

from cbmi.errors import UserError
from cbmi.inference.base import Model
from cbmi.inference.exported import NOTE, ExportedModel
from cbmi.inference.model import TrainedModel


def load_model(
    path: str | Path, checkpoint: str | None = None, device: str = "auto", precision: str = "auto"
) -> Model:
    """The model; `checkpoint` and `precision` are for run directories."""
    if not (Path(path) / NOTE).exists():
        return TrainedModel(path, checkpoint, device, precision)
    if checkpoint is not None:
        raise UserError(f"{path} is an exported model, which has no checkpoints.")
    return ExportedModel(path, device)
