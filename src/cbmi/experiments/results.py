"""What a job has given, as one record."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from cbmi import __version__
from cbmi.experiments.jobs import Job, Plan, without_infinities
from cbmi.files import disk_errors, locked, read_json, to_json, write_atomically
from cbmi.training.checkpoint import LANGUAGE_MODEL, TRANSLATOR
from cbmi.training.world import choose_device

WEIGHTS = ("weight_mean", "weight_std", "zero_weights")
VALIDATION = ("step", "valid_loss", "valid_bleu", "valid_lm_ppl")


def add_attempt(job: Job, seconds: float) -> None:
    """Note how long a process was at a job, whether it came to the end or not."""
    with disk_errors(job.folder), open(job.folder / "attempts.txt", "a", encoding="utf-8") as file:
        file.write(f"{seconds:.1f}\n")


def collect(job: Job, device: str, steps_before: int) -> dict[str, Any]:
    """The record of a finished job, also written to its folder."""
    record: dict[str, Any] = {"job": job.id, "kind": job.kind, "task": job.task, "seed": job.seed}
    record |= {"system": job.system} if job.system else {}
    if job.kind == "prior-accuracy":
        record["accuracy"] = read_json(job.folder / "accuracy.json")
    else:
        record |= _of_run(job, steps_before)
    attempts = sum(map(float, (job.folder / "attempts.txt").read_text().split()))
    record |= {
        # An attempt whose parent was killed is not among them; its steps are in the log.
        "job_seconds": round(max(attempts, record.get("training_seconds", 0.0)), 1),
        "device": device_name(device),
        "torch": torch.__version__,
        "cbmi": __version__,
        "commit": _commit(),
        "finished": time.strftime("%Y-%m-%d"),
        "files": job.files,
        "settings": without_infinities(job.settings),
    }
    write_atomically(job.result_file, to_json(record))
    return record


def _of_run(job: Job, steps_before: int) -> dict[str, Any]:
    """Scores, course of training and costs of a run."""
    lines = [json.loads(line) for line in job.run.log.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line["stage"] in job.stages]
    steps = [line for line in lines if "seconds" in line]
    tests = read_json(job.run.test / "results.json")["results"] if job.config.data.test else {}
    return {
        "scores": tests,
        "validations": [{k: line[k] for k in VALIDATION if k in line} for line in lines if "valid_loss" in line],
        "steps": max((line["step"] for line in lines), default=steps_before) - steps_before,
        "training_seconds": round(sum(line["seconds"] for line in steps), 2),
        "tokens_per_second": round(statistics.median([line["tokens_per_second"] for line in steps] or [0])),
        "loss": steps[-1]["loss"] if steps else None,
        "weights": {key: steps[-1][key] for key in WEIGHTS if key in steps[-1]} if steps else {},
        "parameters": _parameters(job),
        "preparation": _preparation(job),
    }


def _parameters(job: Job) -> dict[str, int]:
    """Of the networks that the job's last stage has, by name."""
    names = [TRANSLATOR] + ([LANGUAGE_MODEL] if job.config.stages[-1].language_model != "off" else [])
    result = {}
    for name in names:
        file = job.run.best / f"{name}.safetensors"
        if file.exists():
            with safe_open(file, "pt") as tensors:
                shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys()]  # noqa: SIM118
            result[name] = sum(int(torch.Size(shape).numel()) for shape in shapes)
    return result


def _preparation(job: Job) -> dict[str, float]:
    """Seconds and bytes of what this job's objective wanted before its first step."""
    folders = [job.run.data / "train" / "statistics", *(job.run.cache / stage for stage in job.stages)]
    files = [file for folder in folders for file in folder.glob("*.json")]
    known = [read_json(file) for file in files]
    arrays = [file for folder in folders for file in folder.glob("*") if file.suffix != ".json"]
    seconds = sum(values.get("seconds", 0.0) for values in known)
    return {"seconds": round(seconds, 2), "bytes": sum(file.stat().st_size for file in arrays)}


def _commit() -> str | None:
    """Of the checkout that this package lies in, if it lies in one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def device_name(device: str) -> str:
    chosen = choose_device(device)
    if chosen.type == "cuda":
        return torch.cuda.get_device_name(chosen)
    try:  # Linux; elsewhere the kind of processor has to do
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write_results(plan: Plan, comparisons: Iterable[dict[str, Any]] = ()) -> None:
    """All records in one file; several processes may be at it."""
    with locked(plan.folder / ".lock"):
        lines = [json.dumps(record, ensure_ascii=False) for record in [*plan.results(), *comparisons]]
        write_atomically(plan.folder / "results.jsonl", "".join(line + "\n" for line in lines))
