"""Is one system better than another, over several training runs of each? Paired bootstrap, as sacrebleu does it.

Lines of the test set are drawn anew, the same for all outputs; a system's score in a draw is the mean over its runs.
With one run of each system the p-value is that of sacrebleu's own paired test, to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cbmi.errors import UserError
from cbmi.evaluation import multi_bleu
from cbmi.evaluation.metrics import bleu_tokenizer, sacrebleu_metrics, ter

SEED = 12345  # sacrebleu's


class Metric:
    """A metric with its references: scores of outputs, and of resamplings of their lines."""

    def __init__(self, name: str, references: Sequence[str], language: str) -> None:
        """`name`: bleu, chrf, ter, or multi-bleu, for which lines are tokenised as Moses does for `language`."""
        self.name, self.language = name, language
        self.lines = len(references)
        given = [list(self._lines(references))]
        metrics = sacrebleu_metrics()
        self.metric: Any = {
            "bleu": lambda: metrics.BLEU(references=given, tokenize=bleu_tokenizer(language)),
            "chrf": lambda: metrics.CHRF(references=given),
            "ter": lambda: ter(language, references=given),
            "multi-bleu": lambda: metrics.BLEU(references=given, tokenize="none", smooth_method="none", force=True),
        }[name]()

    def resampled(self, hypotheses: Sequence[str], samples: int) -> Resampled:
        if len(hypotheses) != self.lines:
            raise UserError(f"There are {len(hypotheses)} translations, but {self.lines} references.")
        statistics = self.metric._extract_corpus_statistics(list(self._lines(hypotheses)), None)
        score = float(self.metric._aggregate_and_compute(statistics).score)
        rows = np.array(statistics, dtype="float32")  # as sacrebleu does
        drawn = np.random.default_rng(SEED).choice(len(rows), size=(samples, len(rows)), replace=True)
        scores = [self.metric._compute_score_from_stats(rows[places].sum(0)).score for places in drawn]
        return Resampled(score, np.array(scores))

    def signature(self) -> str:
        if self.name == "multi-bleu":
            return multi_bleu.signature(False, self.language)
        return str(self.metric.get_signature())

    def _lines(self, lines: Sequence[str]) -> Sequence[str]:
        return multi_bleu.tokenize(lines, self.language) if self.name == "multi-bleu" else lines


@dataclass(frozen=True)
class Resampled:
    score: float
    samples: np.ndarray


@dataclass(frozen=True)
class Comparison:
    difference: float  # system minus baseline, means over the runs
    p: float
    error: float | None  # the standard error of the difference, over pairs of runs


def compare(baseline: Sequence[Resampled], system: Sequence[Resampled]) -> Comparison:
    """Of the runs of two systems on the same test set, in pairs (by seed)."""
    differences = [ours.score - theirs.score for ours, theirs in zip(system, baseline, strict=True)]
    difference = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else None
    if not difference:
        return Comparison(0.0, 1.0, error)
    samples = [np.mean([run.samples for run in runs], axis=0) for runs in (baseline, system)]
    moved = np.abs(samples[1] - samples[0])
    higher = int((moved - moved.mean() > abs(difference)).sum())
    return Comparison(difference, (higher + 1) / (len(moved) + 1), error)
