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
from cbmi.experiments.measure import Measured, measure, results_by_system
from cbmi.experiments.plan import Plan
from cbmi.experiments.registration import Registration, read_registration
from cbmi.experiments.report_comparisons import (
    COMPARISON_NOTE,
    COMPARISON_TITLES,
    ComparisonRow,
    comparison_columns,
    comparison_rows,
    comparisons_markdown,
)
from cbmi.experiments.report_contrasts import (
    CONTRAST_NOTE,
    CONTRAST_TITLES,
    ContrastRow,
    contrast_columns,
    contrast_rows,
    contrasts_markdown,
)
from cbmi.experiments.report_costs import (
    COST_NOTE,
    COST_TITLES,
    CostRow,
    cost_rows,
    costs_markdown,
)
from cbmi.experiments.report_domains import (
    DOMAIN_NOTE,
    DomainRow,
    domain_rows,
    domain_titles,
    domains_markdown,
)
from cbmi.experiments.report_jobs import (
    JobRow,
    experiment_details,
    job_rows,
    jobs_markdown,
    missing_runs,
    run_columns,
)
from cbmi.experiments.report_registration import registration_text
from cbmi.experiments.results import write_results
from cbmi.experiments.settings import ExperimentSettings
from cbmi.experiments.table import ResultsTable, results_tables
from cbmi.experiments.table_text import label_of, results_latex, results_markdown
from cbmi.files import write_together
from cbmi.locks import locked
from cbmi.reporting.drawing import Picture, data_address
from cbmi.reporting.pages import render_page
from cbmi.reporting.tables import csv_of_records, escape_markdown, signed
from cbmi.yaml_text import dump_yaml

CAPTIONS = {
    "differences": (
        "Difference from the baseline: diamonds are means, dots are seeds, each against its own "
        "baseline; an arrow stands for a system too far off to be drawn."
    ),
    "differences-other-domains": "The same on test sets of other domains.",
    "sweep": "Score over the setting that varies; bars are standard deviations over the seeds.",
    "prior-accuracy": (
        "How often each prior's best guess is the gold token, for tokens in bins of CBMI."
    ),
    "validation": (
        "The course of validation: what all systems share, then each system; means over the seeds."
    ),
}
MISSING_SHOWN = 4
# What a report may consist of.
OWN_FILES = (
    "table*.tex",
    "contrasts.csv",
    "comparisons.csv",
    "other-domains.csv",
    "prior-accuracy.*",
    "differences*.*",
    "sweep.*",
    "validation.*",
)


@dataclass(frozen=True)
class ReportView:
    """What page and Markdown show."""

    title: str
    registration: str  # a few sentences; empty: there is none
    tables: list[ResultsTable]
    pictures: dict[str, Picture]
    domains: list[DomainRow]
    domain_titles: list[str]
    contrasts: list[ContrastRow]
    formulas: Mapping[str, str]  # of the contrasts, by name
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
    plan.check_shared_weights()
    registration = read_registration(plan)
    measured = measure(plan, results, registration)
    files = render_report(plan.experiment, measured, _links(plan), registration)
    folder = plan.folder / "report"
    write_results(plan, [*measured.comparisons, *measured.contrasts])
    with locked(plan.folder / ".lock"):
        write_together({folder / name: content for name, content in files.items()})
        for pattern in OWN_FILES:
            for file in folder.glob(pattern):
                if file.name not in files:
                    file.unlink()  # of an earlier report
    return folder


def _links(plan: Plan) -> dict[str, str]:
    """Where a job's folder lies, seen from the report's."""
    report = plan.folder / "report"
    return {name: os.path.relpath(job.folder, report) for name, job in plan.jobs.items()}


