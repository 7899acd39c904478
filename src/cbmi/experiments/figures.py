"""Figures of an experiment, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cbmi.experiments.accuracy import pooled_accuracy
from cbmi.experiments.figure_differences import difference_figure
from cbmi.experiments.records import JobKind, JobResult
from cbmi.experiments.settings import (
    METRIC_NAMES,
    VALIDATION_SET,
    ExperimentSettings,
    SystemSettings,
)
from cbmi.experiments.table import ResultsTable
from cbmi.inspection.prior_accuracy import AccuracyBin
from cbmi.reporting.drawing import (
    BLUE,
    CYCLE,
    FAINT,
    GREEN,
    INK,
    RED,
    WIDTH,
    Picture,
    Plotter,
    drawable,
    drawn,
    panel_figure,
    plotting,
)
from cbmi.reporting.tables import bin_label

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PRIOR_STYLES = {
    "lm": ("LM prior", GREEN, "o"),
    "tm": ("TM prior", BLUE, "^"),
    "cbmi": ("CBMI prior", RED, "s"),
}


def experiment_figures(
    experiment: ExperimentSettings, tables: Sequence[ResultsTable], results: Sequence[JobResult]
) -> dict[str, Picture]:
    """Pictures by name, of what the experiment has. Differences are those of the first metric."""
    familiar = [table for table in tables if not table.other_domains]
    others = [table for table in tables if table.other_domains]
    with plotting() as plotter:
        figures = {
            "differences": difference_figure(plotter, experiment, familiar[:1]),
            "differences-other-domains": difference_figure(plotter, experiment, others[:1]),
            "sweep": sweep_figure(plotter, experiment, results),
            "prior-accuracy": prior_accuracy_figure(plotter, experiment, results),
            "validation": validation_figure(plotter, experiment, results),
        }
        return {name: drawn(figure) for name, figure in figures.items() if figure is not None}


def sweep_figure(
    plotter: Plotter, experiment: ExperimentSettings, results: Sequence[JobResult]
) -> Figure | None:
    """Score over the values of a setting: one panel per system that varies one, a line per task."""
    varying = {name: system for name, system in experiment.systems.items() if system.vary}
    if not varying or experiment.baseline is None:
        return None
    figure, grid = plotter.subplots(
        1,
        len(varying),
        figsize=(WIDTH, 3.2),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    axes = grid[0]
    for axis, (name, system) in zip(axes, varying.items(), strict=True):
        for place, task in enumerate(experiment.tasks):
            color = CYCLE[place % len(CYCLE)]
            _draw_sweep(axis, experiment, results, task, name, color)
        axis.set(xlabel=_sweep_label(system))
    on_valid = ", validation" if experiment.report.sets[0] == VALIDATION_SET else ""
    axes[0].set_ylabel(METRIC_NAMES[experiment.report.metric[0]] + on_valid)
    baseline = drawable(experiment.label(experiment.baseline))
    handles = _legend_handles(axes)
    figure.legend(
        handles.values(),
        handles.keys(),
        title=f"dashed: {baseline}",
        fontsize=9,
        loc="outside right center",
    )
    return figure


def _draw_sweep(
    axis: Axes,
    experiment: ExperimentSettings,
    results: Sequence[JobResult],
    task: str,
    name: str,
    color: str,
) -> None:
    """A task's line, with the standard deviations over the seeds; dashed: its baseline."""
    places = []
    means = []
    spreads = []
    for values in experiment.systems[name].vary.values():  # there is one setting
        for value in values:
            scores = _scores(experiment, results, task, f"{name}={value}")
            if scores:
                places.append(value)
                means.append(np.mean(scores))
                spreads.append(np.std(scores))
    if not places:
        return
    label = drawable(experiment.title_of(task))
    axis.errorbar(places, means, spreads, marker="o", capsize=3, color=color, label=label)
    base = _scores(experiment, results, task, experiment.baseline)
    if base:
        axis.axhline(float(np.mean(base)), color=color, linestyle="--", linewidth=1)


def _sweep_label(system: SystemSettings) -> str:
    """The setting that varies, and those that do not."""
    setting = next(iter(system.vary))
    fixed = []
    for key, value in system.objective.items():
        if key not in ("name", "preset"):
            fixed.append(f"{key} {value}")
    return f"{setting}   ({', '.join(fixed)})" if fixed else setting


def _scores(
    experiment: ExperimentSettings, results: Sequence[JobResult], task: str, system: str | None
) -> list[float]:
    """Of a system's runs on the report's first test set."""
    scores = []
    for result in results:
        if result.kind is JobKind.SYSTEM and result.task == task and result.system == system:
            test_sets = experiment.reported(result.scores)
            if test_sets:
                scores.append(result.scores[test_sets[0]][experiment.metrics(task)[0]])
    return scores


