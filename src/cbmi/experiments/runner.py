"""Doing an experiment's jobs: one process per job, as many at a time as there are devices.

A job's folder is locked while a process works in it. The job's own process inherits the lock, so
that one whose parent was killed is waited for, not disturbed. Any number of processes may work on
the same experiment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from cbmi.errors import UserError
from cbmi.experiments.jobs import Job
from cbmi.experiments.launchers import Launched, Launcher, LocalLauncher
from cbmi.experiments.plan import Plan
from cbmi.experiments.records import JobKind, JobResult
from cbmi.experiments.results import (
    add_attempt,
    collect,
    note_begin,
    shared_weights,
    write_results,
)
from cbmi.files import write_atomically
from cbmi.locks import try_lock
from cbmi.progress import Bar, bar, clock, counted, say
from cbmi.signals import stop_signals
from cbmi.training.world import choose_device
from cbmi.yaml_text import dump_yaml

LOOK_EVERY = 1.0  # seconds
LOG_TAIL = 1 << 14  # bytes of a log that are read to see how far a job is


class Runner:
    """Does what is missing of a plan.

    Afterwards `failed` and `stop_signal` say what was not done, and why.
    """

    def __init__(
        self,
        plan: Plan,
        devices: list[str],
        wanted: Sequence[Job],
        launcher: Launcher | None = None,
    ) -> None:
        self.plan = plan
        self.devices = devices
        self.launcher = launcher or LocalLauncher()
        self.wanted = wanted
        self.pending = {job.id: job for job in self.wanted}
        # By job; None: its folder is being made ready.
        self.running: dict[str, Launched | None] = {}
        self.elsewhere: set[str] = set()  # pending jobs that other processes are at
        self.failed: dict[str, str] = {}  # by job: why
        self.written = 0  # finished jobs that results.jsonl has
        self.changed = threading.Condition()  # guards all of the above; notified after each job
        self.stop_signal: int | None = None

    def run(self) -> None:
        """Do all wanted jobs; returns when they are done or failed, or when asked to stop."""
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
        """A thread per device: do one job after another."""
        while True:
            taken = self._take()
            if taken is None:
                return
            job, lock = taken
            try:
                self._do(job, device, lock)
            except Exception as error:  # whatever one job meets, the others continue
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
        if lock is None:
            self.elsewhere.add(job.id)
        else:
            self.elsewhere.discard(job.id)
        return lock

    def _do(self, job: Job, device: str, lock: int) -> None:
        others_continue = job.kind in (JobKind.CORPUS, JobKind.START)
        if job.done() and (not others_continue or job.ready()):
            return  # by another process, since the plan was made
        begun = time.monotonic()
        self._make_ready(job)
        note_begin(job)
        output = job.output_file
        said_before = output.stat().st_size if output.exists() else 0
        command = job_command(job, device, self.plan)
        process = self.launcher.launch(command, output, job_environment(self.devices), lock)
        with self.changed:
            self.running[job.id] = process
        if self.stop_signal is not None:  # it came while the process was being started
            process.terminate()
        status = process.wait()
        add_attempt(job, time.monotonic() - begun)
        if self.stop_signal is not None and (status or not _finished(job)):
            return
        if status < 0:
            hint = " (out of memory?)" if status == -9 else ""
            self._fail(job, f"killed by signal {-status}{hint}")
        elif status:
            self._fail(job, last_line(job.output_file, said_before))
        elif job.kind is not JobKind.CORPUS:
            result = collect(job, device, self._steps_before(job))
            say(f"{job.id}: {_gist(result)}")

    def _steps_before(self, job: Job) -> int:
        """Steps of the run that a job continues from; patience may have ended that one early."""
        if job.kind is JobKind.SYSTEM and job.after is not None:
            before = self.plan.jobs[job.after].result()
            if before is not None and before.steps is not None:
                return before.steps
        return sum(stage.steps for stage in job.config.stages) - job.steps

    def _make_ready(self, job: Job) -> None:
        """The job's run file, and a copy of the run that it continues from."""
        if job.kind is JobKind.PRIOR_ACCURACY:
            return
        write_atomically(job.run_file, dump_yaml(job.settings))
        if job.after and not job.run.config_file.exists():
            job.run.copy(self.plan.jobs[job.after].run)
        if job.kind is JobKind.SYSTEM:
            self._check_start(job)

    def _check_start(self, job: Job) -> None:
        """Refuse to continue from other weights than those that the seed's other systems had."""
        own = shared_weights(job.run, self._steps_before(job))
        for other in self.plan.systems_of_seed(job):
            known = other.shared_weights
            if own is not None and known is not None and known != own:
                raise UserError(
                    f"{job.after} has other weights than those that {other.job} continued from: "
                    f"bring the old ones back, or delete the systems of seed {job.seed} to train "
                    "them again."
                )

    def _fail(self, job: Job, reason: str) -> None:
        with self.changed:  # re-entrant: the caller may have it
            self.failed[job.id] = reason
        say(f"{job.id} failed: {reason}")

    def _show(self, progress: Bar) -> None:
        """Bring the bar and results.jsonl up to date."""
        over: list[Job] = []
        busy: list[Job] = []
        with self.changed:
            for job in self.wanted:
                if job.id in self.running:
                    busy.append(job)
                elif job.id not in self.pending:
                    over.append(job)
            finished = [job for job in over if job.id not in self.failed]
            elsewhere = sorted(self.elsewhere & self.pending.keys())
        if len(over) != self.written:
            self.written = len(over)
            try:
                write_results(self.plan)
            except UserError as error:  # the jobs continue; each has its own result
                say(str(error))
        failed = len(over) - len(finished)
        done = sum(job.steps for job in finished)
        notes = [f"{len(finished)} of {counted(len(self.wanted), 'job')}"]
        if failed:
            notes.append(f"{failed} failed")
        for job in busy:
            progress_of_job = job_progress(job, self._steps_before(job))
            done += progress_of_job.steps
            notes.append(f"{job.id} {progress_of_job.note}".strip())
        if elsewhere and not busy:
            notes.append(f"waiting for {elsewhere[0]}, which another process is at")
        progress.advance(max(0, done - progress.done), "; ".join(notes))

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """Pass SIGTERM and Ctrl-C on to the jobs, which save; the same command resumes them."""
        # no lock: a signal handler must not wait
        self.stop_signal = number
        for process in list(self.running.values()):
            if process is not None:
                process.terminate()


