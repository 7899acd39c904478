"""An experiment's report: Markdown, HTML, LaTeX, CSV and figures, each number with the job that gave it."""

from __future__ import annotations

from pathlib import Path

from cbmi.experiments.jobs import Plan
from cbmi.experiments.measure import measure, records_of
from cbmi.experiments.table import make_table, to_markdown
from cbmi.files import write_atomically


def write_report(plan: Plan) -> Path:
    records = records_of(plan)
    comparisons, _ = measure(plan, records)
    folder = plan.folder / "report"
    table = make_table(plan.experiment, [*records, *comparisons])
    write_atomically(folder / "report.md", to_markdown(table))
    return folder
