"""Results to the table of an experiment: systems down, tasks across, mean ± std over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cbmi.experiments.records import JobKind, JobResult, SystemComparison
from cbmi.experiments.settings import VALIDATION_SET, ExperimentSettings
from cbmi.reporting.latex import escaped
from cbmi.reporting.tables import escape_markdown, markdown_table, signed

SYMBOLS = ("*", "†", "‡", "§")  # of the systems that the others are tested against, in order
LATEX_SYMBOLS = {"*": r"\ast", "†": r"\dagger", "‡": r"\ddagger", "§": r"\S"}
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "multi-bleu": "multi-BLEU"}
LOWER_IS_BETTER = ("ter",)


@dataclass(frozen=True)
class ScoreCell:
    """A system on a test set."""

    scores: dict[int, float]  # by seed
    jobs: dict[int, str]  # by seed
    # From the baseline, by seed; none for the baseline itself, or where it is missing.
    differences: dict[int, float]
    marks: str = ""  # such as "**"
    best: bool = False
    published: str | None = None
    wanted: int = 1  # seeds that the experiment has
    lower: bool = False  # is better

    @property
    def mean(self) -> float:
        return _mean(self.scores)

    @property
    def std(self) -> float:
        """Of the population: the squared deviations are divided by the number of seeds."""
        return float(np.std(list(self.scores.values())))

    @property
    def difference(self) -> float | None:
        """The mean over the seeds that both have."""
        return _mean(self.differences) if self.differences else None

    @property
    def ahead(self) -> bool:
        """Whether it is at least as good as the baseline."""
        difference = self.difference or 0.0
        return difference <= 0 if self.lower else difference >= 0

    @property
    def spread(self) -> str:
        return f" ± {self.std:.2f}" if len(self.scores) > 1 else ""

    @property
    def missing_seeds(self) -> str:
        """Says so where runs are missing."""
        count = len(self.scores)
        return "" if count == self.wanted else f" [{count} of {self.wanted} seeds]"

    def text(self, spread: bool = True) -> str:
        """29.01 ± 0.08 (+0.91)"""
        text = f"{self.mean:.2f}"
        if spread:
            text += self.spread
        if self.difference is not None:
            text += f" ({signed(self.difference)})"
        return text


def _mean(by_seed: dict[int, float]) -> float:
    return float(np.mean(list(by_seed.values())))


@dataclass(frozen=True)
class SystemRow:
    label: str
    block: str
    is_baseline: bool
    cells: list[ScoreCell | None]  # one per column


@dataclass(frozen=True)
class ResultsTable:
    metric: str
    columns: list[str]
    rows: list[SystemRow]
    notes: list[str]
    seeds: int = 1  # the most that a cell has


@dataclass(frozen=True)
class _Column:
    """A task's test set. Tasks of several blocks may share a title, and so a column."""

    task: str
    test_set: str
    title: str


@dataclass
class _ScoresBySeed:
    """Of one system on one test set."""

    scores: dict[int, float] = field(default_factory=dict)
    jobs: dict[int, str] = field(default_factory=dict)


def results_table(
    experiment: ExperimentSettings,
    results: Iterable[JobResult],
    comparisons: Iterable[SystemComparison],
) -> ResultsTable:
    """The table of what is there."""
    runs = [result for result in results if result.kind is JobKind.SYSTEM]
    p_values = {}
    for one in comparisons:
        if one.seed is None:
            p_values[one.task, one.set, one.system, one.against] = one.p
    columns = _columns(experiment, runs)
    titles = list(dict.fromkeys(column.title for column in columns))
    blocks = list(dict.fromkeys(experiment.block_of(task) for task in experiment.tasks))
    rows: list[SystemRow] = []
    for block in blocks:
        cells_by_title: dict[str, dict[str, ScoreCell]] = {}
        for column in columns:
            if experiment.block_of(column.task) == block:
                first = _is_first_test_set(column, columns)
                cells = _column_cells(experiment, runs, p_values, column, first)
                cells_by_title.setdefault(column.title, cells)
        for system in experiment.expanded():
            row_cells = [cells_by_title.get(title, {}).get(system) for title in titles]
            if any(row_cells):
                label = experiment.label(system)
                rows.append(SystemRow(label, block, system == experiment.baseline, row_cells))
    seeds = 1
    for row in rows:
        for cell in row.cells:
            if cell is not None:
                seeds = max(seeds, len(cell.scores))
    metrics = {METRIC_NAMES[experiment.metric(task)] for task in experiment.tasks}
    metric = metrics.pop() if len(metrics) == 1 else "Score"
    return ResultsTable(metric, titles, rows, _notes(experiment, seeds), seeds)


