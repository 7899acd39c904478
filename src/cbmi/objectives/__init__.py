"""Scores of tokens to loss; one small file a family, one table of all of them."""

from __future__ import annotations

from cbmi.objectives.base import NEEDS, Objective, TokenScores
from cbmi.objectives.cbmi import cbmi_weights
from cbmi.objectives.registry import TABLE, build
from cbmi.objectives.weighting import Weighting

__all__ = ["NEEDS", "TABLE", "Objective", "TokenScores", "Weighting", "build", "cbmi_weights"]
