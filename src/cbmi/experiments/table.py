"""Results to the table of an experiment: systems down, tasks across, mean ± std over the seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cbmi.analysis.latex import escaped
from cbmi.experiments.settings import Experiment

SYMBOLS = ("*", "†", "‡", "§")  # of the systems that the others are tested against, in order
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "multi-bleu": "multi-BLEU"}
Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    scores: dict[int, float]  # by seed
    jobs: dict[int, str]
    differences: dict[int, float]  # to the baseline, by seed; none for the baseline itself, or where it is missing
    marks: str = ""  # such as "**"
    best: bool = False
    published: str | None = None
    wanted: int = 1  # seeds that the experiment has
    lower: bool = False  # is better

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.scores.values())))

    @property
    def std(self) -> float:
        return float(np.std(list(self.scores.values())))

    @property
    def difference(self) -> float | None:
        """The mean over the seeds that both have."""
        return float(np.mean(list(self.differences.values()))) if self.differences else None

    @property
    def ahead(self) -> bool:
        """Whether it is at least as good as the baseline."""
        return (self.difference or 0.0) * (-1 if self.lower else 1) >= 0

    @property
    def spread(self) -> str:
        return f" ± {self.std:.2f}" if len(self.scores) > 1 else ""

    @property
    def short(self) -> str:
        """Says so where runs are missing."""
        count = len(self.scores)
        return "" if count == self.wanted else f" [{count} of {self.wanted} seeds]"

    def text(self, spread: bool = True) -> str:
        """29.01 ± 0.08 (+0.91)"""
        difference = "" if self.difference is None else f" ({signed(self.difference)})"
        return f"{self.mean:.2f}" + (self.spread if spread else "") + difference


def signed(difference: float) -> str:
    """+0.91; what rounds to nothing has no minus."""
    text = f"{difference:+.2f}"
    return "+0.00" if text == "-0.00" else text


@dataclass(frozen=True)
class Row:
    label: str
    block: str
    is_baseline: bool
    cells: list[Cell | None]


@dataclass(frozen=True)
class Table:
    metric: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]
    seeds: int = 1  # the most that a cell has


def make_table(experiment: Experiment, records: Iterable[Record]) -> Table:
    """The table of what is there; `records`: of jobs and of comparisons."""
    records = list(records)
    places = _columns(experiment, records)
    columns = list(dict.fromkeys(title for _, title in places))
    blocks = list(dict.fromkeys(task.block or "" for task in experiment.tasks.values()))
    systems = experiment.expanded()
    rows = []
    for block in blocks:
        grid = {system: [] for system in systems}
        for title in columns:
            place = [p for p, name in places if name == title and (experiment.tasks[p[0]].block or "") == block]
            cells = _column(experiment, records, *place[0]) if place else {}
            for system in systems:
                grid[system].append(cells.get(system))
        for system, cells in grid.items():
            if any(cells):
                rows.append(Row(experiment.label(system), block, system == experiment.baseline, cells))
    found = [cell for row in rows for cell in row.cells if cell]
    most = max((len(cell.scores) for cell in found), default=1)
    metrics = {METRIC_NAMES[experiment.metric(task)] for task in experiment.tasks}
    return Table(metrics.pop() if len(metrics) == 1 else "Score", columns, rows, _notes(experiment, most), most)


def _columns(experiment: Experiment, records: list[Record]) -> list[tuple[tuple[str, str], str]]:
    """((task, test set), title): tasks of several blocks may share a title."""
    sets: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records:
        if record["kind"] == "system":
            sets[record["task"]] |= dict.fromkeys(experiment.reported(record["scores"]))
    result = []
    several = len({experiment.metric(task) for task in experiment.tasks}) > 1
    for name in experiment.tasks:
        for chosen in sets[name]:
            parts = [experiment.title_of(name)] + ([chosen] if len(sets[name]) > 1 or chosen == "valid" else [])
            parts += [METRIC_NAMES[experiment.metric(name)]] if several else []
            result.append(((name, chosen), ", ".join(parts)))
    return result


def _column(experiment: Experiment, records: list[Record], task: str, chosen: str) -> dict[str, Cell]:
    """Cells by system."""
    metric = experiment.metric(task)
    scores: dict[str, dict[int, float]] = defaultdict(dict)
    jobs: dict[str, dict[int, str]] = defaultdict(dict)
    for record in sorted((r for r in records if r["kind"] == "system" and r["task"] == task), key=_seed):
        if metric in record["scores"].get(chosen, {}):
            scores[record["system"]][record["seed"]] = record["scores"][chosen][metric]
            jobs[record["system"]][record["seed"]] = record["job"]
    means = {system: float(np.mean(list(runs.values()))) for system, runs in scores.items()}
    most = max(map(len, scores.values()), default=0)
    complete = {system: mean for system, mean in means.items() if len(scores[system]) == most}  # alike many seeds
    best = (min if metric == "ter" else max)(complete.values(), default=None)
    base = scores.get(experiment.baseline, {})
    cells = {}
    for system, runs in scores.items():
        compared = {} if system == experiment.baseline else base
        cells[system] = Cell(
            runs,
            jobs[system],
            {seed: score - compared[seed] for seed, score in runs.items() if seed in compared},
            _marks(experiment, records, task, chosen, system),
            complete.get(system) == best and len(complete) > 1,
            _published(experiment, task, chosen, system, records),
            len(experiment.seeds),
            metric == "ter",
        )
    return cells


def _published(experiment: Experiment, task: str, chosen: str, system: str, records: list[Record]) -> str | None:
    """The figure of others, if this is BLEU of the first test set."""
    tests = [name for (own, name), _ in _columns(experiment, records) if own == task and name != "valid"]
    value = experiment.published.get(task, {}).get(system)
    if value is None or tests[:1] != [chosen] or experiment.metric(task) not in ("bleu", "multi-bleu"):
        return None
    return value if isinstance(value, str) else f"{value:.2f}"


def _seed(record: Record) -> int:
    return record["seed"]


def tested_against(experiment: Experiment) -> list[str]:
    return list(experiment.report.significance) or ([experiment.baseline] if experiment.baseline else [])


def _marks(experiment: Experiment, records: list[Record], task: str, chosen: str, system: str) -> str:
    """A symbol where p < 0.05 over all seeds, two where p < 0.01, for each system that it is tested against."""
    marks = ""
    for symbol, other in zip(SYMBOLS, tested_against(experiment), strict=False):
        for record in records:
            wanted = (task, chosen, system, other, None)
            keys = ("task", "set", "system", "against", "seed")
            if record["kind"] == "comparison" and tuple(record[key] for key in keys) == wanted:
                marks += symbol * ((record["p"] < 0.05) + (record["p"] < 0.01))
    return marks


def _notes(experiment: Experiment, seeds: int) -> list[str]:
    notes = []
    if seeds > 1:
        notes.append(
            f"Mean ± (population) standard deviation over {seeds} seeds; differences over those that both have."
        )
    if experiment.systems:
        lower = " Lower TER is better." if any(experiment.metric(task) == "ter" for task in experiment.tasks) else ""
        notes.append(f"In brackets: difference to {experiment.label(experiment.baseline)}. Bold: the best.{lower}")
    together = ", over all seeds" if seeds > 1 else ""
    for symbol, other in zip(SYMBOLS, tested_against(experiment), strict=False):
        notes.append(
            f"{symbol} / {symbol * 2}: differs from {experiment.label(other).removeprefix('+ ')} with p < 0.05 / "
            f"p < 0.01 (paired bootstrap, {experiment.report.resamples:,} samples of the sentences{together})."
        )
    return notes


def label_of(row: Row) -> str:
    """The baseline has its block's name; the others are what is added to it."""
    return f"{row.label} ({row.block})" if row.is_baseline and row.block else row.label


