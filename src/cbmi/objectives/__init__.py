"""Scores of tokens to loss; one small file a family, one table of all of them."""

from __future__ import annotations

from typing import Any

from cbmi.config import check, nearest
from cbmi.errors import UserError
from cbmi.objectives.base import Objective, TokenScores
from cbmi.objectives.cbmi import Cbmi, cbmi_weights
from cbmi.objectives.cross_entropy import CrossEntropy

__all__ = ["TABLE", "Objective", "TokenScores", "build", "cbmi_weights"]

TABLE: dict[str, type] = {
    "ce": CrossEntropy,
    "cbmi": Cbmi,
}


def build(choice: dict[str, Any], where: str) -> Objective:
    """The objective that a stage names, e.g. {"name": "cbmi", "scale_token": 0.1}; `where` is for errors."""
    name = choice["name"]
    if name not in TABLE:
        raise UserError(f"{where}: unknown objective '{name}'{nearest(name, TABLE)}.")
    return check(TABLE[name], {key: value for key, value in choice.items() if key != "name"}, where)
