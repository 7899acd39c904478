"""An evaluation report as a plain-text table that looks the same on a terminal and in a pipe."""

from __future__ import annotations

from cbmi.evaluation.metrics import EvaluationReport, MetricScore, SystemScores


def render(report: EvaluationReport) -> str:
    """The table of `report`: a row per system, then what the marks mean, then the signatures."""
    metrics = list(report.systems[0].metrics)
    has_intervals = report.bootstrap > 0
    is_tested = has_intervals and len(report.systems) > 1
    rows = [_header(report, metrics, is_tested)]
    for system in report.systems:
        rows.append(_row(system, metrics, has_intervals, is_tested))
    lines = [*_aligned(rows), "", *_notes(report, is_tested), *_signatures(report)]
    return "\n".join(lines) + "\n"


def _header(report: EvaluationReport, metrics: list[str], is_tested: bool) -> list[str]:
    """The cells of the first line."""
    cells = ["system"]
    for metric in metrics:
        cells.append(metric)
        if is_tested:
            cells += ["Δ", "p  "]
    if report.systems[0].multi_bleu:
        cells.append("multi-BLEU")
    return cells


def _row(
    system: SystemScores, metrics: list[str], has_intervals: bool, is_tested: bool
) -> list[str]:
    """The cells of one system."""
    cells = [system.name]
    for metric in metrics:
        score = system.metrics[metric]
        cell = f"{score.score:.2f}"
        if has_intervals:
            cell += f" ±{score.interval:.2f}"
        cells.append(cell)
        if is_tested:
            cells += _comparison(score)
    if system.multi_bleu:
        cells.append(f"{system.multi_bleu.score:.2f}")
    return cells


def _comparison(score: MetricScore) -> list[str]:
    """Difference and p-value with its stars, or dashes for the first system."""
    if score.p_value is None:
        return ["–", "–  "]
    if score.p_value < 0.01:
        stars = "**"
    elif score.p_value < 0.05:
        stars = "*"
    else:
        stars = ""
    # The stars always take two columns, so that the p-values stay aligned.
    return [f"{score.difference:+.2f}", f"{score.p_value:.3f}{stars:<2}"]


def _aligned(rows: list[list[str]]) -> list[str]:
    """The rows as lines: the first column flush left, the others right, a rule below the header."""
    widths = []
    for column in range(len(rows[0])):
        widths.append(max(len(row[column]) for row in rows))
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        for cell, width in zip(others, widths[1:], strict=True):
            cells.append(cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    rule = "─" * max(len(line) for line in lines)
    return [lines[0], rule, *lines[1:]]


def _notes(report: EvaluationReport, is_tested: bool) -> list[str]:
    """How to read the figures; nothing without a bootstrap."""
    notes = []
    if report.bootstrap:
        notes.append(
            f"± 95% confidence interval "
            f"({report.bootstrap} bootstrap resamples of {report.lines} lines)"
        )
    if is_tested:
        first = report.systems[0].name
        notes.append(
            f"Δ against {first}; p by paired bootstrap, * p < 0.05, ** p < 0.01; "
            "lower is better for TER"
        )
    if notes:
        notes.append("")
    return notes


def _signatures(report: EvaluationReport) -> list[str]:
    """One line per metric: what must be known to repeat the figures."""
    width = max(len(name) for name in report.signatures)
    return [f"{name.ljust(width)}  {signature}" for name, signature in report.signatures.items()]
