"""Where an experiment's jobs run: as processes of this machine, or as jobs of Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from cbmi.errors import UserError, first_line, import_extra

LOOK_EVERY = 1.0  # seconds
# What submitit itself knows; all other options are Slurm's own.
GENERAL = frozenset(
    {
        "cpus_per_task",
        "gpus_per_node",
        "mem_gb",
        "name",
        "nodes",
        "stderr_to_stdout",
        "tasks_per_node",
    }
    | {"timeout_min"}
)


class Launched(Protocol):
    """A job that was started."""

    def wait(self) -> int:
        """Its exit status, when it has ended; below 0 if a signal ended it."""

    def terminate(self) -> None:
        """Ask it to stop. It saves first."""


class Launcher(Protocol):
    def launch(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], lock: int
    ) -> Launched:
        """Start a command whose words are added to `output`; it keeps the lock open if it can."""


class LocalLauncher:
    """Processes of this machine."""

    def launch(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], lock: int
    ) -> Launched:
        with open(output, "ab") as file:
            return subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
                env=dict(environment),
            )


class SlurmLauncher:
    """Jobs of Slurm, one for each job of the experiment.

    The process that launches them waits for them, and has the locks meanwhile.
    """

    def __init__(
        self, folder: Path, options: Mapping[str, str | int], cluster: str = "slurm"
    ) -> None:
        """`folder`: for submitit's files. `cluster`: "local" runs them here, for tests."""
        submitit = import_extra("submitit", "--launcher slurm", "slurm")
        try:
            self.executor: Any = submitit.AutoExecutor(folder=folder, cluster=cluster)
            named = {}
            for key, value in options.items():
                is_general = key in GENERAL or key.startswith("slurm_")
                named[key if is_general else f"slurm_{key}"] = value
            self.executor.update_parameters(**named)
        except Exception as error:
            raise UserError(f"--slurm: {first_line(error)}.") from None

    def launch(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], lock: int
    ) -> Launched:
        try:
            return SlurmJob(self.executor.submit(Command(list(command), str(output.resolve()))))
        except Exception as error:
            raise UserError(f"the job could not be submitted: {first_line(error)}.") from None


class SlurmJob:
    def __init__(self, job: Any) -> None:
        self.job = job

    def wait(self) -> int:
        while not self.job.done():
            time.sleep(LOOK_EVERY)
        error = self.job.exception()
        return 1 if error is not None else int(self.job.result())

    def terminate(self) -> None:
        self.job.cancel(check=False)


class Command:
    """A command that a job of Slurm runs. If its time runs out, it is stopped and queued again."""

    def __init__(self, command: list[str], output: str) -> None:
        self.command = command
        self.output = output
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        # A job that is cancelled passes that on, so that its run saves.
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        with open(self.output, "ab") as file:
            self.process = subprocess.Popen(
                self.command, stdout=file, stderr=subprocess.STDOUT, env=_without_slurm()
            )
            return self.process.wait()

    def _stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def checkpoint(self) -> Any:
        """What is queued when the time has run out: the same command, which resumes."""
        import submitit

        self._stop()
        if self.process is not None:
            self.process.wait()
        return submitit.helpers.DelayedSubmission(Command(self.command, self.output))


def _without_slurm() -> dict[str, str]:
    """The environment, without what would make one process believe that it is one of several."""
    several = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in several}


def slurm_options(texts: Sequence[str]) -> dict[str, str | int]:
    """KEY=VALUE options; numbers as numbers."""
    options: dict[str, str | int] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UserError(f"--slurm: '{text}' should be KEY=VALUE, such as partition=gpu.")
        options[key] = int(value) if value.isdecimal() else value
    return options
