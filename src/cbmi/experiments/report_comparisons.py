"""The report's table of significance tests: over sentences and seeds, and seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cbmi.evaluation.paired_t import MOST_SEEDS
from cbmi.experiments.records import SystemComparison
from cbmi.experiments.registration import EXPLORATORY, Registration
from cbmi.experiments.settings import METRIC_NAMES, ExperimentSettings
from cbmi.reporting.tables import escape_markdown, markdown_table, signed

COMPARISON_NOTE = (
    "Over the sentences: sacrebleu's paired bootstrap. Its p-values are about half of two-sided "
    "ones, and about 0.4 for two systems of equal quality; they do not cover the variation between "
    "training runs of one system. Over the seeds: a two-sided paired t-test, and its p-value "
    "corrected for the number of systems by Holm's method. Detectable: the true difference that "
    "this many seeds show with a power of 80% after the correction, even if no other system "
    "differs. Seeds needed: for a true difference as large as the one measured, likewise."
)
COMPARISON_TITLES = (
    "difference",
    "standard error",
    "p, sentences",
    "p, seeds",
    "p, Holm",
    "detectable",
    "seeds needed",
)


@dataclass(frozen=True)
class ComparisonRow:
    """A system and one that it is tested against, on one test set."""

    system: str
    against: str
    on: str  # task, test set, metric
    overall: SystemComparison  # over all seeds
    seeds: list[SystemComparison]

    @property
    def cells(self) -> list[str]:
        """Under `COMPARISON_TITLES`."""
        overall = self.overall
        cells = [signed(overall.difference)]
        test = overall.over_seeds
        if test is None:
            return [*cells, "–", f"{overall.p:.3f}", "–", "–", "–", "–"]
        corrected = "–" if overall.holm_p is None else f"{overall.holm_p:.3f}"
        detectable = "–"
        needed = "–"
        if test.error:
            detectable = f"{test.detectable(overall.tests):.2f}"
            seeds = test.seeds_needed(overall.tests)
            needed = f"> {MOST_SEEDS}" if seeds is None else str(seeds)
        return [
            *cells,
            f"{test.error:.2f}",
            f"{overall.p:.3f}",
            f"{test.p:.3f}",
            corrected,
            detectable,
            needed,
        ]

    @property
    def seed_by_seed(self) -> str:
        return ", ".join(difference_text(one) for one in self.seeds)


def comparison_rows(
    experiment: ExperimentSettings,
    comparisons: Sequence[SystemComparison],
    registration: Registration | None = None,
) -> list[ComparisonRow]:
    """A row for every system and system that it is tested against."""
    rows = []
    for overall in comparisons:
        if overall.seed is not None:
            continue
        seeds = []
        for one in comparisons:
            if one.seed is not None and _pair(one) == _pair(overall):
                seeds.append(one)
        rows.append(
            ComparisonRow(
                system=experiment.label(overall.system)
                + ("" if _is_registered(overall, registration) else EXPLORATORY),
                against=experiment.label(overall.against),
                on=_on(experiment, overall),
                overall=overall,
                seeds=seeds,
            )
        )
    return rows


def _is_registered(comparison: SystemComparison, registration: Registration | None) -> bool:
    """Or there is no registration that could cover it."""
    return registration is None or registration.covers(
        comparison.task, comparison.system, comparison.set, comparison.metric
    )


def _of_registered_seeds(comparison: SystemComparison, registration: Registration) -> bool:
    """Whether it is of a registered seed, or over just those that were registered."""
    if comparison.seed is not None:
        return registration.has_seed(comparison.seed)
    return sorted(comparison.seeds) == sorted(registration.seeds())


def comparison_columns(
    comparisons: Sequence[SystemComparison], registration: Registration | None
) -> list[dict[str, Any]]:
    """The rows of comparisons.csv."""
    rows = []
    for one in comparisons:
        row = one.columns()
        if registration is not None:
            covered = _is_registered(one, registration) and _of_registered_seeds(one, registration)
            row["registered"] = "yes" if covered else "no"
        rows.append(row)
    return rows


def _on(experiment: ExperimentSettings, comparison: SystemComparison) -> str:
    parts = [experiment.title_of(comparison.task), comparison.set]
    if len(experiment.metrics(comparison.task)) > 1:
        parts.append(METRIC_NAMES[comparison.metric])
    return ", ".join(parts)


def _pair(comparison: SystemComparison) -> tuple[str, ...]:
    return (*comparison.family(), comparison.system)


def difference_text(comparison: SystemComparison) -> str:
    """+0.64 (0.003)"""
    return f"{signed(comparison.difference)} ({comparison.p:.3f})"


def comparisons_markdown(rows: Sequence[ComparisonRow]) -> str:
    header = ["system", "against", "on", *COMPARISON_TITLES, "seed by seed (p)"]
    cells = []
    for row in rows:
        cells.append(
            [
                escape_markdown(row.system),
                escape_markdown(row.against),
                escape_markdown(row.on),
                *row.cells,
                row.seed_by_seed,
            ]
        )
    return f"{markdown_table(header, cells, align='lllrrrrrrrl')}\n\n{COMPARISON_NOTE}\n"
