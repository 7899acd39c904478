"""The report's table of significance tests: over all seeds, and seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cbmi.experiments.records import SystemComparison
from cbmi.experiments.settings import ExperimentSettings
from cbmi.reporting.tables import escape_markdown, markdown_table, signed

COMPARISON_NOTE = (
    "p-values are those of sacrebleu's paired bootstrap over the sentences. They are about half of "
    "a two-sided p-value, and about 0.4 for two systems of equal quality. They do not cover the "
    "variation between training runs of one system. The standard error is that of the mean "
    "difference over the seeds."
)


@dataclass(frozen=True)
class ComparisonRow:
    """A system and one that it is tested against, on one test set."""

    system: str
    against: str
    task: str
    set: str
    overall: SystemComparison  # over all seeds
    seeds: list[SystemComparison]

    @property
    def standard_error(self) -> str:
        error = self.overall.standard_error
        return "–" if error is None else f"{error:.2f}"

    @property
    def seed_by_seed(self) -> str:
        return ", ".join(difference_text(one) for one in self.seeds)


def comparison_rows(
    experiment: ExperimentSettings, comparisons: Sequence[SystemComparison]
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
                system=experiment.label(overall.system),
                against=experiment.label(overall.against),
                task=experiment.title_of(overall.task),
                set=overall.set,
                overall=overall,
                seeds=seeds,
            )
        )
    return rows


def _pair(comparison: SystemComparison) -> tuple[str, str, str, str]:
    return (comparison.task, comparison.set, comparison.system, comparison.against)


def difference_text(comparison: SystemComparison) -> str:
    """+0.64 (0.003)"""
    return f"{signed(comparison.difference)} ({comparison.p:.3f})"


def comparisons_markdown(rows: Sequence[ComparisonRow]) -> str:
    header = ["system", "against", "on", "difference (p)", "standard error", "seed by seed"]
    cells = []
    for row in rows:
        cells.append(
            [
                escape_markdown(row.system),
                escape_markdown(row.against),
                escape_markdown(f"{row.task}, {row.set}"),
                difference_text(row.overall),
                row.standard_error,
                row.seed_by_seed,
            ]
        )
    return f"{markdown_table(header, cells, align='lllrrl')}\n\n{COMPARISON_NOTE}\n"
