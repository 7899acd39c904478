"""From scores of tokens to a loss: one small file per family, one table of all of them."""

from __future__ import annotations

from cbmi.objectives.base import NEEDS, Need, Objective, TokenScores
from cbmi.objectives.cbmi import cbmi_weights
from cbmi.objectives.listing import list_objectives
from cbmi.objectives.registry import TABLE, build, name_of
from cbmi.objectives.weighting import Weighting

__all__ = [
    "NEEDS",
    "TABLE",
    "Need",
    "Objective",
    "TokenScores",
    "Weighting",
    "build",
    "cbmi_weights",
    "list_objectives",
    "name_of",
]
