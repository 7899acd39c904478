"""The columns that a dataset has beside those that its model reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from cbmi.errors import UserError

IGNORED = -100  # a label that is not predicted, as Hugging Face marks it

LM = "lm"  # log p_LM of every predicted label, as in lines of `cbmi score`
WEIGHTS = "weights"  # weights of every predicted label, or one for all
# Every objective that is supported needs at most these. Their names in batches are the same.
COLUMNS = (LM, WEIGHTS)
SOURCE = "source"  # the source's ids of a batch, -100 for padding
PACKED = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")  # a batch that has these is packed

Batch = Mapping[str, Any]


def column_names(dataset: Any) -> list[str] | None:
    """The columns of a dataset; None: it does not say."""
    names = getattr(dataset, "column_names", None)
    return list(names) if isinstance(names, Iterable) and not isinstance(names, Mapping) else None


# What makes a column that is missing.
MAKERS = {
    LM: "LanguageModelScores(lm, start=start).add_to(dataset)",
    WEIGHTS: "dataset.add_column, or take trainer.train_dataset, which has the file's",
}


def require_column(dataset: Any, name: str, what: str) -> None:
    """Refuse a dataset that says which columns it has, and lacks this one; `what` needs it."""
    names = column_names(dataset)
    if names is not None and name not in names:
        remedy = f"; add it with {MAKERS[name]}" if name in MAKERS else ""
        raise UserError(
            f"{what} needs the column '{name}', but the dataset has only "
            f"{', '.join(names)}{remedy}."
        )


def predicted(labels: Any) -> list[int]:
    """The labels that are predicted."""
    if labels is None or isinstance(labels, str) or not hasattr(labels, "__len__"):
        raise UserError(f"a row's labels should be a list of ids, not {labels!r:.50}.")
    found = [label for label in labels if label != IGNORED]
    if found and min(found) < 0:
        raise UserError(
            f"a row has the label {min(found)}; labels that are not predicted are {IGNORED}."
        )
    return found


def text_of(labels: Any) -> list[int]:
    """The labels that are predicted, as the text that a language model scores.

    Refuses a gap between them: what follows it would be scored as if it were not there.
    """
    found = predicted(labels)
    if len(found) == len(labels):
        return found
    places = [place for place, label in enumerate(labels) if label != IGNORED]
    if places and places[-1] - places[0] + 1 > len(places):
        raise UserError(
            f"a row has {IGNORED} between labels that are predicted, such as several turns of a "
            "conversation; give each turn a row of its own."
        )
    return found


def split(batch: Batch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the model reads, and the columns of `cbmi.huggingface` with the source's ids."""
    for name in PACKED:
        if name in batch:
            raise UserError(f"the batch has '{name}', so it is packed; give each pair a row.")
    inputs = {name: value for name, value in batch.items() if name not in COLUMNS}
    columns = {name: value for name, value in batch.items() if name in COLUMNS}
    if "input_ids" in batch:
        ids = batch["input_ids"]
        mask = batch.get("attention_mask")
        columns[SOURCE] = ids if mask is None else torch.where(mask.bool(), ids, IGNORED)
    return inputs, columns
