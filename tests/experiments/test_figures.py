"""Figures of an experiment: colours and legends, also where results are missing."""

from __future__ import annotations

import pytest
from tasks import ROOT

from cbmi.experiments.figures import sweep_figure, validation_figure
from cbmi.experiments.records import JobKind, JobResult, ValidationPoint
from cbmi.experiments.settings import ExperimentSettings, read_experiment
from cbmi.reporting.drawing import CYCLE, plotting

RECIPES = ROOT / "recipes" / "experiments"


@pytest.fixture
def plotter():
    with plotting() as module:
        yield module


def validated(task: str, system: str) -> JobResult:
    points = (ValidationPoint(10, 3.0, 20.0), ValidationPoint(20, 2.0, 25.0))
    return JobResult(f"{task}-1-{system}", JobKind.SYSTEM, task, 1, system, validations=points)


def two_tasks() -> ExperimentSettings:
    return read_experiment(RECIPES / "table1.yaml", ["tasks.other={run: ../multi30k.yaml}"])


def test_a_system_has_one_colour_in_all_panels(plotter):
    """The legend has every system, also those that the last panel lacks."""
    experiment = two_tasks()
    first, second, third = list(experiment.expanded())[:3]
    results = [validated("multi30k", name) for name in (first, second, third)]
    results += [validated("other", name) for name in (third,)]
    figure = validation_figure(plotter, experiment, results)
    colors = []
    for axis in figure.axes:
        colors.append({line.get_label(): line.get_color() for line in axis.lines})
    labels = [experiment.label(name) for name in (first, second, third)]
    assert colors[0] == dict(zip(labels, CYCLE, strict=False))
    assert colors[1] == {labels[2]: CYCLE[2]}
    legend = figure.legends[0]
    shown = {}
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        shown[text.get_text()] = handle.get_color()
    assert shown == colors[0]


def test_a_sweep_draws_every_task(plotter):
    """Also the ninth, for which there is no colour of its own."""
    more = [f"tasks.more{number}={{run: ../multi30k.yaml}}" for number in range(len(CYCLE))]
    experiment = read_experiment(RECIPES / "scale-sweep.yaml", more)
    system = next(name for name in experiment.expanded() if "=" in name)
    results = []
    for task in experiment.tasks:
        on_valid = {"valid": {"bleu": 20.0}, "test": {"bleu": 20.0}}
        results.append(JobResult(task, JobKind.SYSTEM, task, 1, system, on_valid))
    figure = sweep_figure(plotter, experiment, results)
    _, labels = figure.axes[0].get_legend_handles_labels()
    assert len(labels) == len(CYCLE) + 1
