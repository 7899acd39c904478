"""Batches of pairs, with the columns that objectives need."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbmi.errors import UserError
from cbmi.huggingface.columns import COLUMNS, IGNORED, WEIGHTS

Row = Mapping[str, Any]
# Columns that some models read beside `input_ids`, as long as these.
OF_INPUTS = ("token_type_ids", "global_attention_mask")


@dataclass
class AdaptiveCollator:
    """Pads rows of `input_ids`, `labels` and the columns of `cbmi.huggingface` to a batch.

    Give `model` if it has an encoder and a decoder: the batch then has `decoder_input_ids`, made as
    the model makes them of labels. Without it, rows are those of a decoder-only model: `input_ids`
    are prompt and target, and `labels` are as long, -100 for the prompt.
    """

    tokenizer: Any
    model: Any = None
    pad_to_multiple_of: int | None = None

    def __post_init__(self) -> None:
        if self.model is not None and not self.model.config.is_encoder_decoder:
            raise UserError("AdaptiveCollator: for a decoder-only model, leave out model.")
        self._check_pad_token()

    def _check_pad_token(self) -> None:
        if self.tokenizer.pad_token_id is None:
            raise UserError(
                "the tokenizer has no pad token; set one, such as "
                "tokenizer.pad_token = tokenizer.eos_token."
            )

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        if "position_ids" in rows[0]:
            raise UserError(
                "the rows have position_ids, so they may be packed; give each pair a row without."
            )
        self._check_pad_token()
        ids = [row["input_ids"] for row in rows]
        masks = [_mask_of(row) for row in rows]
        batch = {
            "input_ids": self._padded(ids, self.tokenizer.pad_token_id),
            "attention_mask": self._padded(masks, 0),
        }
        for name in OF_INPUTS:
            if name in rows[0]:
                batch[name] = self._padded([row[name] for row in rows], 0)
        if "labels" not in rows[0]:
            return batch
        labels = [row["labels"] for row in rows]
        if not any(len(row) for row in labels):
            raise UserError("a batch has no labels at all: leave out rows without labels.")
        if self.model is None:
            for row in rows:
                _check_causal(row)
            batch["labels"] = self._padded(labels, IGNORED)
            # Nothing comes before the first to predict it from.
            starts = batch["attention_mask"].argmax(1, keepdim=True)
            batch["labels"].scatter_(1, starts, IGNORED)
        else:
            # Decoders read from the left, whichever side the encoder's inputs are padded on.
            batch["labels"] = self._padded(labels, IGNORED, at_left=False)
            self._add_decoder_inputs(batch, rows)
        if ((batch["labels"] < 0) & (batch["labels"] != IGNORED)).any():
            raise UserError(
                f"a row has the label {int(batch['labels'][batch['labels'] != IGNORED].min())}; "
                f"labels that are not predicted are {IGNORED}."
            )
        for name in COLUMNS:
            if name in rows[0]:
                batch[name] = _values(name, rows, batch["labels"], self.model is None)
        return batch

    def _add_decoder_inputs(self, batch: dict[str, Tensor], rows: Sequence[Row]) -> None:
        """Those that the rows have, or what the model makes of the labels."""
        if "decoder_input_ids" in rows[0]:
            given = [row["decoder_input_ids"] for row in rows]
            padded = self._padded(given, self.tokenizer.pad_token_id, at_left=False)
            if padded.shape != batch["labels"].shape:
                raise UserError("a row has decoder_input_ids of another length than its labels.")
            batch["decoder_input_ids"] = padded
        else:
            batch["decoder_input_ids"] = decoder_inputs(self.model, batch["labels"])
        if "decoder_attention_mask" in rows[0]:
            masks = [row["decoder_attention_mask"] for row in rows]
            batch["decoder_attention_mask"] = self._padded(masks, 0, at_left=False)

    def _padded(
        self, rows: Sequence[Sequence[int]], filler: int, at_left: bool | None = None
    ) -> Tensor:
        """(rows, length) of the lists; at_left: where fillers go, by default as always."""
        if at_left is None:
            at_left = self.tokenizer.padding_side == "left"
        lengths = np.array([len(row) for row in rows])
        longest = int(lengths.max())
        if self.pad_to_multiple_of:
            longest = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
        # One assignment for all rows: a step may have hundreds, and waits for its batch.
        places = np.arange(longest)
        is_there = places >= longest - lengths[:, None] if at_left else places < lengths[:, None]
        padded = np.full((len(rows), longest), filler, dtype=np.int64)
        padded[is_there] = np.concatenate([_array(row, torch.int64) for row in rows])
        return torch.from_numpy(padded)


def _mask_of(row: Row) -> Any:
    """(length,) of the row; data that are put together may lack it in some rows."""
    mask = row.get("attention_mask")
    return [1] * len(row["input_ids"]) if mask is None else mask


def _array(values: Any, dtype: torch.dtype) -> np.ndarray:
    """A list, an array or a tensor, wherever it lies."""
    if isinstance(values, Tensor):
        return values.detach().to("cpu", dtype).numpy()
    return np.asarray(values, dtype=np.int64 if dtype is torch.int64 else np.float32)


def _check_causal(row: Row) -> None:
    if len(row["labels"]) != len(row["input_ids"]):
        raise UserError(
            f"a row has {len(row['input_ids'])} input_ids but {len(row['labels'])} labels; a "
            "decoder-only model needs as many, -100 for the prompt (with an encoder, give model "
            "to AdaptiveCollator)."
        )


def _values(name: str, rows: Sequence[Row], labels: Tensor, is_causal: bool) -> Tensor:
    """(labels' shape) float32: the column's values at the labels that are predicted."""
    is_predicted = labels.numpy() != IGNORED
    counts = is_predicted.sum(1).tolist()
    own_values = []
    for row, count in zip(rows, counts, strict=True):
        if row.get(name) is None:
            raise UserError(f"a row has no value in '{name}': make the column for all rows.")
        own = _array(row[name], torch.float32).reshape(-1)
        if is_causal and len(own) == count + 1 and row["labels"][0] != IGNORED:
            own = own[1:]  # the first label of a decoder-only model's row is not predicted
        if len(own) == 1 and name == WEIGHTS:
            own = own.repeat(count)  # one for the whole pair
        if len(own) != count:
            raise UserError(
                f"a row has {count} labels to predict but {len(own)} values in '{name}': they were "
                "made with another tokenisation; make the column again from these labels."
            )
        own_values.append(own)
    together = np.concatenate(own_values)
    if not np.isfinite(together).all():
        raise UserError(f"a row has a value in '{name}' that is NaN or infinite.")
    values = np.zeros(is_predicted.shape, dtype=np.float32)
    values[is_predicted] = together
    return torch.from_numpy(values)


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """(labels' shape): what the decoder reads, as the model itself makes it of labels."""
    base = getattr(model, "_orig_mod", model)  # of torch.compile
    base = base.get_base_model() if hasattr(base, "get_base_model") else base
    labels = labels.clone()  # some models fill in what is not predicted
    if hasattr(base, "prepare_decoder_input_ids_from_labels"):
        made: Tensor = base.prepare_decoder_input_ids_from_labels(labels)
        return made
    # The module of the model's class, or of the one that it was derived from, has a function.
    modules = [sys.modules[kind.__module__] for kind in type(base).__mro__]
    shifts = [vars(module).get("shift_tokens_right") for module in modules]
    shift = next((found for found in shifts if found is not None), None)
    if shift is None:
        raise UserError(
            f"{type(base).__name__} does not say how it makes decoder inputs of labels; add the "
            "column decoder_input_ids, and use a collator of your own."
        )
    config = base.config
    given = (labels, config.pad_token_id, config.decoder_start_token_id)
    shifted: Tensor = shift(*given[: len(inspect.signature(shift).parameters)])
    return shifted