def prior_accuracy_figure(
    plotter: Plotter, experiment: ExperimentSettings, results: Sequence[JobResult]
) -> Figure | None:
    """Top-1 accuracy of the three priors in bins of CBMI, one panel per task.

    Bars are the shares of the tokens that are in each bin.
    """
    by_task: dict[str, list[AccuracyBin]] = {}
    for task in experiment.tasks:
        pooled = pooled_accuracy(results, task)
        if pooled:
            by_task[task] = pooled
    if not by_task:
        return None
    figure, axes = panel_figure(plotter, len(by_task), 3.4)
    for axis, (task, pooled) in zip(axes, by_task.items(), strict=True):
        _draw_accuracies(axis, pooled)
        axis.set_title(_title(experiment, task))
    handles = _legend_handles(axes)
    figure.legend(handles.values(), handles.keys(), fontsize=9, loc="outside right center")
    return figure


def _draw_accuracies(axis: Axes, pooled: Sequence[AccuracyBin]) -> None:
    """pooled: the bins, and at last all tokens."""
    *bins, whole = pooled
    places = range(len(bins))
    shares_of_tokens = [one.tokens / whole.tokens for one in bins]
    axis.bar(places, shares_of_tokens, color=FAINT, width=0.9, label="share of tokens")
    for prior, (label, color, marker) in PRIOR_STYLES.items():
        # NaN, where there is no token, leaves a gap in the line.
        shares = [one.shares.get(prior, math.nan) for one in bins]
        axis.plot(places, shares, marker=marker, color=color, label=label)
    labels = [bin_label(one.above, one.to, compact=True) for one in bins]
    axis.set_xticks(places, labels, fontsize=8)
    axis.set(xlabel="CBMI, nats", ylabel="top-1 accuracy", ylim=(0, 1))


def validation_figure(
    plotter: Plotter, experiment: ExperimentSettings, results: Sequence[JobResult]
) -> Figure | None:
    """The course of validation, one panel per task; means over the seeds.

    First the shared stages, then every system.
    """
    by_task: dict[str, list[JobResult]] = {}
    for task in experiment.tasks:
        validated = [result for result in results if result.task == task and result.validations]
        if validated:
            by_task[task] = validated
    if not by_task:
        return None
    figure, axes = panel_figure(plotter, len(by_task), 3.4)
    for axis, (task, validated) in zip(axes, by_task.items(), strict=True):
        _draw_validation(axis, experiment, validated)
        axis.set_title(_title(experiment, task))
    handles = _legend_handles(axes)
    figure.legend(handles.values(), handles.keys(), fontsize=8, loc="outside right center")
    return figure


def _legend_handles(axes: Sequence[Axes]) -> dict[str, Artist]:
    """What stands for each label of any panel; a panel may lack some of the systems."""
    found: dict[str, Artist] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    return found


def _draw_validation(
    axis: Axes, experiment: ExperimentSettings, results: Sequence[JobResult]
) -> None:
    by_bleu = results[0].validations[0].bleu is not None
    shared = _course([result for result in results if result.kind is JobKind.START], by_bleu)
    if shared.steps:
        marker = _marker(shared)
        axis.plot(shared.steps, shared.values, color=INK, marker=marker, label="shared stages")
    shown: list[float] = []  # values of all systems
    # The place among all systems: a system has one colour, whatever a panel lacks.
    for place, system in enumerate(experiment.expanded()):
        own = [result for result in results if result.system == system]
        if not own:
            continue
        course = _course(own, by_bleu)
        # It goes on from where the shared stages ended.
        axis.plot(
            shared.steps[-1:] + course.steps,
            shared.values[-1:] + course.values,
            "-" if place < len(CYCLE) else ":",
            label=drawable(experiment.label(system)),
            color=CYCLE[place % len(CYCLE)],
            marker=_marker(course) if not shared.steps else None,
            linewidth=1.2,
        )
        shown += course.values
    axis.set(xlabel="steps", ylabel="validation BLEU" if by_bleu else "validation loss")
    if by_bleu and len(shared.values) > 3:  # the first steps would squeeze the rest
        bottom = min([np.percentile(shared.values, 30), *shown])
        top = max([*shared.values, *shown])
        axis.set_ylim(bottom=bottom - 0.05 * (top - bottom))
    axis.locator_params(axis="x", nbins=5)
    axis.xaxis.set_major_formatter("{x:,.0f}")


class _Course(NamedTuple):
    steps: list[int]
    values: list[float]


def _course(results: Sequence[JobResult], by_bleu: bool) -> _Course:
    """Validation BLEU or loss by step, means over the runs.

    Where some runs have no value (patience ended them, or one was made longer), a mean over the
    others would be a kink: such steps are left out.
    """
    values: dict[int, list[float]] = {}
    for result in results:
        for point in result.validations:
            value = point.bleu if by_bleu else point.loss
            if value is not None:
                values.setdefault(point.step, []).append(value)
    steps = sorted(step for step, found in values.items() if len(found) == len(results))
    return _Course(steps, [float(np.mean(values[step])) for step in steps])


def _marker(course: _Course) -> str | None:
    return "o" if len(course.steps) == 1 else None  # a single validation is not a line


def _title(experiment: ExperimentSettings, task: str) -> str:
    block = experiment.block_of(task)
    return drawable(experiment.title_of(task) + (f" ({block})" if block else ""))
