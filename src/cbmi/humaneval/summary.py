"""What a human evaluation gives: means, intervals, tests and agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cbmi.errors import UserError
from cbmi.humaneval.agreement import interval, mean_kappa, paired_test, reading
from cbmi.humaneval.schemes import CRITERIA, PENALTIES, Scheme
from cbmi.humaneval.study import RatingRow, Study

SUBSTANTIAL = 0.6  # the paper stars scores whose kappa is above it
SIGNIFICANT = 0.05  # a difference from the first system with a p below it is bold
AVERAGE = "average"  # of all criteria, where an annotator has given all
# What the tables have, by scheme.
SCORES: dict[Scheme, tuple[str, ...]] = {
    "scales": (*CRITERIA, AVERAGE),
    "spans": ("score", *PENALTIES),
}
WORST = "worst error"  # of an item: 0, none; 1, minor; 2, major


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
    scheme: Scheme

    @property
    def names(self) -> tuple[str, ...]:
        """The scores that the tables have."""
        return SCORES[self.scheme]

    def is_bold(self, system: SystemRatings, name: str) -> bool:
        """Whether a system differs from the first one."""
        test = system.tests.get(name)
        return test is not None and test.p < SIGNIFICANT

    def starred(self, criterion: str) -> bool:
        """Whether the annotators agree substantially by this criterion."""
        agreement = self.agreement.get(criterion)
        return agreement is not None and agreement.kappa > SUBSTANTIAL


def study_summary(study: Study) -> StudySummary:
    """All numbers of the report."""
    scheme = study.scheme()
    table = study.table()
    if not table:
        raise UserError(f"{study.path.parent}: nobody has rated anything yet.")
    done = {}
    for annotator in study.annotators():
        complete = [item for item in study.items(annotator) if item.is_complete(scheme)]
        done[annotator] = len(complete)
    compared = _worst_errors(table) if scheme == "spans" else table
    criteria = (WORST,) if scheme == "spans" else tuple(CRITERIA)
    return StudySummary(
        systems=_system_ratings(table, study.systems(), SCORES[scheme]),
        agreement={criterion: _agreement(compared, criterion) for criterion in criteria},
        annotators=done,
        raters=len({row.annotator for row in table}),
        items=study.size(),
        scheme=scheme,
    )


def _worst_errors(table: Sequence[RatingRow]) -> list[RatingRow]:
    """The worst error of each item, as a number."""
    worst: dict[tuple[str, int, str, int], int] = {}
    for row in table:
        if row.criterion in PENALTIES:
            place = (row.annotator, row.line, row.system, row.item)
            severity = 1 + list(PENALTIES).index(row.criterion) if row.value else 0
            worst[place] = max(worst.get(place, 0), severity)
    return [RatingRow(*place, WORST, value) for place, value in worst.items()]


def _system_ratings(
    table: Sequence[RatingRow], systems: Sequence[str], names: Sequence[str]
) -> list[SystemRatings]:
    """The scores of all systems; those after the first are tested against it."""
    first_ratings = {name: _ratings_by_place(table, systems[0], name) for name in names}
    result = []
    for system in systems:
        scores = {}
        tests = {}
        for name in names:
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
