"""An experiment's report: Markdown, HTML, LaTeX, CSV and figures.

Each number comes with the job that gave it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cbmi.errors import UserError
from cbmi.experiments.accuracy import AccuracyRow, accuracies_markdown, accuracy_rows
from cbmi.experiments.figures import experiment_figures
from cbmi.experiments.measure import measure, results_by_system
from cbmi.experiments.plan import Plan
from cbmi.experiments.records import JobResult, SystemComparison
from cbmi.experiments.report_comparisons import (
    COMPARISON_NOTE,
    ComparisonRow,
    comparison_rows,
    comparisons_markdown,
)
from cbmi.experiments.report_costs import (
    COST_NOTE,
    COST_TITLES,
    CostRow,
    cost_rows,
    costs_markdown,
)
from cbmi.experiments.report_jobs import (
    JobRow,
    experiment_details,
    job_rows,
    jobs_markdown,
    missing_runs,
    run_columns,
)
from cbmi.experiments.results import write_results
from cbmi.experiments.settings import ExperimentSettings
from cbmi.experiments.table import (
    ResultsTable,
    label_of,
    results_latex,
    results_markdown,
    results_table,
)
from cbmi.files import locked, write_atomically
from cbmi.reporting.drawing import Picture, data_address
from cbmi.reporting.pages import render_page
from cbmi.reporting.tables import csv_of_records, escape_markdown, signed
from cbmi.yaml_text import dump_yaml

CAPTIONS = {
    "differences": (
        "Difference from the baseline: diamonds are means, dots are seeds, each against its own "
        "baseline; an arrow stands for a system too far off to be drawn."
    ),
    "sweep": "Score over the setting that varies; bars are standard deviations over the seeds.",
    "prior-accuracy": (
        "How often each prior's best guess is the gold token, for tokens in bins of CBMI."
    ),
    "validation": (
        "The course of validation: what all systems share, then each system; means over the seeds."
    ),
}
MISSING_SHOWN = 4


@dataclass(frozen=True)
class ReportView:
    """What page and Markdown show."""

    title: str
    table: ResultsTable
    pictures: dict[str, Picture]
    comparisons: list[ComparisonRow]
    accuracies: list[AccuracyRow]
    costs: list[CostRow]
    jobs: list[JobRow]
    missing: str  # a sentence about the runs that are not done; empty: there are none
    signatures: dict[str, str]  # of the metric, by task
    details: list[tuple[str, str]]
    settings: str  # of the experiment, as YAML


def write_experiment_report(plan: Plan) -> Path:
    """Write the report of all that is done; returns its folder."""
    results = results_by_system(plan)
    if not results:
        raise UserError(f"{plan.folder}: no job is done yet, so there is nothing to report.")
    measured = measure(plan, results)
    files = render_report(
        plan.experiment,
        measured.results,
        measured.comparisons,
        measured.signatures,
        _links(plan),
    )
    folder = plan.folder / "report"
    write_results(plan, measured.comparisons)
    with locked(plan.folder / ".lock"):
        for name, content in files.items():
            write_atomically(folder / name, content)
    return folder


def _links(plan: Plan) -> dict[str, str]:
    """Where a job's folder lies, seen from the report's."""
    report = plan.folder / "report"
    return {name: os.path.relpath(job.folder, report) for name, job in plan.jobs.items()}


def render_report(
    experiment: ExperimentSettings,
    results: Sequence[JobResult],
    comparisons: Sequence[SystemComparison],
    signatures: dict[str, str],
    links: Mapping[str, str],
) -> dict[str, str | bytes]:
    """The report's files by name, from results and comparisons alone.

    signatures: of the metric, by task. links: where each job's folder lies, seen from the report's.
    """
    table = results_table(experiment, results, comparisons)
    pictures = experiment_figures(experiment, table, results)
    view = ReportView(
        title=experiment.title,
        table=table,
        pictures=pictures,
        comparisons=comparison_rows(experiment, comparisons),
        accuracies=accuracy_rows(experiment, results),
        costs=cost_rows(experiment, results) if experiment.report.costs else [],
        jobs=job_rows(results, links),
        missing=_missing_text(missing_runs(experiment, results)),
        signatures=signatures,
        details=experiment_details(results),
        settings=dump_yaml(experiment.model_dump(mode="json", exclude_defaults=True)),
    )
    files: dict[str, str | bytes] = {
        "report.html": _report_page(view),
        "report.md": _report_markdown(view),
    }
    if table.rows:
        files["table.tex"] = results_latex(table)
        files["table-std.tex"] = results_latex(table, spread=True)
        files["results.csv"] = csv_of_records(run_columns(results))
        files["comparisons.csv"] = csv_of_records([one.columns() for one in comparisons])
    if view.accuracies:
        files["prior-accuracy.csv"] = csv_of_records([row.columns() for row in view.accuracies])
    for name, picture in pictures.items():
        files[f"{name}.svg"] = picture.svg
        files[f"{name}.png"] = picture.png
    return files


def _report_page(view: ReportView) -> str:
    figures = {}
    for name, picture in view.pictures.items():
        figures[name] = (data_address(picture.svg), CAPTIONS[name])
    values = vars(view) | {
        "figures": figures,
        "label_of": label_of,
        "signed": signed,
        "comparison_note": COMPARISON_NOTE,
        "cost_titles": COST_TITLES,
        "cost_note": COST_NOTE,
    }
    return render_page("cbmi.experiments", "report.html.jinja", values)


def _report_markdown(view: ReportView) -> str:
    parts = [f"# {escape_markdown(view.title)}\n"]
    if view.table.rows:
        parts.append(results_markdown(view.table))
    for name in view.pictures:
        parts.append(f"![{CAPTIONS[name]}]({name}.png)\n")
    if view.comparisons:
        parts.append(comparisons_markdown(view.comparisons))
    if view.accuracies:
        parts.append(accuracies_markdown(view.accuracies))
    if view.costs:
        parts.append(costs_markdown(view.costs))
    if view.missing:
        parts.append(escape_markdown(view.missing) + "\n")
    for name, value in view.details:
        parts.append(f"- {name}: {escape_markdown(value)}")
    for task, signature in view.signatures.items():
        parts.append(f"- {escape_markdown(task)}: `{signature}`")
    parts += ["", jobs_markdown(view.jobs)]
    return "\n".join(parts) + "\n"


def _missing_text(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    runs = "1 run" if len(missing) == 1 else f"{len(missing)} runs"
    shown = "; ".join(missing[:MISSING_SHOWN])
    more = "; …" if len(missing) > MISSING_SHOWN else ""
    return f"Not done yet: {runs} ({shown}{more})."
