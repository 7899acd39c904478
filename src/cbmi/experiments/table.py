"""Results to the table of an experiment: systems down, tasks across, mean ± std over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cbmi.evaluation.paired_t import FEWEST_SEEDS, LEVEL, holm, paired_t_test
from cbmi.experiments.records import JobKind, JobResult, SystemComparison
from cbmi.experiments.registration import EXPLORATORY, Registration
from cbmi.experiments.settings import METRIC_NAMES, VALIDATION_SET, ExperimentSettings
from cbmi.reporting.tables import signed

SYMBOLS = ("*", "†", "‡", "§")  # of the systems that the others are tested against, in order
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
    notes: list[str]  # how to read it, and all tables of the report
    power: str = ""  # what its seeds can show; empty: nothing was tested
    seeds: int = 1  # the most that a cell has
    key: str = "bleu"  # of its metric, or "score" where it has several
    other_domains: bool = False  # whether its test sets are of other domains

    @property
    def heading(self) -> str:
        return f"{self.metric}, other domains" if self.other_domains else self.metric


@dataclass(frozen=True)
class _Column:
    """A task's test set. Tasks of several blocks may share a title, and so a column."""

    task: str
    test_set: str
    title: str
    metric: str


@dataclass
class _ScoresBySeed:
    """Of one system on one test set."""

    scores: dict[int, float] = field(default_factory=dict)
    jobs: dict[int, str] = field(default_factory=dict)


def results_tables(
    experiment: ExperimentSettings,
    results: Sequence[JobResult],
    comparisons: Sequence[SystemComparison],
    registration: Registration | None = None,
) -> list[ResultsTable]:
    """A table for each metric: the first that every task names, the second, and so on.

    Test sets of other domains have tables of their own, after the others.
    """
    count = max(len(experiment.metrics(task)) for task in experiment.tasks)
    tables = []
    for other_domains in (False, True):
        for place in range(count):
            table = results_table(
                experiment, results, comparisons, registration, place, other_domains
            )
            if table.rows:
                tables.append(table)
    return tables


def results_table(
    experiment: ExperimentSettings,
    results: Iterable[JobResult],
    comparisons: Iterable[SystemComparison],
    registration: Registration | None = None,
    place: int = 0,
    other_domains: bool = False,
) -> ResultsTable:
    """The table of what is there, by the tasks' metrics at a place of their lists."""
    runs = [result for result in results if result.kind is JobKind.SYSTEM]
    tested = [one for one in comparisons if one.seed is None]
    columns = _columns(experiment, runs, registration, place, other_domains)
    titles = list(dict.fromkeys(column.title for column in columns))
    blocks = list(dict.fromkeys(experiment.block_of(task) for task in experiment.tasks))
    rows: list[SystemRow] = []
    for block in blocks:
        cells_by_title: dict[str, dict[str, ScoreCell]] = {}
        for column in columns:
            if experiment.block_of(column.task) == block:
                first = not other_domains and _is_first_test_set(column, columns)
                cells = _column_cells(experiment, runs, tested, column, first)
                cells_by_title.setdefault(column.title, cells)
        for system in experiment.expanded():
            row_cells = [cells_by_title.get(title, {}).get(system) for title in titles]
            if any(row_cells):
                label = experiment.label(system)
                if _is_exploratory(experiment, registration, system):
                    label += EXPLORATORY
                rows.append(SystemRow(label, block, system == experiment.baseline, row_cells))
    seeds = 1
    for row in rows:
        for cell in row.cells:
            if cell is not None:
                seeds = max(seeds, len(cell.scores))
    keys = {column.metric for column in columns}
    key = keys.pop() if len(keys) == 1 else "score"
    notes = _notes(experiment, columns, seeds)
    power = _power(columns, tested)
    metric = METRIC_NAMES.get(key, "Score")
    return ResultsTable(metric, titles, rows, notes, power, seeds, key, other_domains)


def _is_exploratory(
    experiment: ExperimentSettings, registration: Registration | None, system: str
) -> bool:
    """Whether a system was added after the registration, to a task that was registered."""
    if registration is None:
        return False
    registered = [task for task in experiment.tasks if registration.has_task(task)]
    return not all(registration.has_system(task, system) for task in registered)


def _columns(
    experiment: ExperimentSettings,
    runs: Sequence[JobResult],
    registration: Registration | None,
    place: int,
    other_domains: bool,
) -> list[_Column]:
    """The test sets that there are scores of, task by task."""
    metrics = {task: experiment.metrics(task)[place : place + 1] for task in experiment.tasks}
    several_metrics = len(set(metrics.values())) > 1
    columns = []
    for task in experiment.tasks:
        if not metrics[task]:
            continue
        (metric,) = metrics[task]
        test_sets: dict[str, None] = {}  # an ordered set
        for run in runs:
            if run.task == task:
                test_sets.update(dict.fromkeys(experiment.reported(run.scores)))
        for test_set in test_sets:
            if (test_set in experiment.report.other_domains) != other_domains:
                continue
            parts = [experiment.title_of(task)]
            if len(test_sets) > 1 or test_set == VALIDATION_SET:
                parts.append(test_set)
            if several_metrics:
                parts.append(METRIC_NAMES[metric])
            title = ", ".join(parts)
            if registration is not None and not (
                registration.has_set(task, test_set) and registration.has_metric(task, metric)
            ):
                title += EXPLORATORY
            columns.append(_Column(task, test_set, title, metric))
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
    comparisons: Sequence[SystemComparison],
    column: _Column,
    first: bool,
) -> dict[str, ScoreCell]:
    """Cells of a column by system. `first`: it is the task's first test set."""
    task = column.task
    lower = column.metric in LOWER_IS_BETTER
    runs = _runs_by_system(results, column)
    levels = {}
    for one in comparisons:
        if (one.task, one.set, one.metric) == (task, column.test_set, column.metric):
            levels[one.system, one.against] = one.level()
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
            marks += symbol * _significance(levels.get((system, other), 1.0))
        cells[system] = ScoreCell(
            scores=own.scores,
            jobs=own.jobs,
            differences=differences,
            marks=marks,
            best=system in best,
            published=_published(experiment, column, system) if first else None,
            wanted=len(experiment.seeds),
            lower=lower,
        )
    return cells