def job_environment(devices: list[str]) -> dict[str, str]:
    """Of a job's process: several that work on one CPU share its threads."""
    variables = dict(os.environ)
    on_cpu = sum(choose_device(device).type == "cpu" for device in devices)
    if on_cpu > 1:
        threads = max(1, torch.get_num_threads() // on_cpu)
        variables.setdefault("OMP_NUM_THREADS", str(threads))  # the user's own choice is kept
    return variables


def job_command(job: Job, device: str, plan: Plan) -> list[str]:
    """The command of a job's process: one that a user could give."""
    cbmi = [sys.executable, "-P", "-m", "cbmi"]
    if job.kind is JobKind.CORPUS:
        return [*cbmi, "prepare", str(job.run_file)]
    if job.kind is JobKind.PRIOR_ACCURACY:
        assert job.after is not None  # the run that it looks at
        run = str(plan.jobs[job.after].run.path)
        output = str(job.accuracy_file)
        return [*cbmi, job.kind.value, run, "--device", device, "--json", "-o", output]
    return [*cbmi, "train", str(job.run_file), f"device={device}"]


class JobProgress(NamedTuple):
    steps: int  # that are done
    note: str  # how it is going


NOT_BEGUN = JobProgress(0, "")


def job_progress(job: Job, steps_before: int) -> JobProgress:
    """How far a running job is, from the end of its log; `steps_before`: of the run's beginning."""
    try:
        with open(job.run.log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_TAIL))
            lines = file.read().splitlines()
        # The first line may be cut off, and so does not begin like this.
        logged = [json.loads(line) for line in lines if line.startswith(b'{"step"')]
    except (OSError, ValueError):  # not begun, or a line that is being written
        return NOT_BEGUN
    own = [line for line in logged if line["stage"] in job.stages]
    if not own:
        return NOT_BEGUN
    done = own[-1]["step"] - steps_before
    note = f"step {done:,} of {job.steps:,}"
    of_training = [line for line in own if "loss" in line]  # the others are of validation
    if of_training:
        last = of_training[-1]
        note += f", loss {last['loss']:.3f}, {last['tokens_per_second']:,.0f} tokens/s"
    return JobProgress(done, note)


def last_line(path: Path, begin: int) -> str:
    """The last that a process has said, from byte `begin` of the file on."""
    said = path.read_bytes()[begin:].decode(errors="replace") if path.exists() else ""
    lines = said.strip().splitlines()
    return lines[-1].removeprefix("cbmi: ") if lines else "it said nothing"


def _finished(job: Job) -> bool:
    """Whether a process that was asked to stop had done all there was to do."""
    if job.kind is JobKind.PRIOR_ACCURACY:
        return job.accuracy_file.exists()
    return job.kind is not JobKind.CORPUS and (job.run.test / "results.json").exists()


def _gist(result: JobResult) -> str:
    """A finished job in one line."""
    parts = [f"{name} BLEU {scores['bleu']:.2f}" for name, scores in result.scores.items()]
    parts.append(clock(result.job_seconds or 0.0))
    return ", ".join(parts)


def parse_shard(text: str | None) -> tuple[int, int]:
    """`2/8` as (2, 8); without a text all of it, (0, 1)."""
    if text is None:
        return 0, 1
    number, slash, count = text.partition("/")
    is_given = slash and number.isdecimal() and count.isdecimal()
    if not (is_given and int(number) < int(count)):
        raise UserError(f"--shard: '{text}' should be I/N with I from 0 to N - 1, such as 0/4.")
    return int(number), int(count)
