"""What objectives need besides the translator's own scores, made ready for a stage."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from cbmi.data.statistics import Statistics, relative_frequency
from cbmi.model import LanguageModel, Translator
from cbmi.objectives import Objective


@dataclass(frozen=True)
class Supply:
    frozen: LanguageModel | None = None  # where it only scores
    teacher: Translator | None = None
    frequency: Tensor | None = None  # (target vocabulary,)
    numbers: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # one a target token of the corpus: "bmi", "given", "lm"


def frequency_of_pieces(objective: Objective, statistics: Statistics, device: torch.device) -> Tensor | None:
    if "frequency" not in objective.needs:
        return None
    return torch.tensor(relative_frequency(statistics.counts()), dtype=torch.float32, device=device)


def numbers_of_tokens(objective: Objective, statistics: Statistics) -> dict[str, np.ndarray]:
    """The objective's numbers for every target token of the corpus, by memory map."""
    numbers = {}
    if "bmi" in objective.needs:
        numbers["bmi"] = statistics.bmi()
    if "weights" in objective.needs:
        numbers["given"] = statistics.weights(objective.file, objective.per)
    return numbers


def make_statistics(objectives: list[Objective], statistics: Statistics) -> None:
    """Make, once, what of the corpus the objectives will need."""
    for objective in objectives:
        numbers_of_tokens(objective, statistics)
        if "frequency" in objective.needs:
            statistics.counts()
