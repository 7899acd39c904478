"""Objectives by name: the package's own, those that other packages register, and `module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

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
from cbmi.overrides import nearest
from cbmi.schema import check

# Settings that the training loop reads for a need.
SETTINGS_OF_NEEDS = {"samples": ("samples",), "weights": ("file", "per")}
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
    """The objective that a stage names, e.g. {"name": "cbmi", "scale_token": 0.1}.

    `where` says in errors where the choice was made.
    """
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
    for method in ("needs", "weighs_together"):
        if not callable(getattr(objective, method)):
            return f"has '{method}' as an attribute; it should be a method"
    needs = objective.needs()
    for need in sorted(needs):
        if need not in NEEDS:
            return f"needs '{need}', which training does not provide{nearest(need, NEEDS)}"
        for setting in SETTINGS_OF_NEEDS.get(need, ()):
            if setting not in kind.model_fields:
                return f"needs '{need}' but has no setting '{setting}'"
    has_term = kind.term is not Objective.term
    if "distribution" in needs and not has_term:
        return "needs 'distribution' but has no method 'term'"
    if has_term and "distribution" not in needs:
        return "has a method 'term' but does not need 'distribution'"
    if issubclass(kind, Weighting) and kind.token_weights is Weighting.token_weights:
        return "has no method 'token_weights'"
    return None


def find(name: str, where: str) -> type[Objective]:
    """The class of an objective: from the table, from an entry point, or by `module:Class`."""
    if name in TABLE:
        return TABLE[name]
    if ":" in name:
        module, _, class_name = name.partition(":")
        return _imported(module, class_name, where)
    others = registered()
    if name in others:
        return _imported(others[name].module, others[name].attr, where)
    raise UserError(f"{where}: unknown objective '{name}'{nearest(name, [*TABLE, *others])}.")


def name_of(objective: Objective) -> str:
    """As a run file names it; a class from elsewhere goes by its own name."""
    for name, kind in TABLE.items():
        if type(objective) is kind:
            return name
    return type(objective).__name__


def registered() -> dict[str, EntryPoint]:
    """Objectives of other packages, except those that have the name of one of ours."""
    points = entry_points(group=ENTRY_POINTS)
    return {point.name: point for point in points if point.name not in TABLE}


def _preset(kind: type[Objective], choice: dict[str, Any], where: str) -> dict[str, Any]:
    """The paper's settings for a language pair, where they differ from the defaults."""
    if "preset" not in choice:
        return {}
    name = str(choice["preset"])
    known = {*LANGUAGE_PAIRS, *kind.presets}
    if name not in known:
        raise UserError(f"{where}.preset: unknown preset '{name}'{nearest(name, known)}.")
    return dict(kind.presets.get(name, {}))


def _imported(module_name: str, class_name: str, where: str) -> type[Objective]:
    try:
        with _working_folder_importable():
            module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module may raise
        first_line = str(error).strip().splitlines()[:1]
        reason = ": ".join([type(error).__name__, *first_line]).rstrip(".")
        raise UserError(f"{where}: '{module_name}' cannot be imported: {reason}.") from error
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, Objective)):
        raise UserError(
            f"{where}: '{module_name}:{class_name}' is not a class that derives from "
            "cbmi.objectives.Objective."
        )
    return kind


@contextmanager
def _working_folder_importable() -> Iterator[None]:
    """Let a module in the working folder be imported, and leave `sys.path` as it was."""
    folder = os.getcwd()
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
