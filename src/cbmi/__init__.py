"""cbmi: train translation models by deciding, token by token, how much each training token should count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbmi.training.trained import Trained

__version__ = "0.1.0"


def load(run: str, checkpoint: str | None = None, device: str = "auto") -> Trained:
    """A trained run: `cbmi.load("runs/x").translate(["A sentence."])`."""
    from cbmi.training.trained import Trained

    return Trained(run, checkpoint, device)


def __getattr__(name: str) -> Any:
    """`cbmi.objectives` and the other rooms are imported when they are first used."""
    import importlib

    if name in {"objectives", "model", "data", "decoding", "evaluation", "training", "analysis", "config"}:
        return importlib.import_module(f"cbmi.{name}")
    raise AttributeError(f"module 'cbmi' has no attribute '{name}'")