def to_markdown(table: Table) -> str:
    titles = [table.metric, *map(markdown, table.columns)]
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|--:" * len(table.columns) + "|"]
    for row in table.rows:
        cells = [markdown(label_of(row)), *(_markdown_cell(cell) for cell in row.cells)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"{markdown(note)}  " for note in table.notes)]).rstrip() + "\n"


def markdown(text: str) -> str:
    for character in "\\|*_<":
        text = text.replace(character, "\\" + character)
    return text


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    text = f"**{cell.text()}**" if cell.best else cell.text()
    published = f" [published: {cell.published}]" if cell.published else ""
    return text + markdown(cell.marks) + cell.short + published


LATEX_SYMBOLS = {"*": r"\ast", "†": r"\dagger", "‡": r"\ddagger", "§": r"\S"}


def to_latex(table: Table, spread: bool = False) -> str:
    """A tabular; with `spread` mean ± std, else mean (difference)."""
    lines = [r"\begin{tabular}{l|" + "|".join("c" * len(table.columns)) + "}", r"\toprule"]
    lines.append(" & ".join(rf"\textbf{{{escaped(text)}}}" for text in ["Model", *table.columns]) + r" \\")
    block = None
    for row in table.rows:
        if row.block != block:
            lines.append(r"\midrule")
            block = row.block
        lines.append(" & ".join([_latex_label(row), *(_latex_cell(cell, spread) for cell in row.cells)]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, f"% {table.metric}", *(f"% {note}" for note in table.notes)]) + "\n"


def _latex_label(row: Row) -> str:
    if row.is_baseline:
        return escaped(row.label) + (f"$_{{{escaped(row.block)}}}$" if row.block else "")
    return r"\quad " + escaped(row.label)


def _latex_cell(cell: Cell | None, spread: bool) -> str:
    if cell is None:
        return "--"
    text = escaped(f"{cell.mean:.2f}{cell.spread}") if spread else cell.text(spread=False)
    marks = "".join(LATEX_SYMBOLS[mark] for mark in cell.marks)
    text += f"$^{{{marks}}}$" if marks else ""
    return (rf"\textbf{{{text}}}" if cell.best else text) + escaped(cell.short)
