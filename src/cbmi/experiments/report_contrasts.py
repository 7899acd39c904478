"""The report's table of contrasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cbmi.evaluation.paired_t import FEWEST_SEEDS
from cbmi.experiments.contrasts import MEASURE_NAMES
from cbmi.experiments.records import ContrastRecord
from cbmi.experiments.registration import EXPLORATORY, Registration
from cbmi.experiments.settings import METRIC_NAMES, ExperimentSettings
from cbmi.reporting.tables import escape_markdown, markdown_table, signed

CONTRAST_TITLES = (
    "seeds",
    "mean",
    "standard error",
    "p, seeds",
    "p, Holm",
    "detectable",
    "seed by seed",
)
CONTRAST_NOTE = (
    "A contrast adds and subtracts scores, seed by seed. The p-value is that of a two-sided t-test "
    "over the seeds, then corrected for the number of contrasts by Holm's method. Detectable: the "
    "true value that this many seeds show with a power of 80% after the correction, even if no "
    "other contrast differs from 0. * / **: the corrected p is below 0.05 / 0.01."
)


@dataclass(frozen=True)
class ContrastRow:
    """A contrast on one test set by one measure."""

    contrast: str
    on: str  # test set and measure
    cells: list[str]  # under `CONTRAST_TITLES`


def contrast_rows(
    experiment: ExperimentSettings, records: Sequence[ContrastRecord]
) -> list[ContrastRow]:
    names = METRIC_NAMES | MEASURE_NAMES
    rows = []
    for record in records:
        name = record.contrast + ("" if record.registered else EXPLORATORY)
        on = f"{record.set}, {names[record.measure]}"
        rows.append(ContrastRow(name, on, _cells(record)))
    return rows


def contrast_columns(
    records: Sequence[ContrastRecord], registration: Registration | None
) -> list[dict[str, Any]]:
    """The rows of contrasts.csv."""
    rows = []
    for record in records:
        row = record.columns()
        if registration is not None:
            row["registered"] = "yes" if record.registered else "no"
        rows.append(row)
    return rows


def _cells(record: ContrastRecord) -> list[str]:
    seeds = ", ".join(signed(value) for value in record.by_seed.values())
    test = record.over_seeds
    if test is None or record.holm_p is None:
        return [str(len(record.by_seed)), signed(record.mean), "–", "–", "–", "–", seeds]
    marks = ""
    if test.seeds >= FEWEST_SEEDS:
        marks = "*" * sum(record.holm_p < level for level in (0.05, 0.01))
    return [
        str(test.seeds),
        signed(record.mean) + marks,
        f"{test.error:.2f}",
        f"{test.p:.3f}",
        f"{record.holm_p:.3f}",
        f"{test.detectable(record.tests):.2f}" if test.error else "–",
        seeds,
    ]


def contrasts_markdown(rows: Sequence[ContrastRow], contrasts: Mapping[str, str]) -> str:
    """contrasts: what is added and subtracted, by name."""
    lines = [f"- {escape_markdown(name)}: `{text}`" for name, text in contrasts.items()]
    header = ["contrast", "on", *CONTRAST_TITLES]
    cells = []
    for row in rows:
        words = [escape_markdown(text) for text in (row.contrast, row.on, *row.cells)]
        cells.append(words)
    table = markdown_table(header, cells, align="ll" + "r" * (len(CONTRAST_TITLES) - 1) + "l")
    note = escape_markdown(CONTRAST_NOTE)
    return "## Contrasts\n\n" + "\n".join(lines) + f"\n\n{table}\n\n{note}\n"
