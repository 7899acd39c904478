"""Objectives by name: the table of the package's own, those that other packages register, and `module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cbmi.config import check, nearest
from cbmi.errors import UserError
from cbmi.objectives.base import NEEDS, Objective
from cbmi.objectives.cbmi import Cbmi
from cbmi.objectives.corpus import Bmi, WeightsFile
from cbmi.objectives.cross_entropy import CrossEntropy
from cbmi.objectives.focal import AntiFocal, Focal
from cbmi.objectives.frequency import FrequencyChiSquare, FrequencyExponential
from cbmi.objectives.fusion import FusionPostnorm, FusionPrenorm
from cbmi.objectives.priors import (
    LanguageModelPrior,
    PriorCbmi,
    PriorLanguageModel,
    PriorSelection,
    PriorTranslator,
)
from cbmi.objectives.self_paced import SelfPaced
from cbmi.objectives.weighting import Weighting

SETTINGS_OF_NEEDS = {"samples": ("samples",), "weights": ("file", "per")}  # that the training loop reads
ENTRY_POINTS = "cbmi.objectives"
LANGUAGE_PAIRS = ("wmt14-en-de", "wmt19-zh-en")  # of the presets: the tasks of the paper

TABLE: dict[str, type[Objective]] = {
    "ce": CrossEntropy,
    "freq-exp": FrequencyExponential,
    "freq-chi2": FrequencyChiSquare,
    "bmi": Bmi,
    "focal": Focal,
    "anti-focal": AntiFocal,
    "self-paced": SelfPaced,
    "fusion-prenorm": FusionPrenorm,
    "fusion-postnorm": FusionPostnorm,
    "lm-prior": LanguageModelPrior,
    "cbmi": Cbmi,
    "prior-lm": PriorLanguageModel,
    "prior-tm": PriorTranslator,
    "prior-cbmi": PriorCbmi,
    "prior-selection": PriorSelection,
    "weights-file": WeightsFile,
}


def build(choice: dict[str, Any], where: str) -> Objective:
    """The objective that a stage names, e.g. {"name": "cbmi", "scale_token": 0.1}; `where` is for errors."""
    name = choice["name"]
    if not isinstance(name, str):
        raise UserError(f"{where}: the name of an objective is a word, not {name!r}.")
    kind = find(name, where)
    values = {key: value for key, value in choice.items() if key not in ("name", "preset")}
    objective = check(kind, _preset(kind, choice, where) | values, where)
    problem = _problem(objective)
    if problem:
        raise UserError(f"{where}: '{name}' {problem}.")
    return objective


def _problem(objective: Objective) -> str | None:
    """What is wrong with the class of an objective: for people who write their own."""
    kind = type(objective)
    for need in sorted(objective.needs):
        if need not in NEEDS:
            return f"needs '{need}', which nobody provides{nearest(need, NEEDS)}"
        for setting in SETTINGS_OF_NEEDS.get(need, ()):
            if setting not in kind.model_fields:
                return f"needs '{need}' but has no setting '{setting}'"
    if "distribution" in objective.needs and kind.term is Objective.term:
        return "needs 'distribution' but has no method 'term'"
    if "distribution" not in objective.needs and kind.term is not Objective.term:
        return "has a method 'term' but does not need 'distribution'"
    if isinstance(objective, Weighting) and kind.token_weights is Weighting.token_weights:
        return "has no method 'token_weights'"
    return None


def find(name: str, where: str) -> type[Objective]:
    """The class of an objective: from the table, from another package's entry point, or `module:Class`."""
    if name in TABLE:
        return TABLE[name]
    if ":" in name:
        return _imported(*name.split(":", 1), where)
    others = registered()
    if name in others:
        return _imported(others[name].module, others[name].attr, where)
    raise UserError(f"{where}: unknown objective '{name}'{nearest(name, [*TABLE, *others])}.")


def registered() -> dict[str, EntryPoint]:
    """Objectives of other packages; one that has the name of one of ours is not reached by it."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in TABLE}


def _preset(kind: type[Objective], choice: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings of the paper for a language pair. Where they are the same for all, they are the defaults."""
    if "preset" not in choice:
        return {}
    name, known = str(choice["preset"]), {*LANGUAGE_PAIRS, *kind.presets}
    if name not in known:
        raise UserError(f"{where}.preset: unknown preset '{name}'{nearest(name, known)}.")
    return dict(kind.presets.get(name, {}))


def _imported(module_name: str, class_name: str, where: str) -> type[Objective]:
    if os.getcwd() not in sys.path:  # a file in the folder one works in should do
        sys.path.append(os.getcwd())
    try:
        kind = getattr(importlib.import_module(module_name), class_name, None)
    except Exception as error:  # whatever a module of the user's may raise
        first = str(error).strip().splitlines()[:1]
        reason = ": ".join([type(error).__name__, *first]).rstrip(".")
        raise UserError(f"{where}: '{module_name}' cannot be imported: {reason}.") from None
    if not (isinstance(kind, type) and issubclass(kind, Objective)):
        raise UserError(
            f"{where}: '{module_name}:{class_name}' is no class that derives from cbmi.objectives.Objective."
        )
    return kind