def _columns(experiment: ExperimentSettings, runs: Sequence[JobResult]) -> list[_Column]:
    """The test sets that there are scores of, task by task."""
    several_metrics = len({experiment.metric(task) for task in experiment.tasks}) > 1
    columns = []
    for task in experiment.tasks:
        test_sets: dict[str, None] = {}  # an ordered set
        for run in runs:
            if run.task == task:
                test_sets.update(dict.fromkeys(experiment.reported(run.scores)))
        for test_set in test_sets:
            parts = [experiment.title_of(task)]
            if len(test_sets) > 1 or test_set == VALIDATION_SET:
                parts.append(test_set)
            if several_metrics:
                parts.append(METRIC_NAMES[experiment.metric(task)])
            columns.append(_Column(task, test_set, ", ".join(parts)))
    return columns


def _is_first_test_set(column: _Column, columns: Sequence[_Column]) -> bool:
    """Whether it is the task's first, leaving the validation set aside."""
    for other in columns:
        if other.task == column.task and other.test_set != VALIDATION_SET:
            return other == column
    return False


def _column_cells(
    experiment: ExperimentSettings,
    results: Sequence[JobResult],
    p_values: dict[tuple[str, str, str, str], float],
    column: _Column,
    first: bool,
) -> dict[str, ScoreCell]:
    """Cells of a column by system. `first`: it is the task's first test set."""
    task = column.task
    metric = experiment.metric(task)
    lower = metric in LOWER_IS_BETTER
    runs = _runs_by_system(results, column, metric)
    best = _best_systems(runs, lower)
    base = runs.get(experiment.baseline or "", _ScoresBySeed())
    cells = {}
    for system, own in runs.items():
        differences = {}
        if system != experiment.baseline:
            for seed, score in own.scores.items():
                if seed in base.scores:
                    differences[seed] = score - base.scores[seed]
        marks = ""
        for symbol, other in zip(SYMBOLS, experiment.tested_against(), strict=False):
            p = p_values.get((task, column.test_set, system, other))
            if p is not None:
                marks += symbol * _significance(p)
        cells[system] = ScoreCell(
            scores=own.scores,
            jobs=own.jobs,
            differences=differences,
            marks=marks,
            best=system in best,
            published=_published(experiment, task, system) if first else None,
            wanted=len(experiment.seeds),
            lower=lower,
        )
    return cells


def _runs_by_system(
    results: Sequence[JobResult], column: _Column, metric: str
) -> dict[str, _ScoresBySeed]:
    """Scores and jobs on a column's test set, seeds in ascending order."""
    runs: dict[str, _ScoresBySeed] = {}
    for result in sorted(results, key=_seed):
        scores = result.scores.get(column.test_set, {})
        if result.task == column.task and result.system is not None and metric in scores:
            own = runs.setdefault(result.system, _ScoresBySeed())
            own.scores[result.seed] = scores[metric]
            own.jobs[result.seed] = result.job
    return runs


def _seed(result: JobResult) -> int:
    return result.seed


def _best_systems(runs: dict[str, _ScoresBySeed], lower: bool) -> set[str]:
    """The best among those with the most seeds; none where there is nothing to compare."""
    most = max((len(own.scores) for own in runs.values()), default=0)
    means = {name: _mean(own.scores) for name, own in runs.items() if len(own.scores) == most}
    if len(means) < 2:
        return set()
    best = min(means.values()) if lower else max(means.values())
    return {name for name, mean in means.items() if mean == best}


