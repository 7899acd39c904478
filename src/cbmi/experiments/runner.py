"""Doing an experiment's jobs: one process a job, as many at a time as there are devices.

A job's folder is locked while a process works in it; the lock goes on to the job's own process, so that one whose
parent was killed is waited for, not disturbed. Any number of processes may work on the same experiment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from cbmi.errors import UserError
from cbmi.experiments.jobs import Job, Plan
from cbmi.experiments.results import add_attempt, collect, write_results
from cbmi.files import try_lock, write_atomically
from cbmi.progress import Bar, bar, clock, say
from cbmi.signals import stop_signals
from cbmi.training.world import choose_device
from cbmi.yaml_text import dump_yaml

LOOK_EVERY = 1.0  # seconds
LOG_TAIL = 1 << 14  # bytes of a log that are read to see how far a job is


class Runner:
    """Does what is missing of a plan; `failed` and `stop_signal` say what was not done, and why."""

    def __init__(self, plan: Plan, devices: list[str], shard: tuple[int, int]) -> None:
        self.plan, self.devices = plan, devices
        self.wanted = plan.wanted(shard)
        self.pending = {job.id: job for job in self.wanted}
        self.running: dict[str, subprocess.Popen | None] = {}  # None: it is being made ready
        self.elsewhere: set[str] = set()  # pending jobs that other processes are at
        self.failed: dict[str, str] = {}  # by job: why
        self.written = 0  # finished jobs that results.jsonl has
        self.changed = threading.Condition()
        self.stop_signal: int | None = None

    def run(self) -> None:
        workers = [threading.Thread(target=self._work, args=(device,)) for device in self.devices]
        total = sum(job.steps for job in self.wanted)
        with stop_signals(self._ask_to_stop), bar("Experiment", total, "steps") as progress:
            for worker in workers:
                worker.start()
            for worker in workers:
                while worker.is_alive():
                    self._show(progress)
                    worker.join(LOOK_EVERY)

    def _work(self, device: str) -> None:
        while True:
            taken = self._take()
            if taken is None:
                return
            job, lock = taken
            try:
                self._do(job, device, lock)
            except Exception as error:  # whatever one job meets, the others go on
                self._fail(job, str(error) or type(error).__name__)
            finally:
                os.close(lock)
                with self.changed:
                    self.running.pop(job.id, None)
                    self.changed.notify_all()

    def _take(self) -> tuple[Job, int] | None:
        """A job that can be done now, with its lock; None when there is none left."""
        with self.changed:
            while self.pending and self.stop_signal is None:
                for job in list(self.pending.values()):
                    if job.after in self.failed:
                        self._fail(job, f"not done, because {job.after} failed")
                        self.pending.pop(job.id)
                    elif job.after not in self.pending and job.after not in self.running:
                        lock = self._lock(job)
                        if lock is not None:
                            self.running[job.id] = None
                            return self.pending.pop(job.id), lock
                self.changed.wait(LOOK_EVERY)
        return None

    def _lock(self, job: Job) -> int | None:
        """The job's lock; None where another process has it, or it cannot be had."""
        try:
            lock = try_lock(job.folder / ".lock")
        except (OSError, UserError) as error:
            self._fail(self.pending.pop(job.id), str(error))
            return None
        (self.elsewhere.add if lock is None else self.elsewhere.discard)(job.id)
        return lock

    def _do(self, job: Job, device: str, lock: int) -> None:
        if job.done() and (job.kind not in ("corpus", "start") or job.ready()):
            return  # by another process, since the plan was made
        begun = time.monotonic()
        self._make_ready(job)
        with open(job.folder / "output.txt", "ab") as output:
            said_before = output.tell()
            self.running[job.id] = process = subprocess.Popen(
                command(job, device, self.plan),
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
                env=environment(self.devices),
            )
            if self.stop_signal is not None:  # it came while the process was being started
                process.terminate()
            status = process.wait()
        add_attempt(job, time.monotonic() - begun)
        if self.stop_signal is not None and (status or not _finished(job)):
            return
        if status < 0:
            self._fail(job, f"killed by signal {-status}" + (" (out of memory?)" if status == -9 else ""))
        elif status:
            self._fail(job, last_line(job.folder / "output.txt", said_before))
        elif job.kind != "corpus":
            say(f"{job.id}: {_gist(collect(job, device, self._steps_before(job)))}")

    def _steps_before(self, job: Job) -> int:
        """Steps of the run that a job goes on from; patience may have ended that one early."""
        before = self.plan.jobs[job.after].result() if job.kind == "system" else None
        return before["steps"] if before else sum(stage.steps for stage in job.config.stages) - job.steps

    def _make_ready(self, job: Job) -> None:
        """The job's run file, and the run that it goes on from."""
        if job.kind == "prior-accuracy":
            return
        write_atomically(job.folder / "run.yaml", dump_yaml(job.settings))
        if job.after and not job.run.config_file.exists():
            job.run.copy(self.plan.jobs[job.after].run)

    def _fail(self, job: Job, reason: str) -> None:
        self.failed[job.id] = reason
        say(f"{job.id} failed: {reason}")

    def _show(self, progress: Bar) -> None:
        with self.changed:
            over = [job for job in self.wanted if job.id not in self.pending and job.id not in self.running]
            busy = [job for job in self.wanted if job.id in self.running]
            elsewhere = sorted(self.elsewhere & self.pending.keys())
        if len(over) != self.written:
            self.written = len(over)
            try:
                write_results(self.plan)
            except UserError as error:  # the jobs go on; each has its own result
                say(str(error))
        states = [state(job, self._steps_before(job)) if job.stages else (0, "") for job in busy]
        finished = [job for job in over if job.id not in self.failed]
        done = sum(job.steps for job in finished) + sum(steps for steps, _ in states)
        parts = [f"{len(finished)} of {len(self.wanted)} jobs"]
        parts += [f"{len(over) - len(finished)} failed"] if len(over) > len(finished) else []
        parts += [f"{job.id} {note}".strip() for job, (_, note) in zip(busy, states, strict=True)]
        if elsewhere and not busy:
            parts.append(f"waiting for {elsewhere[0]}, which another process is at")
        progress.advance(max(0, done - progress.done), "; ".join(parts))

    def _ask_to_stop(self, number: int, frame: Any) -> None:
        """Pass SIGTERM and Ctrl-C on to the jobs, which save; the same command goes on."""
        self.stop_signal = number
        for process in list(self.running.values()):
            if process is not None and process.poll() is None:
                process.terminate()


