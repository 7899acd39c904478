"""What objectives need besides the translator's own scores, made ready for a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from cbmi.data.statistics import Statistics, relative_frequency
from cbmi.data.vocabulary import Vocabulary
from cbmi.data.words import word_boundaries
from cbmi.model import LanguageModel, Translator
from cbmi.objectives import Objective


@dataclass(frozen=True)
class StageInputs:
    frozen: LanguageModel | None = None  # where it only scores
    teacher: Translator | None = None
    frequency: Tensor | None = None  # (target vocabulary,)
    boundaries: Tensor | None = None  # (target vocabulary,) of words


class SamplesDropout(Protocol):
    """An objective that needs "samples"."""

    samples: int


class ReadsWeights(Protocol):
    """An objective that needs "weights"."""

    file: str
    per: Literal["token", "pair"]


def dropout_sample_count(objective: Objective) -> int:
    """Forward passes under dropout that the objective needs besides the one it learns from."""
    return cast(SamplesDropout, objective).samples if "samples" in objective.needs() else 0


def weights_file(objective: Objective) -> ReadsWeights:
    """The settings `file` and `per` of an objective that needs "weights"."""
    return cast(ReadsWeights, objective)


def frequency_of_pieces(
    objective: Objective, statistics: Sequence[Statistics], device: torch.device
) -> Tensor | None:
    """(target vocabulary,): each piece's count relative to the median piece's, if needed.

    Counts are those of all segmentations that are trained on.
    """
    if "frequency" not in objective.needs():
        return None
    counts = np.sum([one.counts() for one in statistics], axis=0)
    frequency = relative_frequency(counts)
    return torch.tensor(frequency, dtype=torch.float32, device=device)


def boundaries_of_words(target: Vocabulary, device: torch.device) -> Tensor:
    """(target vocabulary,): what each piece says of the words around it."""
    return torch.from_numpy(word_boundaries(target.pieces(range(len(target))))).to(device)


def values_of_tokens(objective: Objective, statistics: Statistics) -> dict[str, np.ndarray]:
    """The objective's values for every target token of the corpus, by memory map.

    "bmi", and "given" (by a file of weights).
    """
    needs = objective.needs()
    values = {}
    if "bmi" in needs:
        values["bmi"] = statistics.bmi()
    if "weights" in needs:
        settings = weights_file(objective)
        values["given"] = statistics.weights(settings.file, settings.per)
    return values


def make_statistics(objectives: Sequence[Objective], statistics: Sequence[Statistics]) -> None:
    """Compute, once, what the objectives will need to know of the corpus."""
    for objective in objectives:
        for one in statistics:
            values_of_tokens(objective, one)
            if "frequency" in objective.needs():
                one.counts()
