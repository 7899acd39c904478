"""Which distribution guesses a token best, by its CBMI: the language model's, the translator's, or that of CBMI?

q_lm = p_lm,  q_tm = p_tm,  q_cbmi = softmax(log p_tm - log p_lm);  accuracy: argmax q is the gold token
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbmi.analysis.score import packed_batches
from cbmi.data.text import read_pairs, report_repaired
from cbmi.data.vocabulary import BOS
from cbmi.errors import UserError
from cbmi.model import shift_right
from cbmi.model.distribution import Distributions, States, keep_states
from cbmi.objectives.priors import log_prior
from cbmi.progress import bar
from cbmi.training.trained import Trained

PRIORS = ("lm", "tm", "cbmi")
EDGES = (-np.inf, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, np.inf)  # of CBMI, in nats
CHUNK = 1024  # tokens whose distributions there are at a time


def pairs_of(model: Trained, files: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of a parallel text; those of the run's validation set where none is named."""
    files = files or model.config.data.valid
    if not files:
        raise UserError(f"{model.run.path} has no validation set: name --source and --target.")
    counts: Counter[str] = Counter()
    pairs = list(read_pairs(files, counts))
    report_repaired(counts)
    return pairs


def prior_accuracy(model: Trained, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Counts of tokens and accuracies of the priors, in bins of CBMI and overall."""
    if model.fusion:
        raise UserError(f"{model.run.path} was trained by fusion; its translator has no distribution of its own.")
    language_model = model.language_model()
    values, right = [], []
    with bar("Guessing", len(pairs), "pairs") as progress:
        for batch, source, target in packed_batches(model, pairs):
            inputs = shift_right(target, BOS)
            with torch.inference_mode():
                states = (
                    model.translator(source, inputs, target.ids, head=keep_states),
                    language_model(inputs, target.ids, head=keep_states),
                )
                for start in range(0, len(target.ids), CHUNK):
                    cbmi, guessed = _chunk(*states, target.ids, slice(start, start + CHUNK))
                    values.append(cbmi.cpu().numpy())
                    right.append(guessed.cpu().numpy())
            progress.advance(len(batch))
    model.report_truncated()
    if not values:
        raise UserError("prior-accuracy: there is no pair to look at.")
    return _binned(np.concatenate(values), np.concatenate(right, axis=1))


def _chunk(translator: States, language_model: States, gold: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """CBMI of some tokens (tokens,), and whether each prior's best guess is right (priors, tokens)."""
    logits = translator.logits(rows).double()
    log_p, log_lm = (torch.log_softmax(x, 1) for x in (logits, language_model.logits(rows).double()))
    chunk = Distributions(logits, log_p, gold[rows], 0.0, log_lm, log_p)
    guesses = [log_prior(name, chunk).argmax(1) for name in PRIORS]
    return chunk.cbmi(), torch.stack([guess == gold[rows] for guess in guesses])


def _binned(cbmi: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """cbmi (tokens,), right (priors, tokens). A bin is above its first edge and not above its second."""
    number = np.searchsorted(EDGES, cbmi, side="left") - 1
    bins = []
    for place, (low, high) in enumerate(pairwise(EDGES)):
        inside = number == place
        record: dict[str, Any] = {"above": _finite(low), "to": _finite(high), "tokens": int(inside.sum())}
        if inside.any():
            record |= _shares(right[:, inside])
        bins.append(record)
    return {"tokens": len(cbmi), "mean_cbmi": float(cbmi.mean()), **_shares(right), "bins": bins}


def _shares(right: np.ndarray) -> dict[str, float]:
    return {name: float(share) for name, share in zip(PRIORS, right.mean(axis=1), strict=True)}


def _finite(edge: float) -> float | None:
    return float(edge) if np.isfinite(edge) else None


def table(accuracy: dict[str, Any]) -> str:
    """The accuracies as text, a line a bin."""
    rows = [["CBMI", "tokens", *PRIORS]]
    for record in [*accuracy["bins"], accuracy | {"whole": True}]:
        name = "all" if "whole" in record else bin_name(record)
        shares = [f"{record[prior]:.1%}" if prior in record else "–" for prior in PRIORS]
        rows.append([name, f"{record['tokens']:,}", *shares])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def bin_name(record: dict[str, Any]) -> str:
    low, high = record["above"], record["to"]
    if low is None:
        return f"≤ {high:g}"
    return f"> {low:g}" if high is None else f"{low:g} to {high:g}"