def _significance(p: float) -> int:
    """How many symbols a p-value is worth."""
    if p < 0.01:
        return 2
    return 1 if p < 0.05 else 0


def _published(experiment: ExperimentSettings, task: str, system: str) -> str | None:
    """The figure of others; it is BLEU."""
    value = experiment.published.get(task, {}).get(system)
    if value is None or experiment.metric(task) not in ("bleu", "multi-bleu"):
        return None
    return value if isinstance(value, str) else f"{value:.2f}"


def _notes(experiment: ExperimentSettings, seeds: int) -> list[str]:
    """How to read the table; `seeds`: the most that a cell has."""
    notes = []
    if seeds > 1:
        notes.append(
            f"Mean ± (population) standard deviation over {seeds} seeds; differences over those "
            "that both have."
        )
    if experiment.baseline is not None:
        baseline = experiment.label(experiment.baseline)
        note = f"In parentheses: difference from {baseline}. Bold: best."
        if any(experiment.metric(task) in LOWER_IS_BETTER for task in experiment.tasks):
            note += " Lower TER is better."
        notes.append(note)
    together = ", over all seeds" if seeds > 1 else ""
    for symbol, other in zip(SYMBOLS, experiment.tested_against(), strict=False):
        label = experiment.label(other).removeprefix("+ ")
        notes.append(
            f"{symbol} / {symbol * 2}: differs from {label} with p < 0.05 / p < 0.01 (paired "
            f"bootstrap, {experiment.report.resamples:,} samples of the sentences{together})."
        )
    return notes


def label_of(row: SystemRow) -> str:
    """The baseline has its block's name; the others are what is added to it."""
    return f"{row.label} ({row.block})" if row.is_baseline and row.block else row.label


def results_markdown(table: ResultsTable) -> str:
    """The table and its notes as Markdown."""
    header = [table.metric, *(escape_markdown(title) for title in table.columns)]
    rows = []
    for row in table.rows:
        label = escape_markdown(label_of(row))
        rows.append([label, *(_markdown_cell(cell) for cell in row.cells)])
    lines = [markdown_table(header, rows, align="l" + "r" * len(table.columns)), ""]
    for note in table.notes:
        lines.append(escape_markdown(note) + "  ")  # two spaces break the line
    return "\n".join(lines).rstrip() + "\n"


def _markdown_cell(cell: ScoreCell | None) -> str:
    if cell is None:
        return "–"
    text = f"**{cell.text()}**" if cell.best else cell.text()
    text += escape_markdown(cell.marks) + cell.missing_seeds
    if cell.published:
        text += f" [published: {cell.published}]"
    return text


def results_latex(table: ResultsTable, spread: bool = False) -> str:
    """A tabular; with `spread` mean ± std, else mean (difference)."""
    lines = [r"\begin{tabular}{l|" + "|".join("c" * len(table.columns)) + "}", r"\toprule"]
    header = [rf"\textbf{{{escaped(title)}}}" for title in ["Model", *table.columns]]
    lines.append(_latex_line(header))
    block = None
    for row in table.rows:
        if row.block != block:
            lines.append(r"\midrule")
            block = row.block
        cells = [_latex_cell(cell, spread) for cell in row.cells]
        lines.append(_latex_line([_latex_label(row), *cells]))
    lines += [r"\bottomrule", r"\end{tabular}", f"% {table.metric}"]
    lines += [f"% {note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_label(row: SystemRow) -> str:
    if not row.is_baseline:
        return r"\quad " + escaped(row.label)
    block = f"$_{{{escaped(row.block)}}}$" if row.block else ""
    return escaped(row.label) + block


def _latex_cell(cell: ScoreCell | None, spread: bool) -> str:
    if cell is None:
        return "--"
    text = f"{cell.mean:.2f}{cell.spread}" if spread else cell.text(spread=False)
    text = escaped(text)
    if cell.marks:
        symbols = "".join(LATEX_SYMBOLS[mark] for mark in cell.marks)
        text += f"$^{{{symbols}}}$"
    if cell.best:
        text = rf"\textbf{{{text}}}"
    return text + escaped(cell.missing_seeds)
