"""Scores and comparisons of an experiment's translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from cbmi.data.text import read_lines, read_pairs
from cbmi.errors import UserError
from cbmi.evaluation.significance import Metric, Resampled, compare
from cbmi.experiments.plan import Plan
from cbmi.experiments.records import JobKind, JobResult, SystemComparison
from cbmi.progress import Bar, bar


class Measured(NamedTuple):
    results: list[JobResult]  # with the score by the report's metric
    comparisons: list[SystemComparison]
    signatures: dict[str, str]  # of the metric, by task


def results_by_system(plan: Plan) -> list[JobResult]:
    """What the jobs that are done have given, once for each system that shares a job."""
    by_job = {result.job: result for result in plan.results()}
    results = [result for result in by_job.values() if result.kind is not JobKind.SYSTEM]
    for (_, _, system), job in plan.of_system.items():
        if job in by_job:
            results.append(replace(by_job[job], system=system))
    return results


def measure(plan: Plan, results: Sequence[JobResult]) -> Measured:
    """Score the translations by the report's metric, and compare the systems."""
    experiment = plan.experiment
    of_systems = [result for result in results if result.kind is JobKind.SYSTEM]
    scores: dict[tuple[str, str], dict[str, float]] = {}  # (job, test set) → metric → score
    comparisons: list[SystemComparison] = []
    signatures: dict[str, str] = {}
    outputs: set[tuple[str, str]] = set()  # (job, test set): systems may share a job
    for result in of_systems:
        for test_set in experiment.reported(result.scores):
            outputs.add((result.job, test_set))
    with bar("Testing for significance", len(outputs), "outputs") as progress:
        for task in experiment.tasks:
            own = [result for result in of_systems if result.task == task]
            for test_set in _reported_sets(plan, own):
                metric = _metric(plan, task, test_set)
                signatures[task] = metric.signature()
                resampled = _resampled_by_job(plan, metric, own, test_set, progress)
                for job, one in resampled.items():
                    scores[job, test_set] = {metric.name: one.score}
                samples_by_run = {}
                for result in own:
                    samples_by_run[_system(result), result.seed] = resampled[result.job]
                comparisons += _comparisons(plan, task, test_set, samples_by_run)
    measured = [_with_scores(result, scores) for result in results]
    return Measured(measured, comparisons, signatures)


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


def _metric(plan: Plan, task: str, test_set: str) -> Metric:
    config = next(job.config for job in plan.jobs.values() if job.task == task)
    pairs = read_pairs(config.data.test[test_set], Counter())
    references = [target for _, target in pairs]
    return Metric(plan.experiment.metric(task), references, config.data.target)


def _resampled_by_job(
    plan: Plan, metric: Metric, results: Sequence[JobResult], test_set: str, progress: Bar
) -> dict[str, Resampled]:
    """Bootstrap samples of each job's translations; systems may share a job."""
    resampled: dict[str, Resampled] = {}
    for result in results:
        if result.job not in resampled:
            resampled[result.job] = _resampled(plan, metric, result.job, test_set)
            progress.advance()
    return resampled


def _resampled(plan: Plan, metric: Metric, job: str, test_set: str) -> Resampled:
    file = plan.jobs[job].run.test / f"{test_set}.txt"
    lines = list(read_lines(str(file), Counter()))
    if len(lines) != metric.lines:
        raise UserError(
            f"{file}: there are {len(lines):,} translations of {metric.lines:,} sentences; delete "
            "the job."
        )
    return metric.resampled(lines, plan.experiment.report.resamples)


def _comparisons(
    plan: Plan, task: str, test_set: str, samples_by_run: dict[tuple[str, int], Resampled]
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
                    metric=plan.experiment.metric(task),
                    difference=found.difference,
                    p=found.p,
                    standard_error=found.error,
                )
