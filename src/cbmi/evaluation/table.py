"""An evaluation report as a plain-text table that looks the same on a terminal and in a pipe."""

from cbmi.evaluation.metrics import MetricScore, Report, System


def render(report: Report) -> str:
    """The table of `report`: a row per system, then what the marks mean, then the signatures."""
    metrics = list(report.systems[0].metrics)
    tested = report.bootstrap > 0 and len(report.systems) > 1
    rows = [_header(report, metrics, tested)]
    rows += [_row(system, metrics, report.bootstrap > 0, tested) for system in report.systems]
    return "\n".join([*_aligned(rows), "", *_notes(report, tested), *_signatures(report)]) + "\n"


def _header(report: Report, metrics: list[str], tested: bool) -> list[str]:
    """The cells of the first line."""
    cells = ["system"]
    for metric in metrics:
        cells += [metric, *(["Δ", "p  "] if tested else [])]
    return cells + (["multi-BLEU"] if report.systems[0].multi_bleu else [])


def _row(system: System, metrics: list[str], interval: bool, tested: bool) -> list[str]:
    """The cells of one system."""
    cells = [system.name]
    for metric in metrics:
        score = system.metrics[metric]
        cells.append(f"{score.score:.2f} ±{score.interval:.2f}" if interval else f"{score.score:.2f}")
        cells += _comparison(score) if tested else []
    return cells + ([f"{system.multi_bleu.score:.2f}"] if system.multi_bleu else [])


def _comparison(score: MetricScore) -> list[str]:
    """Difference and p-value with its stars, or dashes for the system the others are compared with."""
    if score.p_value is None:
        return ["–", "–  "]
    stars = "**" if score.p_value < 0.01 else "*" if score.p_value < 0.05 else ""
    # The stars take two columns always, so that the p-values stay in line.
    return [f"{score.difference:+.2f}", f"{score.p_value:.3f}{stars:<2}"]


def _aligned(rows: list[list[str]]) -> list[str]:
    """The rows as lines: the first column to the left, the others to the right, a rule under the header."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    rule = "─" * max(len(line) for line in lines)
    return [lines[0], rule, *lines[1:]]


def _notes(report: Report, tested: bool) -> list[str]:
    """Sentences on how to read the figures; none without a bootstrap."""
    notes = []
    if report.bootstrap:
        notes.append(f"± 95% confidence interval ({report.bootstrap} bootstrap resamples of {report.lines} lines)")
    if tested:
        first = report.systems[0].name
        notes.append(f"Δ against {first}; p by paired bootstrap, * p < 0.05, ** p < 0.01; for TER less is better")
    return [*notes, ""] if notes else []


def _signatures(report: Report) -> list[str]:
    """One line per metric: what must be known to repeat the figures."""
    width = max(len(name) for name in report.signatures)
    return [f"{name.ljust(width)}  {signature}" for name, signature in report.signatures.items()]
