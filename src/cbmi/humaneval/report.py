"""The report of a human evaluation: page, text, LaTeX and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cbmi.files import write_together
from cbmi.humaneval.schemes import HIGHEST, LOWEST
from cbmi.humaneval.study import RatingRow, Study
from cbmi.humaneval.summary import (
    AVERAGE,
    SIGNIFICANT,
    SUBSTANTIAL,
    StudySummary,
    SystemRatings,
    study_summary,
)
from cbmi.reporting.cells import number_text
from cbmi.reporting.latex import escaped
from cbmi.reporting.pages import render_page
from cbmi.reporting.tables import csv_text, escape_markdown, markdown_table, signed

TITLES = {
    "adequacy": "Adequacy",
    "fluency": "Fluency",
    AVERAGE: "Avg.",
    "score": "Score",
    "minor": "Minor errors",
    "major": "Major errors",
}
SPANS_NOTE = (
    "Errors per translation. The score of a translation is minus 1 for each minor and minus 5 for "
    "each major error, as in MQM; 0 is without errors."
)


def write_study_report(study: Study, folder: Path) -> str:
    """Write report.html, report.md, table.tex, systems.csv and ratings.csv; return the text."""
    summary = study_summary(study)
    text = study_markdown(summary)
    view = {
        "summary": summary,
        "criteria": summary.names,
        "titles": TITLES,
        "charts": [_chart(summary, name) for name in summary.names],
        "significant": SIGNIFICANT,
        "spans_note": SPANS_NOTE,
        "substantial": SUBSTANTIAL,
        "any_starred": any(summary.starred(name) for name in summary.names),
        "signed": signed,
    }
    files = {
        "report.html": render_page("cbmi.humaneval", "study.html.jinja", view, number=number_text),
        "report.md": text,
        "table.tex": study_latex(summary),
        "systems.csv": _systems_csv(summary),
        "ratings.csv": csv_text([RatingRow._fields, *study.table()]),
    }
    write_together({folder / name: content for name, content in files.items()})
    return text


class _Bar(NamedTuple):
    """A system in the chart; places are percentages of the width."""

    system: str
    mean: float
    low: float
    high: float
    text: str


class _Chart(NamedTuple):
    title: str
    bars: list[_Bar]
    ends: tuple[str, str]  # of the axis


def _chart(summary: StudySummary, name: str) -> _Chart:
    """Means and intervals of all systems, on the scale or on what was measured."""
    found = [(system.system, system.scores[name]) for system in summary.systems]
    values = []
    for _, score in found:
        if score is not None:
            values += [score.mean]
            values += [value for value in (score.low, score.high) if value is not None]
    low = float(LOWEST) if summary.scheme == "scales" else min([0.0, *values])
    high = float(HIGHEST) if summary.scheme == "scales" else max([0.0, *values])
    width = high - low or 1.0
    bars = []
    for system, score in found:
        if score is None:
            continue
        interval_low = score.mean if score.low is None else score.low
        interval_high = score.mean if score.high is None else score.high
        bars.append(
            _Bar(
                system=system,
                mean=100 * (score.mean - low) / width,
                low=100 * (interval_low - low) / width,
                high=100 * (interval_high - low) / width,
                text=number_text(score.mean),
            )
        )
    return _Chart(TITLES[name], bars, (f"{low:g}".replace("-", "−"), f"{high:g}"))


def study_markdown(summary: StudySummary) -> str:
    """The table and how to read it, as Markdown."""
    rows = []
    for system in summary.systems:
        cells = [_markdown_cell(summary, system, name) for name in summary.names]
        rows.append([escape_markdown(system.system), *cells])
    header = ["Model", *(TITLES[name] for name in summary.names)]
    lines = [markdown_table(header, rows, "l" + "r" * len(summary.names)), ""]
    if summary.scheme == "spans":
        lines.append(f"- {SPANS_NOTE}")
    for criterion, agreement in summary.agreement.items():
        if agreement is None:
            lines.append(f"- {criterion}: no two annotators have rated the same translation yet.")
        else:
            star = " (*)" if summary.starred(criterion) else ""
            lines.append(
                f"- {criterion}: Cohen's kappa {agreement.kappa:.2f} on average over "
                f"{agreement.items} items: {agreement.reading} agreement{star}."
            )
    lines.append(
        "- In square brackets: 95% interval (bootstrap over lines). In parentheses: difference "
        "from the first system over the lines on which the same annotators rated both, and its "
        f"p-value (paired randomisation test). Bold: p < {SIGNIFICANT}."
    )
    for annotator, done in summary.annotators.items():
        lines.append(f"- {annotator}: {done} of {summary.items} items rated.")
    return "\n".join(lines) + "\n"


def _markdown_cell(summary: StudySummary, system: SystemRatings, name: str) -> str:
    """Such as "3.42 [3.20, 3.61] (+0.12, p 0.031)*"."""
    score = system.scores[name]
    if score is None:
        return "–"
    text = number_text(score.mean)
    if summary.is_bold(system, name):
        text = f"**{text}**"
    if score.low is not None:
        text += f" [{number_text(score.low)}, {number_text(score.high or 0.0)}]"
    test = system.tests.get(name)
    if test is not None:
        text += f" ({signed(test.difference)}, p {test.p:.3f})"
    if summary.starred(name):
        text += "*"
    return text


def study_latex(summary: StudySummary) -> str:
    """The paper's table."""
    titles = [rf"\textbf{{{TITLES[name]}}}" for name in summary.names]
    lines = [
        rf"\begin{{tabular}}{{l{'c' * len(titles)}}}",
        r"\toprule",
        rf"\textbf{{Model}} & {' & '.join(titles)} \\",
        r"\midrule",
    ]
    for system in summary.systems:
        cells = [escaped(system.system)]
        for name in summary.names:
            score = system.scores[name]
            star = "$^{*}$" if summary.starred(name) else ""
            if score is None:
                cells.append("--")
                continue
            text = f"{score.mean:.2f}".replace("-", "$-$")
            bold = rf"\textbf{{{text}}}" if summary.is_bold(system, name) else text
            cells.append(f"{bold}{star}")
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _systems_csv(summary: StudySummary) -> str:
    """A row for every system and criterion; what is unknown is empty."""
    header = ["system", "criterion", "mean", "low", "high", "ratings", "difference", "p"]
    rows: list[list[Any]] = [header]
    for system in summary.systems:
        for name, score in system.scores.items():
            row: list[Any] = [system.system, name]
            if score is None:
                row += [None] * 4
            else:
                row += [score.mean, score.low, score.high, score.ratings]
            test = system.tests.get(name)
            if test is None:
                row += [None] * 2
            else:
                row += [test.difference, test.p]
            rows.append(row)
    return csv_text(rows)
