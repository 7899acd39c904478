"""Figures of an experiment, by matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from cbmi.analysis.drawing import BLUE, CYCLE, GREEN, GREY, INK, ORANGE, RED, drawable, drawn, plotting
from cbmi.experiments.settings import Experiment
from cbmi.experiments.table import METRIC_NAMES, Cell, Row, Table

PRIOR_STYLES = {
    "lm": ("LM prior", GREEN, "o"),
    "tm": ("TM prior", BLUE, "^"),
    "cbmi": ("CBMI prior", RED, "s"),
}
FAR = 8  # times as far from the baseline as usual: such a system would squeeze the others together
Record = dict[str, Any]


def make_figures(experiment: Experiment, table: Table, records: list[Record]) -> dict[str, tuple[bytes, bytes]]:
    """(SVG, PNG) by name, of what the experiment has."""
    result = {}
    with plotting() as pyplot:
        makers = {
            "differences": lambda: differences(pyplot, experiment, table),
            "sweep": lambda: sweep(pyplot, experiment, records),
            "prior-accuracy": lambda: prior_accuracy(pyplot, experiment, records),
            "validation": lambda: validation(pyplot, experiment, records),
        }
        for name, make in makers.items():
            figure = make()
            if figure is not None:
                result[name] = drawn(figure)
    return result


def differences(pyplot: Any, experiment: Experiment, table: Table) -> Any:
    """How far every system is from the baseline, a panel a column: the mean, and each seed from its own baseline."""

    def compared(column: int, block: str) -> list[Row]:
        return [
            row for row in table.rows if row.block == block and row.cells[column] and row.cells[column].differences
        ]

    blocks = dict.fromkeys(row.block for row in table.rows)
    panels = [(column, block) for column in range(len(table.columns)) for block in blocks if compared(column, block)]
    if not panels or len(table.rows) > 40:
        return None
    height = 0.9 + 0.3 * max(len(compared(*panel)) for panel in panels)
    figure, axes = _panels(pyplot, len(panels), (4.2, height), 3)
    before: list[str] = []  # names that stand beside the panel on the left are not repeated
    for axis, (column, block) in zip(axes, panels, strict=True):
        shown = compared(column, block)
        low, high = _limits([row.cells[column] for row in shown])
        for place, row in enumerate(reversed(shown)):
            cell = row.cells[column]
            points = list(cell.differences.values())
            color = BLUE if cell.ahead else ORANGE
            if not low <= cell.difference <= high:  # at the edge, with its number
                edge, marker, side = (low, "<", 1) if cell.difference < low else (high, ">", -1)
                axis.plot(edge, place, marker, color=color, markersize=7)
                where = {"xytext": (8 * side, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
                text = f"{cell.difference:+.2f}".replace("-", "−")
                axis.annotate(text, (edge, place), ha="left" if side > 0 else "right", **where)
                continue
            if len(points) > 1:
                axis.plot(points, [place] * len(points), "o", color=GREY, markersize=4, alpha=0.8)
            axis.plot(cell.difference, place, "D", color=color, markersize=6)
        axis.axvline(0, color=INK, linewidth=1)
        labels = [drawable(row.label) for row in reversed(shown)]
        repeated = labels == before and not axis.get_subplotspec().is_first_col()
        axis.set_yticks(range(len(shown)), [""] * len(labels) if repeated else labels)
        before = labels
        axis.set_ylim(-0.6, len(shown) - 0.4)
        axis.grid(axis="y", visible=False)
        title = drawable(table.columns[column] + (f" ({block})" if block else ""))
        name = drawable(experiment.label(experiment.baseline))
        axis.set(title=title, xlabel=f"{table.metric}, difference to {name}")
    return figure


def _panels(pyplot: Any, count: int, size: tuple[float, float], most: int = 2) -> tuple[Any, list[Any]]:
    """A figure of so many panels of a size, at most so many in a row."""
    rows = -(-count // most)
    columns = -(-count // rows)
    figsize = (size[0] * columns, size[1] * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=figsize, squeeze=False, layout="constrained")
    axes = list(axes.flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def _limits(cells: list[Cell]) -> tuple[float, float]:
    """The range that is drawn: all points but those of systems much further off than the others."""
    far = FAR * float(np.median([abs(cell.difference) for cell in cells]))
    near = [cell for cell in cells if abs(cell.difference) <= far]
    points = [0.0, *(point for cell in near for point in (cell.difference, *cell.differences.values()))]
    room = 0.08 * (max(points) - min(points))
    return min(points) - room, max(points) + room


def sweep(pyplot: Any, experiment: Experiment, records: list[Record]) -> Any:
    """Score over the values of a setting: a panel for every system that varies one, a line for every task."""
    varying = {name: system for name, system in experiment.systems.items() if system.vary}
    if not varying:
        return None
    figure, axes = pyplot.subplots(
        1, len(varying), figsize=(4.2 * len(varying), 3.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (name, system) in zip(axes[0], varying.items(), strict=True):
        ((setting, values),) = system.vary.items()
        for task, color in zip(experiment.tasks, CYCLE, strict=False):
            found = [(value, _scores(experiment, records, task, f"{name}={value}")) for value in values]
            found = [(value, scores) for value, scores in found if scores]
            if not found:
                continue
            means, spreads = ([f(scores) for _, scores in found] for f in (np.mean, np.std))
            label = drawable(experiment.title_of(task))
            axis.errorbar([v for v, _ in found], means, spreads, marker="o", capsize=3, color=color, label=label)
            base = _scores(experiment, records, task, experiment.baseline)
            if base:
                axis.axhline(np.mean(base), color=color, linestyle="--", linewidth=1)
        fixed = ", ".join(f"{k} {v}" for k, v in system.objective.items() if k not in ("name", "preset"))
        axis.set(xlabel=f"{setting}" + (f"   ({fixed})" if fixed else ""))
    on_valid = ", validation" if experiment.report.sets[0] == "valid" else ""
    axes[0][0].set_ylabel(METRIC_NAMES[experiment.report.metric] + on_valid)
    axes[0][0].legend(title=f"dashed: {drawable(experiment.label(experiment.baseline))}", fontsize=9)
    return figure


def _scores(experiment: Experiment, records: list[Record], task: str, system: str | None) -> list[float]:
    """Of a system's runs on the report's first test set."""
    found = [r for r in records if r["kind"] == "system" and (r["task"], r["system"]) == (task, system)]
    result = []
    for record in found:
        names = experiment.reported(record["scores"])
        result += [record["scores"][name][experiment.metric(task)] for name in names[:1]]
    return result


def prior_accuracy(pyplot: Any, experiment: Experiment, records: list[Record]) -> Any:
    """Top-1 accuracy of the three priors in bins of CBMI, and how many tokens are in each: a panel a task."""
    found = {
        task: [r["accuracy"] for r in records if r["kind"] == "prior-accuracy" and r["task"] == task]
        for task in experiment.tasks
    }
    found = {task: accuracies for task, accuracies in found.items() if accuracies}
    if not found:
        return None
    figure, axes = _panels(pyplot, len(found), (5.6, 3.4))
    for axis, (task, accuracies) in zip(axes, found.items(), strict=True):
        bins = accuracies[0]["bins"]
        tokens = np.sum([[b["tokens"] for b in one["bins"]] for one in accuracies], axis=0)
        places = np.arange(len(bins))
        axis.bar(places, tokens / tokens.sum(), color="#e1e5ea", width=0.9, label="share of tokens")
        for prior, (label, color, marker) in PRIOR_STYLES.items():
            right = np.sum([[b["tokens"] * b.get(prior, 0.0) for b in one["bins"]] for one in accuracies], axis=0)
            shares = np.where(tokens > 0, right / np.maximum(tokens, 1), np.nan)
            axis.plot(places, shares, marker=marker, color=color, label=label)
        names = [_bin_label(b) for b in bins]
        axis.set_xticks(places, names, fontsize=8)
        axis.set(xlabel="CBMI, nats", ylabel="top-1 accuracy", ylim=(0, 1))
        axis.set_title(_title(experiment, task))
    axes[0].legend(fontsize=9)
    return figure


def _bin_label(record: Record) -> str:
    low, high = record["above"], record["to"]
    if low is None:
        return f"≤{high:g}"
    return f">{low:g}" if high is None else f"{low:g}…{high:g}"


def validation(pyplot: Any, experiment: Experiment, records: list[Record]) -> Any:
    """The course of validation, a panel a task: the shared stages, then every system; means over the seeds."""
    tasks = [t for t in experiment.tasks if any(r["task"] == t and r.get("validations") for r in records)]
    if not tasks:
        return None
    figure, axes = _panels(pyplot, len(tasks), (5.6, 3.4))
    for axis, task in zip(axes, tasks, strict=True):
        mine = [r for r in records if r["task"] == task and r.get("validations")]
        kind = "valid_bleu" if "valid_bleu" in mine[0]["validations"][0] else "valid_loss"
        start, shown = [r for r in mine if r["kind"] == "start"], []
        if start:
            steps, values = _course(start, kind)
            axis.plot(steps, values, color=INK, marker="o" if len(steps) == 1 else None, label="shared stages")
        systems = [s for s in experiment.expanded() if any(r.get("system") == s for r in mine)]
        for place, system in enumerate(systems):
            line = "-" if place < len(CYCLE) else ":"
            course = _course([r for r in mine if r.get("system") == system], kind)
            marker = "o" if len(course[0]) == 1 else None  # a single validation is no line
            style = {"color": CYCLE[place % len(CYCLE)], "marker": marker, "linewidth": 1.2}
            axis.plot(*course, line, label=drawable(experiment.label(system)), **style)
            shown += course[1]
        kind_name = {"valid_bleu": "validation BLEU"}.get(kind, "validation loss")
        axis.set(xlabel="steps", ylabel=kind_name, title=_title(experiment, task))
        if kind == "valid_bleu" and start and len(values) > 3:  # the first steps would squeeze the rest
            bottom = min([np.percentile(values, 30), *shown])
            axis.set_ylim(bottom=bottom - 0.05 * (max([*values, *shown]) - bottom))
        axis.locator_params(axis="x", nbins=5)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    figure.legend(*axes[-1].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    return figure


def _title(experiment: Experiment, task: str) -> str:
    block = experiment.tasks[task].block
    return drawable(experiment.title_of(task) + (f" ({block})" if block else ""))


def _course(records: list[Record], kind: str) -> tuple[list[int], list[float]]:
    values: dict[int, list[float]] = {}
    for record in records:
        for one in record["validations"]:
            values.setdefault(one["step"], []).append(one[kind])
    steps = sorted(values)
    return steps, [float(np.mean(values[step])) for step in steps]
