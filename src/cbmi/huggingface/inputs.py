"""What an objective needs to know of the target vocabulary and the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbmi.errors import UserError
from cbmi.huggingface.columns import require_column
from cbmi.huggingface.target_pieces import TargetPieces
from cbmi.objectives import Objective, name_of

BLOCK = 10_000  # sentences counted at a time


@dataclass(frozen=True)
class ObjectiveInputs:
    """Tensors over the vocabulary. What was not needed is None."""

    ids: Tensor | None = None  # (vocabulary,) the model's ids to those of objectives
    frequency: Tensor | None = None  # of each piece, by the objective's ids
    boundaries: Tensor | None = None  # of words, by the objective's ids

    def to(self, device: torch.device) -> ObjectiveInputs:
        moved = {}
        for name, value in vars(self).items():
            moved[name] = value if value is None else value.to(device)
        return ObjectiveInputs(**moved)


def objective_inputs(
    objective: Objective, tokenizer: Any, size: int, dataset: Any
) -> ObjectiveInputs:
    """For a vocabulary of `size`; frequencies are counted over the dataset's labels."""
    needs = objective.needs()
    if not needs & {"frequency", "words"}:
        return ObjectiveInputs()
    if tokenizer is None:
        raise UserError(
            f"objective '{name_of(objective)}' needs the tokenizer: give processing_class, "
            "or AdaptiveCollator as the data_collator."
        )
    pieces = TargetPieces(tokenizer, size)
    if "words" in needs and not pieces.starts_are_known:
        raise UserError(
            "unit: word: this tokenizer does not mark where words begin; use unit: piece."
        )
    frequency = None
    if "frequency" in needs:
        if not hasattr(dataset, "iter") or not hasattr(dataset, "__len__"):
            raise UserError(
                f"objective '{name_of(objective)}' counts the labels of train_dataset, which "
                "has to be a datasets.Dataset."
            )
        require_column(dataset, "labels", "counting pieces")
        blocks = dataset.select_columns("labels").iter(BLOCK)
        frequency = pieces.frequency(block["labels"] for block in blocks)
    return ObjectiveInputs(pieces.ids, frequency, pieces.boundaries() if "words" in needs else None)
