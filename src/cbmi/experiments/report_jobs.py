"""What the report says of the jobs: a line for each, what is missing, what they ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cbmi.experiments.records import DAY, JobResult
from cbmi.experiments.registration import Registration
from cbmi.experiments.settings import ExperimentSettings
from cbmi.progress import clock
from cbmi.reporting.tables import escape_markdown, markdown_table


@dataclass(frozen=True)
class JobRow:
    id: str
    folder: str | None  # seen from the report's; None: unknown
    scores: str
    steps: int | None
    training: str
    whole: str
    speed: int | None  # tokens per second
    device: str
    finished: str


def distinct_jobs(results: Sequence[JobResult]) -> list[JobResult]:
    """One result per job: systems with the same settings share theirs."""
    return list({result.job: result for result in results}.values())


def job_rows(results: Sequence[JobResult], links: Mapping[str, str]) -> list[JobRow]:
    """links: where a job's folder lies, seen from the report's."""
    rows = []
    for result in distinct_jobs(results):
        scores = [f"{name}: {values['bleu']:.2f}" for name, values in result.scores.items()]
        training = clock(result.training_seconds) if result.training_seconds else ""
        whole = "" if result.job_seconds is None else clock(result.job_seconds)
        rows.append(
            JobRow(
                id=result.job,
                folder=links.get(result.job),
                scores=", ".join(scores),
                steps=result.steps,
                training=training,
                whole=whole,
                speed=result.tokens_per_second,
                device=result.device or "",
                finished=(result.finished or "")[:DAY],
            )
        )
    return rows


def jobs_markdown(rows: Sequence[JobRow]) -> str:
    cells = []
    for row in rows:
        name = escape_markdown(row.id)
        if row.folder:
            name = f"[{name}]({row.folder}/result.json)"
        scores = escape_markdown(row.scores)
        steps = str(row.steps or "")
        device = escape_markdown(row.device)
        cells.append([name, scores, steps, row.training, row.whole, device])
    header = ["job", "BLEU", "steps", "training", "whole job", "device"]
    return markdown_table(header, cells, align="llrrrl")


def missing_runs(
    experiment: ExperimentSettings,
    results: Sequence[JobResult],
    registration: Registration | None = None,
) -> list[str]:
    """What the experiment or its registration names and nobody has done yet."""
    there = set()
    for result in results:
        there.add((result.task, result.seed, result.system or result.kind.value))
    missing = []
    for task in experiment.tasks:
        for seed in experiment.seeds:
            for name in [*experiment.expanded(), *experiment.analyses]:
                if (task, seed, name) not in there:
                    missing.append(f"{task}, seed {seed}: {name}")
    if registration is not None:
        for task, seed, name in registration.runs():
            text = f"{task}, seed {seed}: {name}"
            if (task, seed, name) not in there and text not in missing:
                missing.append(f"{text} (registered)")
    return missing


def experiment_details(results: Sequence[JobResult]) -> list[tuple[str, str]]:
    """What a reader asks first: when, on what, with which versions, how long."""
    jobs = distinct_jobs(results)
    found: dict[str, set[str | None]] = {
        "Finished": {job.finished[:DAY] for job in jobs if job.finished},
        "Device": {job.device for job in jobs},
        "PyTorch": {job.torch for job in jobs},
        "cbmi": {job.cbmi for job in jobs},
        "Commit": {job.commit for job in jobs},
    }
    details = []
    for name, values in found.items():
        known = sorted(value for value in values if value)
        if known:
            details.append((name, ", ".join(known)))
    total = sum(job.job_seconds or 0.0 for job in jobs)
    if total:
        details.append(("All jobs", f"{len(jobs)}, one after another {clock(total)}"))
    return details


def run_columns(results: Sequence[JobResult]) -> list[dict[str, Any]]:
    """The rows of results.csv: every run and test set."""
    rows = []
    for result in results:
        for test_set, scores in result.scores.items():
            row: dict[str, Any] = {
                "task": result.task,
                "system": result.system,
                "seed": result.seed,
                "job": result.job,
                "kind": result.kind.value,
                "set": test_set,
            }
            for metric, score in scores.items():
                row[metric] = f"{score:.4f}"
            row["steps"] = result.steps
            row["training_seconds"] = result.training_seconds
            row["job_seconds"] = result.job_seconds
            row["tokens_per_second"] = result.tokens_per_second
            row["device"] = result.device
            row["torch"] = result.torch
            row["cbmi"] = result.cbmi
            row["commit"] = result.commit
            row["finished"] = result.finished
            rows.append(row)
    return rows