def _runs_by_system(results: Sequence[JobResult], column: _Column) -> dict[str, _ScoresBySeed]:
    """Scores and jobs on a column's test set, seeds in ascending order."""
    runs: dict[str, _ScoresBySeed] = {}
    for result in sorted(results, key=_seed):
        scores = result.scores.get(column.test_set, {})
        if result.task == column.task and result.system is not None and column.metric in scores:
            own = runs.setdefault(result.system, _ScoresBySeed())
            own.scores[result.seed] = scores[column.metric]
            own.jobs[result.seed] = result.job
    return runs


def _seed(result: JobResult) -> int:
    return result.seed


def _best_systems(runs: dict[str, _ScoresBySeed], lower: bool) -> set[str]:
    """The one that is better than every other by more than the seeds vary, if there is one."""
    most = max((len(own.scores) for own in runs.values()), default=0)
    means = {name: _mean(own.scores) for name, own in runs.items() if len(own.scores) == most}
    if len(means) < 2:
        return set()
    best = min(means, key=means.__getitem__) if lower else max(means, key=means.__getitem__)
    p_values = []
    for name, own in runs.items():
        if name == best:
            continue
        differences = []
        for seed, score in own.scores.items():
            if seed in runs[best].scores:
                differences.append(runs[best].scores[seed] - score)
        if len(differences) < FEWEST_SEEDS:
            return set()
        test = paired_t_test(differences)
        if test is None or (test.mean > 0) == lower:  # it is not ahead of this one
            return set()
        p_values.append(test.p)
    return {best} if max(holm(p_values)) < LEVEL else set()


def _significance(p: float) -> int:
    """How many symbols a p-value is worth."""
    if p < 0.01:
        return 2
    return 1 if p < 0.05 else 0


def _published(experiment: ExperimentSettings, column: _Column, system: str) -> str | None:
    """The figure of others; it is BLEU."""
    value = experiment.published.get(column.task, {}).get(system)
    if value is None or column.metric not in ("bleu", "multi-bleu"):
        return None
    return value if isinstance(value, str) else f"{value:.2f}"


def _notes(experiment: ExperimentSettings, columns: Sequence[_Column], seeds: int) -> list[str]:
    """How to read the table; `seeds`: the most that a cell has."""
    notes = []
    if seeds > 1:
        notes.append(
            f"Mean ± (population) standard deviation over {seeds} seeds; differences over those "
            "that both have."
        )
    if experiment.baseline is not None:
        baseline = experiment.label(experiment.baseline)
        note = f"In parentheses: difference from {baseline}."
        if any(column.metric in LOWER_IS_BETTER for column in columns):
            note += " Lower TER is better."
        notes.append(note)
    if seeds < FEWEST_SEEDS:
        notes.append(
            f"Nothing is marked or bold: with fewer than {FEWEST_SEEDS} seeds, a difference "
            "between systems cannot be told from one between seeds."
        )
        return notes
    for symbol, other in zip(SYMBOLS, experiment.tested_against(), strict=False):
        label = experiment.label(other).removeprefix("+ ")
        notes.append(
            f"{symbol} / {symbol * 2}: differs from {label} with p < 0.05 / p < 0.01 over the "
            "seeds (paired t-test, two-sided, corrected by Holm's method for the number of "
            "systems) and over the sentences (paired bootstrap, "
            f"{experiment.report.resamples:,} samples)."
        )
    notes.append("Bold: better than every other system over the seeds, by the same t-test.")
    return notes


def _power(columns: Sequence[_Column], comparisons: Sequence[SystemComparison]) -> str:
    """How large a difference the seeds can show."""
    sets = {(column.task, column.test_set, column.metric) for column in columns}
    detectable = []
    for one in comparisons:
        test = one.over_seeds
        if (one.task, one.set, one.metric) in sets and test is not None and test.error > 0:
            detectable.append(f"{test.detectable(one.tests):.2f}")
    if not detectable:
        return ""
    smallest = min(detectable, key=float)
    largest = max(detectable, key=float)
    sizes = smallest if smallest == largest else f"{smallest} to {largest}, by system,"
    return (
        f"With this many seeds, the t-test finds a true difference of {sizes} in four of five "
        "experiments (a power of 80%), after the correction for the number of systems."
    )
