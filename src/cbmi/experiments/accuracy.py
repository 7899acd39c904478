"""How often each prior is right, by bins of CBMI, over the tokens of all seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cbmi.experiments.records import JobResult
from cbmi.experiments.settings import ExperimentSettings
from cbmi.inspection.prior_accuracy import PRIORS, AccuracyBin
from cbmi.reporting.tables import bin_label, escape_markdown, markdown_table


def pooled_accuracy(results: Sequence[JobResult], task: str) -> list[AccuracyBin]:
    """Of a task's analyses, bin by bin; the last is of all tokens. Empty: there is no analysis."""
    accuracies = []
    for result in results:
        if result.task == task and result.accuracy is not None:
            accuracies.append(result.accuracy)
    if not accuracies:
        return []
    pooled = []
    for place in range(len(accuracies[0].bins)):
        pooled.append(_pooled_bin([accuracy.bins[place] for accuracy in accuracies]))
    whole = [AccuracyBin(None, None, one.tokens, one.shares) for one in accuracies]
    pooled.append(_pooled_bin(whole))
    return pooled


def _pooled_bin(bins: Sequence[AccuracyBin]) -> AccuracyBin:
    """The same bin of several seeds as one."""
    tokens = sum(one.tokens for one in bins)
    shares: dict[str, float] = {}
    if tokens:
        for prior in PRIORS:
            # A bin without tokens has no shares.
            right = sum(one.tokens * one.shares.get(prior, 0.0) for one in bins)
            shares[prior] = right / tokens
    return AccuracyBin(bins[0].above, bins[0].to, tokens, shares)


@dataclass(frozen=True)
class AccuracyRow:
    """A line of the report: a task's tokens in one bin, or all of them."""

    task: str
    bin: str
    tokens: int
    shares: dict[str, float | None]  # by prior; None: there is no token

    def columns(self) -> dict[str, Any]:
        """A row of prior-accuracy.csv."""
        return {"task": self.task, "CBMI": self.bin, "tokens": self.tokens, **self.shares}

    def percentages(self) -> list[str]:
        """By prior, such as "12.6%"."""
        texts = []
        for share in self.shares.values():
            texts.append("–" if share is None else f"{100 * share:.1f}%")
        return texts


def accuracy_rows(
    experiment: ExperimentSettings, results: Sequence[JobResult]
) -> list[AccuracyRow]:
    """By task and bin of CBMI; the last of a task is of all its tokens."""
    rows = []
    for task in experiment.tasks:
        for one in pooled_accuracy(results, task):
            shares: dict[str, float | None] = {}
            for prior in PRIORS:
                share = one.shares.get(prior)
                shares[prior] = None if share is None else round(share, 4)
            label = bin_label(one.above, one.to)
            rows.append(AccuracyRow(experiment.title_of(task), label, one.tokens, shares))
    return rows


def accuracies_markdown(rows: Sequence[AccuracyRow]) -> str:
    header = ["task", "CBMI, nats", "tokens", "LM prior", "TM prior", "CBMI prior"]
    cells = []
    for row in rows:
        cells.append([escape_markdown(row.task), row.bin, f"{row.tokens:,}", *row.percentages()])
    return markdown_table(header, cells, align="lrrrrr") + "\n"
