"""Weights of tokens: read from a file, logged in training, and laid out to be looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbmi.data.lines import read_lines, report_repaired
from cbmi.data.weights import weights_of_line
from cbmi.errors import UserError
from cbmi.huggingface.columns import IGNORED, WEIGHTS, column_names, predicted
from cbmi.huggingface.target_pieces import spelt
from cbmi.objectives import Objective, TokenScores
from cbmi.objectives.base import join
from cbmi.objectives.ranks import SINGLE_RANK
from cbmi.progress import bar, counted, say

LOGGED_MICRO_BATCHES = 256  # whose weights are kept at most between two lines of the log
QUANTILES = (0.05, 0.5, 0.95)
DIGITS = 6


class WeightLog:
    """The weights that this process has given since the last line of the log."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def add(self, weights: Tensor, mask: Tensor) -> None:
        if len(self.weights) == LOGGED_MICRO_BATCHES:
            self.weights.pop(0)
        # NaN for what is not a token: the number of tokens would have to wait for the device.
        self.weights.append(torch.where(mask, weights.detach().float(), torch.nan))

    def summary(self) -> dict[str, float]:
        """Mean, standard deviation and quantiles; forgets the weights."""
        if not self.weights:
            return {}
        weights = torch.cat(self.weights).cpu().numpy()
        weights = weights[~np.isnan(weights)]
        self.weights = []
        if not len(weights):
            return {}
        figures = {"weight_mean": weights.mean(), "weight_std": weights.std()}
        for quantile, value in zip(QUANTILES, np.quantile(weights, QUANTILES), strict=True):
            figures[f"weight_p{quantile * 100:02.0f}"] = value
        return {name: round(float(value), DIGITS) for name, value in figures.items()}


def with_weights_of_file(dataset: Any, objective: Objective) -> Any:
    """The dataset with the column of weights, from the file that the objective names.

    A dataset that has the column already is taken as it is.
    """
    file = getattr(objective, "file", "")  # which an objective of one's own may not have
    names = column_names(dataset)
    if names is not None and WEIGHTS in names:
        if file:
            say(f"weights-file: the dataset has the column '{WEIGHTS}', so {file} is not read.")
        return dataset
    if not hasattr(dataset, "add_column") or not hasattr(dataset, "__len__"):
        raise UserError(
            f"weights-file: lines are matched with rows, so train_dataset has to be a "
            f"datasets.Dataset, or have the column '{WEIGHTS}' already."
        )
    per = objective.per  # type: ignore[attr-defined]
    counts: Counter[str] = Counter()
    lines = list(read_lines(file, counts))
    report_repaired(counts)
    if len(lines) != len(dataset):
        raise UserError(
            f"{file} has {counted(len(lines), 'line')}, but the dataset has {len(dataset):,} rows."
        )
    values = []
    for number, (line, labels) in enumerate(zip(lines, dataset["labels"], strict=True), start=1):
        tokens = len(predicted(labels))
        weights = weights_of_line(line, per, tokens, f"{file}, line {number}")
        # The end of sentence may be left out: it counts as 1.
        values.append([*weights.tolist(), *[1.0] * (tokens - len(weights))])
    return dataset.add_column(WEIGHTS, values)


@torch.no_grad()
def weighted_rows(trainer: Any, dataset: Any, together: int) -> Any:
    """A dataset with the columns of lines of `cbmi score`; so many rows are weighted together."""
    from datasets import Dataset

    tokenizer = trainer.processing_class or getattr(trainer.data_collator, "tokenizer", None)
    if tokenizer is None:
        raise UserError("token_weights needs the tokenizer: give processing_class.")
    if not hasattr(dataset, "__len__"):
        raise UserError("token_weights: the data are a stream; give a datasets.Dataset.")
    model = trainer.model
    read = _used_columns(trainer)
    pieces = spelt(tokenizer, model.get_output_embeddings().weight.shape[0])
    was_training = model.training
    model.eval()
    lines: list[dict[str, Any]] = []
    try:
        with bar("Weighting", len(dataset), "rows") as progress:
            for start in range(0, len(dataset), together):
                rows = [read(dataset[i]) for i in range(start, min(start + together, len(dataset)))]
                lines += _lines(trainer, tokenizer, pieces, rows)
                progress.advance(len(rows))
    finally:
        model.train(was_training)
    return Dataset.from_list(lines)


