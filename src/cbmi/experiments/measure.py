"""Scores and comparisons of an experiment's translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from cbmi.data.text import read_lines, read_pairs
from cbmi.errors import UserError
from cbmi.evaluation.significance import Metric, Resampled, compare
from cbmi.experiments.jobs import Plan
from cbmi.experiments.table import tested_against
from cbmi.progress import bar

Record = dict[str, Any]


def records_of(plan: Plan) -> list[Record]:
    """Results of the jobs that are done, one for each system: systems with the same settings share a job."""
    by_job = {record["job"]: record for record in plan.results()}
    records = [record for record in by_job.values() if record["kind"] != "system"]
    for (_, _, system), job in plan.of_system.items():
        if job in by_job:
            records.append(by_job[job] | {"system": system})
    return records


def measure(plan: Plan, records: list[Record]) -> tuple[list[Record], dict[str, str]]:
    """Bring the report's metric into the records; give comparisons of systems, and signatures by task."""
    comparisons, signatures = [], {}
    reported = plan.experiment.reported
    outputs = sum(len(reported(record["scores"])) for record in records if record["kind"] == "system")
    with bar("Testing for significance", outputs, "outputs") as progress:
        for task in plan.experiment.tasks:
            mine = [record for record in records if record["kind"] == "system" and record["task"] == task]
            for chosen in dict.fromkeys(name for record in mine for name in reported(record["scores"])):
                metric = _metric(plan, task, chosen)
                signatures[task] = metric.signature()
                runs: dict[tuple[str, int], Resampled] = {}
                known: dict[str, Resampled] = {}  # by job, which systems may share
                for record in mine:
                    if record["job"] not in known:
                        known[record["job"]] = _resampled(plan, metric, record, chosen)
                        progress.advance()
                    runs[record["system"], record["seed"]] = known[record["job"]]
                    scores = record["scores"][chosen]
                    record["scores"] |= {chosen: scores | {metric.name: known[record["job"]].score}}
                comparisons += _comparisons(plan, task, chosen, runs)
    return comparisons, signatures


def _metric(plan: Plan, task: str, chosen: str) -> Metric:
    config = next(job.config for job in plan.jobs.values() if job.task == task)
    references = [pair[1] for pair in read_pairs(config.data.test[chosen], Counter())]
    return Metric(plan.experiment.metric(task), references, config.data.target)


def _resampled(plan: Plan, metric: Metric, record: Record, chosen: str) -> Resampled:
    file = plan.jobs[record["job"]].run.test / f"{chosen}.txt"
    lines = list(read_lines(str(file), Counter()))
    if len(lines) != metric.lines:
        raise UserError(
            f"{file}: there are {len(lines):,} translations of {metric.lines:,} sentences; delete the job."
        )
    return metric.resampled(lines, plan.experiment.report.resamples)


def _comparisons(plan: Plan, task: str, chosen: str, runs: dict[tuple[str, int], Resampled]) -> Iterator[Record]:
    """Every system against those that it is tested against: over all seeds that both have (seed None), and each."""
    for system in dict.fromkeys(name for name, _ in runs):
        for other in tested_against(plan.experiment):
            seeds = [seed for name, seed in runs if name == system and (other, seed) in runs]
            if system == other or not seeds:
                continue
            for chosen_seeds in [seeds] + [[seed] for seed in seeds]:
                pair = [[runs[name, seed] for seed in chosen_seeds] for name in (other, system)]
                found = compare(*pair)
                yield {
                    "kind": "comparison",
                    "task": task,
                    "set": chosen,
                    "system": system,
                    "against": other,
                    "seed": None if chosen_seeds is seeds else chosen_seeds[0],
                    "metric": plan.experiment.metric(task),
                    "difference": found.difference,
                    "p": found.p,
                    "standard_error": found.error,
                }
