"""What a human evaluation gives: means, intervals, tests and agreement.

It is written as text, page, LaTeX and CSV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cbmi.errors import UserError
from cbmi.files import write_together
from cbmi.humaneval.agreement import interval, mean_kappa, paired_test, reading
from cbmi.humaneval.study import CRITERIA, RatingRow, Study
from cbmi.reporting.latex import escaped
from cbmi.reporting.pages import render_page
from cbmi.reporting.tables import csv_text, escape_markdown, markdown_table, signed

SUBSTANTIAL = 0.6  # the paper stars scores whose kappa is above it
AVERAGE = "average"  # of all criteria, where an annotator has given all
SCORES = (*CRITERIA, AVERAGE)


class _Place(NamedTuple):
    """Who rated, and which line of the test set."""

    annotator: str
    line: int


@dataclass(frozen=True)
class CriterionScore:
    """How well a system did by one criterion."""

    mean: float  # over lines; of a line, over annotators
    low: float | None  # 95% interval of the mean; None for a single line
    high: float | None
    ratings: int


@dataclass(frozen=True)
class PairedDifference:
    """A system against the first one, over what the same annotators said of the same lines."""

    difference: float
    p: float


@dataclass(frozen=True)
class SystemRatings:
    """The scores of a system by criterion, `AVERAGE` among them; None where nobody rated it."""

    system: str
    scores: Mapping[str, CriterionScore | None]
    tests: Mapping[str, PairedDifference | None]  # against the first system, which has none


@dataclass(frozen=True)
class CriterionAgreement:
    """How far annotators agree by one criterion."""

    kappa: float  # mean over pairs of annotators
    reading: str
    pairs: Mapping[str, float]  # kappa by "NAME and NAME"
    items: int  # that at least two annotators have rated


@dataclass(frozen=True)
class StudySummary:
    """All numbers of the report."""

    systems: Sequence[SystemRatings]
    agreement: Mapping[str, CriterionAgreement | None]  # by criterion; None: no item in common
    annotators: Mapping[str, int]  # items that each has rated completely
    raters: int  # annotators who have rated anything
    items: int

    def starred(self, criterion: str) -> bool:
        """Whether the annotators agree substantially by this criterion."""
        agreement = self.agreement.get(criterion)
        return agreement is not None and agreement.kappa > SUBSTANTIAL


def study_summary(study: Study) -> StudySummary:
    """All numbers of the report."""
    table = study.table()
    if not table:
        raise UserError(f"{study.path.parent}: nobody has rated anything yet.")
    done = {}
    for annotator in study.annotators():
        complete = [item for item in study.items(annotator) if len(item.ratings) == len(CRITERIA)]
        done[annotator] = len(complete)
    return StudySummary(
        systems=_system_ratings(table, study.systems()),
        agreement={criterion: _agreement(table, criterion) for criterion in CRITERIA},
        annotators=done,
        raters=len({row.annotator for row in table}),
        items=study.size(),
    )


def _system_ratings(table: Sequence[RatingRow], systems: Sequence[str]) -> list[SystemRatings]:
    """The scores of all systems; those after the first are tested against it."""
    first_ratings = {name: _ratings_by_place(table, systems[0], name) for name in SCORES}
    result = []
    for system in systems:
        scores = {}
        tests = {}
        for name in SCORES:
            ratings = _ratings_by_place(table, system, name)
            scores[name] = _score(ratings)
            if system != systems[0]:
                tests[name] = _paired_difference(ratings, first_ratings[name])
        result.append(SystemRatings(system, scores, tests))
    return result


def _ratings_by_place(
    table: Sequence[RatingRow], system: str, criterion: str
) -> dict[_Place, float]:
    """Ratings of a system. The average is there where an annotator has given all criteria."""
    found: dict[_Place, list[int]] = {}
    for row in table:
        if row.system == system and criterion in (row.criterion, AVERAGE):
            place = _Place(row.annotator, row.line)
            found.setdefault(place, []).append(row.value)
    complete = len(CRITERIA) if criterion == AVERAGE else 1
    ratings = {}
    for place, values in found.items():
        if len(values) == complete:
            ratings[place] = float(np.mean(values))
    return ratings


def _line_means(ratings: Mapping[_Place, float]) -> list[float]:
    """Means over the annotators: lines, not ratings, are independent of each other."""
    lines: dict[int, list[float]] = {}
    for place, value in ratings.items():
        lines.setdefault(place.line, []).append(value)
    return [float(np.mean(values)) for values in lines.values()]


def _score(ratings: Mapping[_Place, float]) -> CriterionScore | None:
    if not ratings:
        return None
    means = _line_means(ratings)
    low: float | None = None
    high: float | None = None
    if len(means) > 1:  # a single line says nothing of others
        low, high = interval(means)
    return CriterionScore(float(np.mean(means)), low, high, len(ratings))


def _paired_difference(
    ratings: Mapping[_Place, float], others: Mapping[_Place, float]
) -> PairedDifference | None:
    """The mean difference over what the same annotators said of the same lines."""
    common = sorted(ratings.keys() & others.keys())
    if not common:
        return None
    differences = _line_means({place: ratings[place] - others[place] for place in common})
    return PairedDifference(float(np.mean(differences)), paired_test(differences))


def _agreement(table: Sequence[RatingRow], criterion: str) -> CriterionAgreement | None:
    raters: dict[str, dict[int, int]] = {}  # values by annotator and item
    for row in table:
        if row.criterion == criterion:
            raters.setdefault(row.annotator, {})[row.item] = row.value
    kappas = mean_kappa(raters)
    if kappas.mean is None:
        return None
    raters_of_item: dict[int, int] = {}
    for values in raters.values():
        for item in values:
            raters_of_item[item] = raters_of_item.get(item, 0) + 1
    common = [item for item, count in raters_of_item.items() if count > 1]
    pairs = {f"{one} and {other}": kappa for (one, other), kappa in kappas.pairs.items()}
    return CriterionAgreement(kappas.mean, reading(kappas.mean), pairs, len(common))


def write_study_report(study: Study, folder: Path) -> str:
    """Write report.html, report.md, table.tex, systems.csv and ratings.csv; return the text."""
    summary = study_summary(study)
    text = study_markdown(summary)
    view = {
        "summary": summary,
        "criteria": SCORES,
        "substantial": SUBSTANTIAL,
        "any_starred": any(summary.starred(criterion) for criterion in CRITERIA),
        "signed": signed,
    }
    files = {
        "report.html": render_page("cbmi.humaneval", "study.html.jinja", view),
        "report.md": text,
        "table.tex": study_latex(summary),
        "systems.csv": _systems_csv(summary),
        "ratings.csv": csv_text([RatingRow._fields, *study.table()]),
    }
    write_together({folder / name: content for name, content in files.items()})
    return text


def study_markdown(summary: StudySummary) -> str:
    """The table and how to read it, as Markdown."""
    rows = []
    for system in summary.systems:
        cells = [_markdown_cell(summary, system, name) for name in SCORES]
        rows.append([escape_markdown(system.system), *cells])
    lines = [markdown_table(["Model", "Adequacy", "Fluency", "Avg."], rows, "lrrr"), ""]
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
        "p-value (paired randomisation test)."
    )
    for annotator, done in summary.annotators.items():
        lines.append(f"- {annotator}: {done} of {summary.items} items rated.")
    return "\n".join(lines) + "\n"


def _markdown_cell(summary: StudySummary, system: SystemRatings, name: str) -> str:
    """Such as "3.42 [3.20, 3.61] (+0.12, p 0.031)*"."""
    score = system.scores[name]
    if score is None:
        return "–"
    text = f"{score.mean:.2f}"
    if score.low is not None:
        text += f" [{score.low:.2f}, {score.high:.2f}]"
    test = system.tests.get(name)
    if test is not None:
        text += f" ({signed(test.difference)}, p {test.p:.3f})"
    if summary.starred(name):
        text += "*"
    return text


def study_latex(summary: StudySummary) -> str:
    """The paper's table."""
    lines = [
        r"\begin{tabular}{lccc}",
        r"\toprule",
        r"\textbf{Model} & \textbf{Adequacy} & \textbf{Fluency} & \textbf{Avg.} \\",
        r"\midrule",
    ]
    for system in summary.systems:
        cells = [escaped(system.system)]
        for name in SCORES:
            score = system.scores[name]
            star = "$^{*}$" if summary.starred(name) else ""
            cells.append("--" if score is None else f"{score.mean:.2f}{star}")
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
