"""Which prior guesses a token best, by its CBMI: the language model, the translator, or CBMI?

    q_lm   = p_lm
    q_tm   = p_tm
    q_cbmi = softmax(log p_tm - log p_lm)

A prior is right about a token if argmax q is the gold token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbmi.data.text import Pair, read_pairs, report_counts
from cbmi.data.vocabulary import BOS
from cbmi.errors import UserError
from cbmi.inference.model import TrainedModel
from cbmi.inference.scoring import packed_batches
from cbmi.model import LanguageModel, Packed, Translator, shift_right
from cbmi.model.distribution import Distributions, States, keep_states
from cbmi.objectives.priors import Prior, log_prior
from cbmi.progress import bar
from cbmi.reporting.tables import bin_label, text_table

PRIORS: tuple[Prior, ...] = ("lm", "tm", "cbmi")
EDGES = (-np.inf, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, np.inf)  # of CBMI, in nats
CHUNK = 1024  # tokens whose distributions are held at a time


@dataclass(frozen=True)
class AccuracyBin:
    """Tokens whose CBMI is above one edge and not above the other; None: there is no edge."""

    above: float | None
    to: float | None
    tokens: int
    shares: Mapping[str, float]  # by prior, top-1 accuracy; empty if there is no token

    def to_json(self) -> dict[str, Any]:
        return {"above": self.above, "to": self.to, "tokens": self.tokens, **self.shares}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> AccuracyBin:
        shares: dict[str, float] = {}
        for prior in PRIORS:
            if prior in record:
                shares[prior] = record[prior]
        return cls(record["above"], record["to"], record["tokens"], shares)


@dataclass(frozen=True)
class PriorAccuracy:
    """Top-1 accuracy of the priors over all tokens, and by bins of CBMI."""

    tokens: int
    mean_cbmi: float  # nats
    shares: Mapping[str, float]
    bins: Sequence[AccuracyBin]

    def to_json(self) -> dict[str, Any]:
        """What `cbmi prior-accuracy --json` writes."""
        return {
            "tokens": self.tokens,
            "mean_cbmi": self.mean_cbmi,
            **self.shares,
            "bins": [one.to_json() for one in self.bins],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> PriorAccuracy:
        return cls(
            tokens=record["tokens"],
            mean_cbmi=record["mean_cbmi"],
            shares={prior: record[prior] for prior in PRIORS},
            bins=[AccuracyBin.from_json(one) for one in record["bins"]],
        )


def pairs_of(model: TrainedModel, files: Sequence[str]) -> list[Pair]:
    """The pairs of a parallel text; if none is named, those of the run's validation set."""
    chosen = files or model.config.data.valid
    if not chosen:
        raise UserError(f"{model.run.path} has no validation set: name --source and --target.")
    counts: Counter[str] = Counter()
    pairs = list(read_pairs(chosen, model.languages, counts))
    report_counts(counts)
    return pairs


def prior_accuracy(model: TrainedModel, pairs: Sequence[Pair]) -> PriorAccuracy:
    """How often each prior's best guess is the gold token, over the tokens of all pairs."""
    if model.fusion:
        raise UserError(
            f"{model.run.path} was trained by fusion; its translator has no distribution of its "
            "own."
        )
    language_model = model.language_model()
    values = []
    right = []
    with bar("Guessing", len(pairs), "pairs") as progress:
        for batch, source, target in packed_batches(model, pairs):
            cbmi, is_right = _batch_guesses(model.translator, language_model, source, target)
            values.append(cbmi)
            right.append(is_right)
            progress.advance(len(batch))
    model.report_truncated()
    if not values:
        raise UserError("prior-accuracy: there is no pair to look at.")
    return binned_accuracy(np.concatenate(values), np.concatenate(right, axis=1))


@torch.inference_mode()
def _batch_guesses(
    translator: Translator, language_model: LanguageModel, source: Packed, target: Packed
) -> tuple[np.ndarray, np.ndarray]:
    """CBMI of a batch's tokens (tokens,), and whether each prior is right (priors, tokens)."""
    inputs = shift_right(target, BOS)
    translator_states = translator(source, inputs, target.ids, head=keep_states)
    lm_states = language_model(inputs, target.ids, head=keep_states)
    values = []
    right = []
    for start in range(0, len(target.ids), CHUNK):
        rows = slice(start, start + CHUNK)
        cbmi, is_right = _chunk_guesses(translator_states, lm_states, target.ids, rows)
        values.append(cbmi.cpu().numpy())
        right.append(is_right.cpu().numpy())
    return np.concatenate(values), np.concatenate(right, axis=1)


def _chunk_guesses(
    translator: States, lm: States, gold: Tensor, rows: slice
) -> tuple[Tensor, Tensor]:
    """CBMI of some tokens (tokens,), and whether each prior is right (priors, tokens)."""
    logits = translator.logits(rows).double()
    log_p = torch.log_softmax(logits, dim=1)
    log_lm = torch.log_softmax(lm.logits(rows).double(), dim=1)
    # The teacher of q_tm and q_cbmi is the translator itself.
    chunk = Distributions(
        logits=logits, log_p=log_p, gold=gold[rows], smoothing=0.0, lm=log_lm, teacher=log_p
    )
    right = []
    for prior in PRIORS:
        guess = log_prior(prior, chunk).argmax(dim=1)
        right.append(guess == gold[rows])
    return chunk.cbmi(), torch.stack(right)


def binned_accuracy(cbmi: np.ndarray, right: np.ndarray) -> PriorAccuracy:
    """cbmi (tokens,); right (priors, tokens): whether each prior guessed the token.

    A bin is above its first edge and not above its second.
    """
    places = np.searchsorted(EDGES, cbmi, side="left") - 1
    bins = []
    for place, (low, high) in enumerate(pairwise(EDGES)):
        inside = places == place
        tokens = int(inside.sum())
        shares = _shares(right[:, inside]) if tokens else {}
        bins.append(AccuracyBin(_finite(low), _finite(high), tokens, shares))
    return PriorAccuracy(len(cbmi), float(cbmi.mean()), _shares(right), bins)


def _shares(right: np.ndarray) -> dict[str, float]:
    """The share of tokens that each prior has right."""
    means = right.mean(axis=1).tolist()
    return dict(zip(PRIORS, means, strict=True))


def _finite(edge: float) -> float | None:
    return float(edge) if np.isfinite(edge) else None


def accuracy_table(accuracy: PriorAccuracy) -> str:
    """The accuracies as text: one line per bin, and one for all tokens."""
    rows = [["CBMI", "tokens", *PRIORS]]
    whole = AccuracyBin(None, None, accuracy.tokens, accuracy.shares)
    for one in [*accuracy.bins, whole]:
        row = [bin_label(one.above, one.to), f"{one.tokens:,}"]
        for prior in PRIORS:
            row.append(f"{one.shares[prior]:.1%}" if prior in one.shares else "–")
        rows.append(row)
    return "\n".join(text_table(rows, "r" * len(rows[0])))