def environment(devices: list[str]) -> dict[str, str]:
    """Of a job's process: where several work on one CPU, each has its share of the threads."""
    on_cpu = sum(choose_device(device).type == "cpu" for device in devices)
    threads = max(1, torch.get_num_threads() // max(1, on_cpu))
    return ({"OMP_NUM_THREADS": str(threads)} if on_cpu > 1 else {}) | os.environ


def command(job: Job, device: str, plan: Plan) -> list[str]:
    """The command of a job's process: one that a user could give."""
    cbmi = [sys.executable, "-m", "cbmi"]
    if job.kind == "corpus":
        return [*cbmi, "prepare", str(job.folder / "run.yaml")]
    if job.kind == "prior-accuracy":
        run, output = plan.jobs[job.after].run.path, job.folder / "accuracy.json"
        return [*cbmi, job.kind, str(run), "--device", device, "--json", "-o", str(output)]
    return [*cbmi, "train", str(job.folder / "run.yaml"), f"device={device}"]


def state(job: Job, steps_before: int) -> tuple[int, str]:
    """Steps of a job under way that are done, and a few words on how it goes."""
    try:
        with open(job.run.log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL))
            lines = [json.loads(line) for line in file.read().splitlines() if line.startswith(b'{"step"')]
    except (OSError, ValueError):  # not begun, or a line that is being written
        return 0, ""
    lines = [line for line in lines if line["stage"] in job.stages]
    if not lines:
        return 0, ""
    done = lines[-1]["step"] - steps_before
    losses = [line for line in lines if "loss" in line]
    speed = f", loss {losses[-1]['loss']:.3f}, {losses[-1]['tokens_per_second']:,.0f} tokens/s" if losses else ""
    return done, f"step {done:,} of {job.steps:,}{speed}"


def last_line(path: Path, begin: int) -> str:
    """The last that a process has said, from a place in the file on."""
    lines = path.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("cbmi: ") if lines else "it said nothing"


def _finished(job: Job) -> bool:
    """Whether a process that was asked to stop had done all there was to do."""
    if job.kind == "prior-accuracy":
        return (job.folder / "accuracy.json").exists()
    return job.kind != "corpus" and (job.run.test / "results.json").exists()


def _gist(record: dict[str, Any]) -> str:
    scores = [f"{name} BLEU {values['bleu']:.2f}" for name, values in record.get("scores", {}).items()]
    return ", ".join([*scores, clock(record["job_seconds"])])


def parse_shard(text: str | None) -> tuple[int, int]:
    """`2/8` as (2, 8); all of it where nothing is said."""
    if text is None:
        return 0, 1
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise UserError(f"--shard: '{text}' should be I/N with I from 0 to N - 1, such as 0/4.")
    return int(number), int(count)