def render_report(
    experiment: ExperimentSettings,
    measured: Measured,
    links: Mapping[str, str],
    registration: Registration | None = None,
) -> dict[str, str | bytes]:
    """The report's files by name, from what was measured alone.

    links: where each job's folder lies, seen from the report's.
    """
    results = measured.results
    comparisons = measured.comparisons
    tables = results_tables(experiment, results, comparisons, registration)
    pictures = experiment_figures(experiment, tables, results)
    view = ReportView(
        title=experiment.title,
        registration=registration_text(experiment, results, registration),
        tables=tables,
        pictures=pictures,
        domains=domain_rows(experiment, measured.robustness, registration),
        domain_titles=domain_titles(experiment, registration),
        contrasts=contrast_rows(experiment, measured.contrasts),
        formulas=experiment.report.contrasts,
        comparisons=comparison_rows(experiment, comparisons, registration),
        accuracies=accuracy_rows(experiment, results),
        costs=cost_rows(experiment, results) if experiment.report.costs else [],
        jobs=job_rows(results, links),
        missing=_missing_text(missing_runs(experiment, results, registration)),
        signatures=measured.signatures,
        details=experiment_details(results),
        settings=dump_yaml(
            experiment.model_dump(mode="json", exclude_defaults=True, by_alias=True)
        ),
    )
    files: dict[str, str | bytes] = {
        "report.html": _report_page(view),
        "report.md": _report_markdown(view),
    }
    for name, table in _latex_names(tables).items():
        files[f"{name}.tex"] = results_latex(table)
        files[f"{name}-std.tex"] = results_latex(table, spread=True)
    if tables:
        files["results.csv"] = csv_of_records(run_columns(results))
        files["comparisons.csv"] = csv_of_records(comparison_columns(comparisons, registration))
    if measured.contrasts:
        files["contrasts.csv"] = csv_of_records(contrast_columns(measured.contrasts, registration))
    if measured.robustness:
        rows = [record.columns() for record in measured.robustness]
        files["other-domains.csv"] = csv_of_records(rows)
    if view.accuracies:
        files["prior-accuracy.csv"] = csv_of_records([row.columns() for row in view.accuracies])
    for name, picture in pictures.items():
        files[f"{name}.svg"] = picture.svg
        files[f"{name}.png"] = picture.png
    return files


def _latex_names(tables: Sequence[ResultsTable]) -> dict[str, ResultsTable]:
    """table, table-chrf, table-chrf-other-domains; a second one of a name is table-chrf-2."""
    named: dict[str, ResultsTable] = {}
    for table in tables:
        suffix = "-other-domains" if table.other_domains else ""
        name = f"table-{table.key}{suffix}" if named else "table"
        number = 2
        while name in named:
            name = f"table-{table.key}{suffix}-{number}"
            number += 1
        named[name] = table
    return named


def _report_page(view: ReportView) -> str:
    figures = {}
    for name, picture in view.pictures.items():
        figures[name] = (data_address(picture.svg), CAPTIONS[name])
    values = vars(view) | {
        "figures": figures,
        "label_of": label_of,
        "signed": signed,
        "comparison_titles": COMPARISON_TITLES,
        "comparison_note": COMPARISON_NOTE,
        "contrast_titles": CONTRAST_TITLES,
        "contrast_note": CONTRAST_NOTE,
        "domain_note": DOMAIN_NOTE,
        "cost_titles": COST_TITLES,
        "cost_note": COST_NOTE,
    }
    return render_page("cbmi.experiments", "report.html.jinja", values)


def _report_markdown(view: ReportView) -> str:
    parts = [f"# {escape_markdown(view.title)}\n"]
    if view.registration:
        parts.append(escape_markdown(view.registration) + "\n")
    for number, table in enumerate(view.tables):
        if len(view.tables) > 1:
            parts.append(f"## {escape_markdown(table.heading)}\n")
        is_last = number == len(view.tables) - 1
        parts.append(results_markdown(table, notes=is_last))
    if view.domains:
        parts.append(domains_markdown(view.domains, view.domain_titles))
    if view.contrasts:
        parts.append(contrasts_markdown(view.contrasts, view.formulas))
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