def _used_columns(trainer: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that leaves out of a row what training does not read."""
    if not trainer.args.remove_unused_columns:
        return dict
    trainer._set_signature_columns_if_needed()
    known = set(trainer._signature_columns)
    return lambda row: {name: value for name, value in row.items() if name in known}


def _lines(
    trainer: Any, tokenizer: Any, pieces: Sequence[str], rows: Sequence[Any]
) -> list[dict[str, Any]]:
    """The rows of a mini-batch, weighted."""
    scores, counts = _scores(trainer, rows)
    causal = trainer._is_causal
    weights = trainer.adaptive_objective.weights(scores)
    if weights is None:
        weights = torch.ones_like(scores.nmt)
    # Without what only fills up batches.
    nmt_of_all = scores.nmt[scores.mask].double().cpu().numpy()
    lm_of_all = None if scores.lm is None else scores.lm[scores.mask].double().cpu().numpy()
    weight_of_all = weights[scores.mask].double().cpu().numpy()
    firsts = np.cumsum([0, *counts])
    lines = []
    for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
        if not count:
            continue  # a row without a label that is predicted
        own = slice(int(firsts[number]), int(firsts[number]) + count)
        ids = predicted(row["labels"])[-count:]
        nmt = nmt_of_all[own]
        line: dict[str, Any] = {
            "source": _source_text(tokenizer, _prompt(row) if causal else row["input_ids"]),
            "target": tokenizer.decode(ids, skip_special_tokens=True),
            "pieces": [pieces[i] for i in ids],
            "nmt": nmt.round(DIGITS).tolist(),
        }
        if lm_of_all is not None:
            lm = lm_of_all[own]
            line["lm"] = lm.round(DIGITS).tolist()
            line["sentence_cbmi"] = round(float((nmt - lm).mean()), DIGITS)
        line["weights"] = weight_of_all[own].round(DIGITS).tolist()
        lines.append(line)
    return lines


def _scores(trainer: Any, rows: Sequence[Any]) -> tuple[TokenScores, list[int]]:
    """Scores of the rows as one mini-batch, and how many labels each predicts.

    They are computed as many at a time as a device has in training.
    """
    parts = []
    counts: list[int] = []
    size = trainer._train_batch_size
    for start in range(0, len(rows), size):
        batch = trainer._prepare_inputs(trainer.data_collator(list(rows[start : start + size])))
        inputs, columns = trainer._split(batch)
        labels = inputs.pop("labels")
        with trainer.compute_loss_context_manager():
            outputs = trainer.model(**inputs)
        # Of this process alone: the others may look at other rows.
        parts.append(trainer.token_scores(outputs, labels, columns, SINGLE_RANK))
        counts += (labels != IGNORED).sum(1).tolist()
    longest = torch.stack([torch.as_tensor(part.longest) for part in parts]).max()
    return replace(join(parts), longest=longest), counts


def _source_text(tokenizer: Any, ids: Sequence[int]) -> str:
    if not getattr(tokenizer, "separate_vocabs", False):
        text: str = tokenizer.decode(ids, skip_special_tokens=True)
        return text
    known = {number: piece for piece, number in tokenizer.encoder.items()}
    special = set(tokenizer.all_special_ids)
    pieces = [known[number] for number in ids if number in known and number not in special]
    decoded: str = tokenizer.spm_source.decode_pieces(pieces)
    return decoded


def _prompt(row: Any) -> list[int]:
    """The ids of a decoder-only model's row that it does not predict."""
    pairs = zip(row["input_ids"], row["labels"], strict=True)
    return [number for number, label in pairs if label == IGNORED]
