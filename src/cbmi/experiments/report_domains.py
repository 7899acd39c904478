"""The report's table on test sets of other domains: what BLEU and chrF do not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from cbmi.experiments.records import RobustnessRecord
from cbmi.experiments.registration import EXPLORATORY, Registration
from cbmi.experiments.settings import ExperimentSettings
from cbmi.reporting.tables import escape_markdown, markdown_table

DOMAIN_TITLES = (
    "chrF < 15",
    "length ratio",
    "repeating",
    "recall, unseen words",
    "recall, rare words",
)
DOMAIN_NOTE = (
    "Means over the seeds. chrF < 15: share of sentences that fail altogether. Length ratio: words "
    "of the output over words of the reference. Repeating: share of sentences that repeat four "
    "words in a row more often than their reference does. Recall: share of the reference's words "
    "that are in the output, for words that the training data do not have (unseen) or have 1 to 9 "
    "times (rare)."
)


@dataclass(frozen=True)
class DomainRow:
    """A system on a test set of another domain."""

    on: str  # task and test set
    system: str
    cells: list[str]  # under `domain_titles`


def domain_titles(
    experiment: ExperimentSettings, registration: Registration | None = None
) -> list[str]:
    """What is measured on test sets of other domains; of `report.words`, if there are any, too."""
    titles = list(DOMAIN_TITLES)
    words = experiment.report.words
    if words:
        is_added = registration is not None and not registration.has_words(words)
        titles.append(f"recall, {', '.join(words)}" + (EXPLORATORY if is_added else ""))
    return titles


def domain_rows(
    experiment: ExperimentSettings,
    records: Sequence[RobustnessRecord],
    registration: Registration | None = None,
) -> list[DomainRow]:
    groups: dict[tuple[str, str, str], list[RobustnessRecord]] = {}
    for record in records:
        groups.setdefault((record.task, record.set, record.system), []).append(record)
    rows = []
    for (task, test_set, system), members in groups.items():
        found = [member.found for member in members]
        cells = [
            _percent([one.failed for one in found]),
            f"{mean(one.length_ratio for one in found):.3f}",
            _percent([one.repeating for one in found]),
            _percent([one.unseen_recall for one in found]),
            _percent([one.rare_recall for one in found]),
        ]
        if experiment.report.words:
            cells.append(_percent([one.words_recall for one in found]))
        on = f"{experiment.title_of(task)}, {test_set}"
        label = experiment.label(system)
        if registration is not None:
            if not registration.has_other_domain(test_set):
                on += EXPLORATORY
            if not registration.has_system(task, system):
                label += EXPLORATORY
        rows.append(DomainRow(on, label, cells))
    return rows


def _percent(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{mean(known):.1%}" if known else "–"


def domains_markdown(rows: Sequence[DomainRow], titles: Sequence[str]) -> str:
    cells = []
    for row in rows:
        cells.append([escape_markdown(row.on), escape_markdown(row.system), *row.cells])
    header = ["on", "system", *(escape_markdown(title) for title in titles)]
    table = markdown_table(header, cells, align="ll" + "r" * len(titles))
    return f"## Other domains\n\n{table}\n\n{DOMAIN_NOTE}\n"
