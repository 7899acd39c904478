"""Whether one system is better than another, over several training runs of each.

This is the paired bootstrap of sacrebleu. The lines of the test set are resampled, the same for all
outputs, and a system's score in a resample is the mean over its runs. With one run of each system,
the p-value is that of sacrebleu's own paired test, to the last digit.

A bootstrap over lines says nothing about other seeds. The paired t-test over the runs does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cbmi.errors import UserError
from cbmi.evaluation import multi_bleu
from cbmi.evaluation.metrics import bleu_tokenizer, sacrebleu_metrics, ter
from cbmi.evaluation.paired_t import SeedTest, paired_t_test

SEED = 12345  # sacrebleu's


class Metric:
    """A metric with its references: scores outputs, and resamples of their lines."""

    def __init__(self, name: str, references: Sequence[str], language: str) -> None:
        """`name`: bleu, chrf, ter or multi-bleu. `language`: that of the references.

        For multi-bleu, lines are tokenised as Moses does for the language.
        """
        self.name = name
        self.language = language
        self.lines = len(references)
        self.metric = _sacrebleu_metric(name, self._tokenised(references), language)

    def resampled(self, hypotheses: Sequence[str], samples: int) -> Resampled:
        """The score of an output, and its scores in `samples` resamples of the lines.

        The seed is fixed: the resamples of all outputs are the same lines.
        """
        if len(hypotheses) != self.lines:
            raise UserError(
                f"There are {len(hypotheses)} translations, but {self.lines} references."
            )
        # (lines, statistics): sums of rows give the score of any set of lines.
        statistics = self.metric._extract_corpus_statistics(self._tokenised(hypotheses), None)
        score = float(self.metric._aggregate_and_compute(statistics).score)
        rows = np.array(statistics, dtype="float32")  # as sacrebleu does
        generator = np.random.default_rng(SEED)
        drawn = generator.choice(len(rows), size=(samples, len(rows)), replace=True)
        scores = []
        for places in drawn:
            totals = rows[places].sum(0)
            scores.append(self.metric._compute_score_from_stats(totals).score)
        return Resampled(score, np.array(scores))

    def signature(self) -> str:
        """What must be known to repeat the score."""
        if self.name == "multi-bleu":
            return multi_bleu.signature(False, self.language)
        return str(self.metric.get_signature())

    def _tokenised(self, lines: Sequence[str]) -> list[str]:
        if self.name == "multi-bleu":
            return multi_bleu.tokenize(lines, self.language)
        return list(lines)


def _sacrebleu_metric(name: str, references: list[str], language: str) -> Any:
    metrics = sacrebleu_metrics()
    given = [references]
    match name:
        case "bleu":
            return metrics.BLEU(references=given, tokenize=bleu_tokenizer(language))
        case "chrf":
            return metrics.CHRF(references=given)
        case "ter":
            return ter(language, references=given)
        case "multi-bleu":
            # The lines are tokenised already. force: do not warn about that.
            return metrics.BLEU(references=given, tokenize="none", smooth_method="none", force=True)
    raise ValueError(f"unknown metric '{name}'")


@dataclass(frozen=True)
class Resampled:
    """The score of one output, and its scores in resamples of the lines."""

    score: float
    samples: np.ndarray  # (resamples,)


@dataclass(frozen=True)
class Comparison:
    """A system against a baseline."""

    difference: float  # system minus baseline, means over the runs
    p: float
    over_seeds: SeedTest | None  # None for one pair of runs


def compare(baseline: Sequence[Resampled], system: Sequence[Resampled]) -> Comparison:
    """Compare the runs of two systems on the same test set, in pairs (by seed)."""
    differences = []
    for own, other in zip(system, baseline, strict=True):
        differences.append(own.score - other.score)
    difference = float(np.mean(differences))
    over_seeds = paired_t_test(differences)
    if not difference:
        return Comparison(0.0, 1.0, over_seeds)
    baseline_samples = np.mean([run.samples for run in baseline], axis=0)
    system_samples = np.mean([run.samples for run in system], axis=0)
    sampled = np.abs(system_samples - baseline_samples)
    # Centred, the differences are those of two systems that do not differ: the null hypothesis.
    larger = int((sampled - sampled.mean() > abs(difference)).sum())
    p = (larger + 1) / (len(sampled) + 1)
    return Comparison(difference, p, over_seeds)
