"""Scores and comparisons of an experiment's translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cbmi.config import RunSettings
from cbmi.data.lines import read_lines
from cbmi.data.text import read_corpora
from cbmi.errors import UserError
from cbmi.evaluation.paired_t import holm
from cbmi.evaluation.robustness import Robustness, count_words, robustness
from cbmi.evaluation.significance import Metric, Resampled, compare
from cbmi.experiments.measure_contrasts import contrast_records
from cbmi.experiments.plan import Plan
from cbmi.experiments.records import (
    ContrastRecord,
    JobKind,
    JobResult,
    RobustnessRecord,
    SystemComparison,
)
from cbmi.experiments.registration import Registration
from cbmi.experiments.settings import ExperimentSettings, MetricName
from cbmi.progress import Bar, bar


class Measured(NamedTuple):
    results: list[JobResult]  # with the scores by the report's metrics
    comparisons: list[SystemComparison]
    signatures: dict[str, str]  # of the metrics, by task
    robustness: list[RobustnessRecord]  # on test sets of other domains
    contrasts: list[ContrastRecord]


def results_by_system(plan: Plan) -> list[JobResult]:
    """What the jobs that are done have given, once for each system that shares a job."""
    by_job = {result.job: result for result in plan.results()}
    results = [result for result in by_job.values() if result.kind is not JobKind.SYSTEM]
    for (_, _, system), job in plan.of_system.items():
        if job in by_job:
            results.append(replace(by_job[job], system=system))
    return results


def measure(
    plan: Plan, results: Sequence[JobResult], registration: Registration | None = None
) -> Measured:
    """Score the translations by the report's metrics, and compare the systems."""
    experiment = plan.experiment
    of_systems = [result for result in results if result.kind is JobKind.SYSTEM]
    scores: dict[tuple[str, str], dict[str, float]] = {}  # (job, test set) → metric → score
    comparisons: list[SystemComparison] = []
    signatures: dict[str, str] = {}
    outputs: set[tuple[str, str, str]] = set()  # (job, set, metric): systems may share a job
    for result in of_systems:
        for test_set in experiment.reported(result.scores):
            for name in experiment.metrics(result.task):
                outputs.add((result.job, test_set, name))
    with bar("Testing for significance", len(outputs), "outputs") as progress:
        for task in experiment.tasks:
            own = [result for result in of_systems if result.task == task]
            for test_set in _reported_sets(plan, own):
                for name in experiment.metrics(task):
                    metric = _metric(plan, task, test_set, name)
                    signatures[_signature_title(experiment, task, name)] = metric.signature()
                    resampled = _resampled_by_job(plan, metric, own, test_set, progress)
                    for job, one in resampled.items():
                        scores.setdefault((job, test_set), {})[name] = one.score
                    samples_by_run = {}
                    for result in own:
                        if result.job in resampled:
                            samples_by_run[_system(result), result.seed] = resampled[result.job]
                    comparisons += _comparisons(plan, task, test_set, name, samples_by_run)
    measured = [_with_scores(result, scores) for result in results]
    comparisons = with_holm(experiment, comparisons, registration)
    robust = _robustness(plan, of_systems)
    contrasts = contrast_records(experiment, measured, robust, registration)
    return Measured(measured, comparisons, signatures, robust, contrasts)


def with_holm(
    experiment: ExperimentSettings,
    comparisons: Sequence[SystemComparison],
    registration: Registration | None,
) -> list[SystemComparison]:
    """The same with p-values over seeds corrected for the number of systems.

    They are counted on each test set, by each metric, and against each other system; those that are
    still to be trained count. What was registered is corrected for the registered systems alone.
    """

    def registered(one: SystemComparison) -> bool:
        return registration is None or registration.covers(
            one.task, one.system, one.set, one.metric
        )

    corrected: dict[SystemComparison, SystemComparison] = {}
    for one in comparisons:
        if one.seed is not None or one.over_seeds is None:
            continue
        family = []
        for other in comparisons:
            is_tested = other.seed is None and other.over_seeds is not None
            counts = registered(other) or not registered(one)
            if is_tested and counts and other.family() == one.family():
                family.append(other)
        p_values = [other.over_seeds.p for other in family if other.over_seeds is not None]
        planned = len(experiment.expanded()) - 1  # all but the one that they are compared with
        if registration is not None and registered(one):
            planned = registration.systems(one.task) - 1
        p = holm(p_values, planned)[family.index(one)]
        corrected[one] = replace(one, holm_p=p, tests=max(planned, len(family)))
    return [corrected.get(one, one) for one in comparisons]


