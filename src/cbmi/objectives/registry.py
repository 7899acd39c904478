"""Objectives by name: the table of the package's own, those that other packages register, and `module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
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
    kind = find(choice["name"], where)
    values = {key: value for key, value in choice.items() if key not in ("name", "preset")}
    objective = check(kind, _preset(kind, choice, where) | values, where)
    for need in sorted(objective.needs):
        if need not in NEEDS:
            hint = nearest(need, NEEDS)
            raise UserError(f"{where}: '{choice['name']}' needs '{need}', which nobody provides{hint}.")
        for setting in SETTINGS_OF_NEEDS.get(need, ()):
            if setting not in kind.model_fields:
                raise UserError(f"{where}: '{choice['name']}' needs '{need}' but has no setting '{setting}'.")
    return objective


def find(name: str, where: str) -> type[Objective]:
    """The class of an objective: from the table, from another package's entry point, or `module:Class`."""
    if name in TABLE:
        return TABLE[name]
    if ":" in name:
        return _imported(name, where)
    others = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in others:
        return _imported(others[name].value, where)
    raise UserError(f"{where}: unknown objective '{name}'{nearest(name, [*TABLE, *others])}.")


def everything() -> Iterator[tuple[str, type[Objective]]]:
    """All objectives that are to be had by a plain name."""
    yield from TABLE.items()
    for point in entry_points(group=ENTRY_POINTS):
        yield point.name, find(point.name, f"entry point {point.name}")


def _preset(kind: type[Objective], choice: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings of the paper for a language pair. Where they are the same for all, they are the defaults."""
    name = choice.get("preset")
    known = {*LANGUAGE_PAIRS, *kind.presets}
    if name is not None and name not in known:
        raise UserError(f"{where}.preset: unknown preset '{name}'{nearest(str(name), known)}.")
    return dict(kind.presets.get(name, {}))


def _imported(name: str, where: str) -> type[Objective]:
    module_name, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path:  # a file beside the run file should do
        sys.path.append(os.getcwd())
    try:
        kind = getattr(importlib.import_module(module_name), class_name, None)
    except Exception as error:  # whatever a module of the user's may raise
        raise UserError(f"{where}: '{module_name}' cannot be imported: {type(error).__name__}: {error}.") from None
    if not (isinstance(kind, type) and issubclass(kind, Objective)):
        raise UserError(f"{where}: '{name}' is no class that derives from cbmi.objectives.Objective.")
    return kind
