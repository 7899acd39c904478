"""From a finished job's files to its result: scores, the course of training, what it cost."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from cbmi.digests import digest
from cbmi.experiments.jobs import Job, without_infinities
from cbmi.experiments.plan import Plan
from cbmi.experiments.records import (
    ContrastRecord,
    JobKind,
    JobResult,
    PreparationCost,
    SystemComparison,
    ValidationPoint,
    moment_now,
)
from cbmi.files import disk_errors, read_json, to_json, write_atomically
from cbmi.inspection.prior_accuracy import PriorAccuracy
from cbmi.locks import locked
from cbmi.training.checkpoint import LANGUAGE_MODEL, LATEST, TRANSLATOR, folder_name
from cbmi.training.records import read_log
from cbmi.training.run import RunDirectory
from cbmi.training.world import choose_device, device_name
from cbmi.version import __version__

WEIGHTS = ("weight_mean", "weight_std", "zero_weights")  # in a run's log


def add_attempt(job: Job, seconds: float) -> None:
    """Note how long a process was at a job, whether it came to the end or not."""
    with disk_errors(job.folder), open(job.attempts_file, "a", encoding="utf-8") as file:
        file.write(f"{seconds:.1f}\n")


def collect(job: Job, device: str, steps_before: int) -> JobResult:
    """The result of a finished job, also written to its folder.

    `steps_before`: steps of the run that are not this job's own.
    """
    if job.kind is JobKind.PRIOR_ACCURACY:
        accuracy = PriorAccuracy.from_json(read_json(job.accuracy_file))
        result = replace(_new_result(job), accuracy=accuracy)
    else:
        result = _result_of_run(job, steps_before)
    attempts = sum(float(seconds) for seconds in job.attempts_file.read_text().split())
    # An attempt whose parent was killed is not among them; its steps are in the log.
    seconds = max(attempts, result.training_seconds or 0.0)
    result = replace(
        result,
        job_seconds=round(seconds, 1),
        device=device_name(choose_device(device)),
        torch=torch.__version__,
        cbmi=__version__,
        commit=_commit(),
        begun=job.begun_file.read_text() if job.begun_file.exists() else None,
        finished=_first_finished(job) or moment_now(),
        files=job.file_digests,
        settings=without_infinities(job.settings),
    )
    write_atomically(job.result_file, to_json(result.to_json()))
    return result


def note_begin(job: Job) -> None:
    """Note when the first process began at a job."""
    if not job.begun_file.exists() and not job.attempts_file.exists():
        write_atomically(job.begun_file, moment_now())


def _first_finished(job: Job) -> str | None:
    """When a job that is done again, for another test set, was done first."""
    if not job.result_file.exists():
        return None
    finished: str | None = read_json(job.result_file).get("finished")
    return finished


def _new_result(job: Job) -> JobResult:
    return JobResult(job.id, job.kind, job.task, job.seed, job.system)


def _result_of_run(job: Job, steps_before: int) -> JobResult:
    """Scores, course of training and costs of a run."""
    lines = _log_lines(job)
    of_training = [line for line in lines if "seconds" in line]
    of_validation = [line for line in lines if "valid_loss" in line]
    last_step = max((line["step"] for line in lines), default=steps_before)
    speeds = [line["tokens_per_second"] for line in of_training]
    last = of_training[-1] if of_training else {}
    scores = {}
    if job.config.data.test:
        scores = read_json(job.run.test / "results.json")["results"]
    return replace(
        _new_result(job),
        scores=scores,
        validations=tuple(ValidationPoint.from_json(line) for line in of_validation),
        steps=last_step - steps_before,
        training_seconds=round(sum(line["seconds"] for line in of_training), 2),
        tokens_per_second=round(statistics.median(speeds)) if speeds else 0,
        loss=last.get("loss"),
        weights={key: last[key] for key in WEIGHTS if key in last},
        parameters=_parameters(job),
        shared_weights=shared_weights(job.run, steps_before or last_step),
        preparation=preparation_cost(job.run, job.stages),
    )


def shared_weights(run: RunDirectory, step: int) -> str | None:
    """Digest of the weights from which training continues after a step; None: they are gone."""
    folder = run.checkpoints / folder_name(step)
    for name in (LATEST, TRANSLATOR):
        file = folder / f"{name}.safetensors"
        if file.exists():
            return digest(file)
    return None


def _log_lines(job: Job) -> list[dict[str, Any]]:
    """The lines of the run's log that are of the job's own stages."""
    return [line for line in read_log(job.run.log) if line["stage"] in job.stages]


def _parameters(job: Job) -> dict[str, int]:
    """Of the networks that the job's last stage has, by name."""
    names = [TRANSLATOR]
    if job.config.stages[-1].language_model != "off":
        names.append(LANGUAGE_MODEL)
    result = {}
    for name in names:
        file = job.run.best / f"{name}.safetensors"
        if file.exists():
            result[name] = _count_parameters(file)
    return result


def _count_parameters(file: Path) -> int:
    count = 0
    with safe_open(file, "pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 (it has no iterator)
            count += torch.Size(tensors.get_slice(key).get_shape()).numel()
    return count


def preparation_cost(run: RunDirectory, stages: Iterable[str]) -> PreparationCost:
    """Of what the objectives of these stages wanted before their first step."""
    folders = [run.data / "train" / "statistics"]
    folders += (run.data / "segmentations").glob("*/statistics")
    folders += [run.cache / stage for stage in stages]
    seconds = 0
    size = 0
    for folder in folders:
        for file in folder.rglob("*"):  # with several segmentations, a folder for each
            if file.suffix == ".json":
                seconds += read_json(file).get("seconds", 0.0)
            elif file.is_file():
                size += file.stat().st_size
    return PreparationCost(round(seconds, 2), size)


def _commit() -> str | None:
    """Of the checkout that this package lies in, if it lies in one."""
    file = Path(__file__)
    try:
        # Installed in a virtual environment, the package may lie in a repository that is not its
        # own, whose commit says nothing about it.
        _git(file.parent, "ls-files", "--error-unmatch", file.name)
        return _git(file.parent, "describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    """What a git command prints in a folder."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write_results(plan: Plan, tests: Iterable[SystemComparison | ContrastRecord] = ()) -> None:
    """All results, comparisons and contrasts in one file; several processes may be at it."""
    with locked(plan.folder / ".lock"):
        records = [result.to_json() for result in plan.results()]
        records += [test.to_json() for test in tests]
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        write_atomically(plan.folder / "results.jsonl", "".join(lines))