def _robustness(plan: Plan, results: Sequence[JobResult]) -> list[RobustnessRecord]:
    """Of all translations of the test sets of other domains."""
    experiment = plan.experiment
    records = []
    for task in experiment.tasks:
        own = [result for result in results if result.task == task]
        test_sets = [name for name in experiment.report.other_domains if _translated(own, name)]
        if not test_sets:
            continue
        config = next(job.config for job in plan.jobs.values() if job.task == task)
        language = config.data.target
        corpora = [corpus.files for corpus in config.data.train]
        training = count_words(_targets(config, *corpora), language)
        for test_set in test_sets:
            references = list(_targets(config, config.data.test[test_set]))
            by_job: dict[str, Robustness] = {}
            for result in own:
                if result.job not in by_job:
                    lines = _translations(plan, result.job, test_set)
                    by_job[result.job] = robustness(
                        lines, references, language, training, experiment.report.words
                    )
                records.append(
                    RobustnessRecord(
                        task, test_set, _system(result), result.seed, by_job[result.job]
                    )
                )
    return records


def _translated(results: Sequence[JobResult], test_set: str) -> bool:
    return bool(results) and all(test_set in result.scores for result in results)


def _targets(config: RunSettings, *corpora: Sequence[str]) -> Iterator[str]:
    for _, target in read_corpora(corpora, config.data.languages, Counter()):
        yield target


def _signature_title(experiment: ExperimentSettings, task: str, metric: MetricName) -> str:
    several = len(experiment.metrics(task)) > 1
    return f"{task}, {metric}" if several else task


def _system(result: JobResult) -> str:
    assert result.system is not None  # the kind of the job is SYSTEM
    return result.system


def _reported_sets(plan: Plan, results: Sequence[JobResult]) -> list[str]:
    names: dict[str, None] = {}  # an ordered set
    for result in results:
        names.update(dict.fromkeys(plan.experiment.reported(result.scores)))
    return list(names)


def _with_scores(result: JobResult, scores: dict[tuple[str, str], dict[str, float]]) -> JobResult:
    """The same result with further metrics; what is there by the same metric is replaced."""
    extended = {}
    for test_set, known in result.scores.items():
        extended[test_set] = known | scores.get((result.job, test_set), {})
    return replace(result, scores=extended)


def _metric(plan: Plan, task: str, test_set: str, name: MetricName) -> Metric:
    config = next(job.config for job in plan.jobs.values() if job.task == task)
    return Metric(name, list(_targets(config, config.data.test[test_set])), config.data.target)


def _resampled_by_job(
    plan: Plan, metric: Metric, results: Sequence[JobResult], test_set: str, progress: Bar
) -> dict[str, Resampled]:
    """Bootstrap samples of each job's translations; systems may share a job."""
    resampled: dict[str, Resampled] = {}
    for result in results:
        if result.job not in resampled and test_set in result.scores:
            resampled[result.job] = _resampled(plan, metric, result.job, test_set)
            progress.advance()
    return resampled


def _resampled(plan: Plan, metric: Metric, job: str, test_set: str) -> Resampled:
    lines = _translations(plan, job, test_set)
    if len(lines) != metric.lines:
        raise UserError(
            f"{_output_file(plan, job, test_set)}: there are {len(lines):,} translations of "
            f"{metric.lines:,} sentences; delete the job."
        )
    return metric.resampled(lines, plan.experiment.report.resamples)


def _translations(plan: Plan, job: str, test_set: str) -> list[str]:
    return list(read_lines(str(_output_file(plan, job, test_set)), Counter()))


def _output_file(plan: Plan, job: str, test_set: str) -> Path:
    return plan.jobs[job].run.test / f"{test_set}.txt"


def _comparisons(
    plan: Plan,
    task: str,
    test_set: str,
    metric: MetricName,
    samples_by_run: dict[tuple[str, int], Resampled],
) -> Iterator[SystemComparison]:
    """Every system against those that it is tested against: over all seeds, then each seed.

    samples_by_run: by (system, seed). Only seeds that both systems have are compared.
    """
    systems = list(dict.fromkeys(system for system, _ in samples_by_run))
    for system in systems:
        for other in plan.experiment.tested_against():
            own_seeds = [seed for name, seed in samples_by_run if name == system]
            seeds = [seed for seed in own_seeds if (other, seed) in samples_by_run]
            if system == other or not seeds:
                continue
            choices: list[tuple[int | None, list[int]]] = [(None, seeds)]
            choices += [(seed, [seed]) for seed in seeds]
            for seed, chosen in choices:
                found = compare(
                    [samples_by_run[other, one] for one in chosen],
                    [samples_by_run[system, one] for one in chosen],
                )
                yield SystemComparison(
                    task=task,
                    set=test_set,
                    system=system,
                    against=other,
                    seed=seed,
                    seeds=tuple(chosen),
                    metric=metric,
                    difference=found.difference,
                    p=found.p,
                    over_seeds=found.over_seeds,
                )
