"""The report's contrasts: their values, seed by seed, and the t-test over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from cbmi.evaluation.paired_t import holm, paired_t_test
from cbmi.experiments.contrasts import Term, contrast_by_seed, parse_contrast
from cbmi.experiments.records import ContrastRecord, JobKind, JobResult, RobustnessRecord
from cbmi.experiments.registration import Registration
from cbmi.experiments.settings import ExperimentSettings

# (test set, measure) → (task, system) → seed → score
Scores = dict[tuple[str, str], dict[tuple[str, str], dict[int, float]]]


def contrast_records(
    experiment: ExperimentSettings,
    results: Sequence[JobResult],
    robustness: Sequence[RobustnessRecord],
    registration: Registration | None = None,
) -> list[ContrastRecord]:
    """Each contrast on every test set and by every measure that all its tasks have.

    results: with the scores by the report's metrics.
    """
    scores = _scores(experiment, results, robustness)
    records = []
    for name, text in experiment.report.contrasts.items():
        terms = parse_contrast(text, list(experiment.tasks))
        for (test_set, measure), known in scores.items():
            if not _applies(experiment, terms, test_set, measure):
                continue
            by_seed = contrast_by_seed(terms, known)
            if by_seed:
                is_registered = registration is None or registration.covers_contrast(
                    name, test_set, measure, list(by_seed), experiment.report.words
                )
                test = paired_t_test(list(by_seed.values()))
                values = dict(by_seed)
                records.append(ContrastRecord(name, test_set, measure, values, test, is_registered))
    total = len(experiment.report.contrasts)
    registered = total if registration is None else len(registration.contrasts())
    return _corrected(records, registered, total)


def _scores(
    experiment: ExperimentSettings,
    results: Sequence[JobResult],
    robustness: Sequence[RobustnessRecord],
) -> Scores:
    scores: Scores = {}
    for result in results:
        if result.kind is not JobKind.SYSTEM or result.system is None:
            continue
        for test_set in experiment.reported(result.scores):
            for metric in experiment.metrics(result.task):
                runs = scores.setdefault((test_set, metric), {})
                by_seed = runs.setdefault((result.task, result.system), {})
                by_seed[result.seed] = result.scores[test_set][metric]
    for record in robustness:
        for measure, value in asdict(record.found).items():
            if measure in experiment.report.measures and value is not None:
                runs = scores.setdefault((record.set, measure), {})
                by_seed = runs.setdefault((record.task, record.system), {})
                by_seed[record.seed] = 100 * value
    return scores


def _applies(
    experiment: ExperimentSettings, terms: Sequence[Term], test_set: str, measure: str
) -> bool:
    """Whether all tasks of a contrast are reported by this measure."""
    if measure in experiment.report.measures:
        return True
    return all(measure in experiment.metrics(term.task) for term in terms)


def _corrected(
    records: Sequence[ContrastRecord], registered: int, total: int
) -> list[ContrastRecord]:
    """With p-values corrected by Holm's method, on each test set and by each measure.

    What was registered is corrected for the registered contrasts alone, the rest for all.
    """
    found = []
    for record in records:
        if record.over_seeds is None:
            found.append(record)
            continue
        family = []
        for other in records:
            beside = (other.set, other.measure) == (record.set, record.measure)
            if beside and (other.registered or not record.registered) and other.over_seeds:
                family.append(other)
        p_values = [other.over_seeds.p for other in family if other.over_seeds]
        planned = registered if record.registered else total
        p = holm(p_values, planned)[family.index(record)]
        found.append(replace(record, holm_p=p, tests=max(planned, len(family))))
    return found
