"""The report's table of costs: parameters, time and disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cbmi.experiments.records import JobResult
from cbmi.experiments.settings import ExperimentSettings
from cbmi.reporting.tables import escape_markdown, markdown_table

COST_TITLES = (
    "preparation, s",
    "parameters, M",
    "training, s",
    "tokens/s",
    "time per token (baseline = 1)",
    "disk, MB",
)
COST_NOTE = (
    "Means over the seeds. Training is the time spent in steps: it includes compilation, not "
    "validation. tokens/s is the median over the log. The shared stages also train the language "
    "model, which only some systems need. Jobs that share a device slow each other down."
)


@dataclass(frozen=True)
class CostRow:
    """What a system costs, means over its runs."""

    task: str
    system: str
    preparation: float  # seconds
    parameters: float  # millions
    training: float  # seconds
    speed: float  # tokens per second
    relative_time: float  # per token, the baseline's being 1
    disk: float  # MB that were prepared

    @property
    def cells(self) -> list[str]:
        """In the order of `COST_TITLES`."""
        return [
            f"{self.preparation:,.1f}",
            f"{self.parameters:,.1f}",
            f"{self.training:,.1f}",
            f"{self.speed:,.0f}",
            f"{self.relative_time:.2f}",
            f"{self.disk:,.1f}",
        ]


def cost_rows(experiment: ExperimentSettings, results: Sequence[JobResult]) -> list[CostRow]:
    """Task by task: the shared stages, then every system."""
    rows = []
    for task in experiment.tasks:
        trained = [result for result in results if result.task == task and result.training_seconds]
        runs_by_system: dict[str | None, list[JobResult]] = {}  # None: the shared stages
        for system in (None, *experiment.expanded()):
            runs = [result for result in trained if result.system == system]
            if runs:
                runs_by_system[system] = runs
        baseline_speed = math.nan
        if experiment.baseline in runs_by_system:
            baseline_speed = _speed(runs_by_system[experiment.baseline])
        for system, runs in runs_by_system.items():
            label = "shared stages" if system is None else experiment.label(system)
            rows.append(_cost_row(experiment.title_of(task), label, runs, baseline_speed))
    return rows


def _cost_row(task: str, label: str, runs: Sequence[JobResult], baseline_speed: float) -> CostRow:
    prepared = [run.preparation for run in runs if run.preparation is not None]
    return CostRow(
        task=task,
        system=label,
        preparation=float(np.mean([cost.seconds for cost in prepared])),
        parameters=sum(runs[0].parameters.values()) / 1e6,
        training=float(np.mean([run.training_seconds or 0.0 for run in runs])),
        speed=_speed(runs),
        relative_time=baseline_speed / _speed(runs),
        disk=float(np.mean([cost.bytes for cost in prepared])) / 1e6,
    )


def _speed(runs: Sequence[JobResult]) -> float:
    """Tokens per second."""
    return float(np.mean([run.tokens_per_second or 0 for run in runs]))


def costs_markdown(rows: Sequence[CostRow]) -> str:
    cells = []
    for row in rows:
        cells.append([escape_markdown(row.task), escape_markdown(row.system), *row.cells])
    header = ["task", "system", *COST_TITLES]
    table = markdown_table(header, cells, align="ll" + "r" * len(COST_TITLES))
    return f"{table}\n\n{COST_NOTE}\n"
