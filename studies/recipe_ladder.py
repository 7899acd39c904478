"""What each part of a stronger recipe is worth, with cross-entropy alone.

    python studies/recipe_ladder.py studies/recipe_ladder.yaml OUT [--tasks T,…] [--rungs R,…]
        [--seeds 1,2,3] [--jobs 4] [--device cuda:0] [--keep] [--time STEPS] [--report]
        [TASK:KEY=VALUE ...]

Each rung is a recipe with some settings changed. Every (task, rung, seed) is a run of its own,
`--jobs` of them side by side. OUT/results.csv gets a line as soon as a run has ended: steps, the
best validation BLEU and where it was reached, BLEU and chrF of the test sets. OUT/curves.csv gets
its validation figures, and the run directory goes (unless `--keep`): hundreds of runs would fill a
disk. What stands in results.csv is not trained again, so the work can be spread over several days
and machines.
`--time 300` trains each rung for 300 steps instead, one after the other, and writes the seconds of
a step to OUT/speed.csv. Leave the device to it alone. The table then has the minutes of training.
`--report` trains nothing and prints the table: means over seeds.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, pstdev
from threading import Lock
from typing import Any, TextIO

from program import run

from cbmi.config import read_config
from cbmi.errors import UserError
from cbmi.files import read_json, write_atomically
from cbmi.locks import locked
from cbmi.overrides import nearest, read_mapping
from cbmi.progress import say
from cbmi.reporting.tables import markdown_table
from cbmi.training.records import read_log
from cbmi.training.run import RunDirectory

Row = dict[str, Any]
KEYS = ("task", "rung", "seed")
SETTINGS = "settings"  # their digest
COLUMNS = (*KEYS, "steps", "best_step", "valid_bleu", "set", "bleu", "chrf", "seconds", SETTINGS)
CURVE_COLUMNS = (*KEYS, "step", "valid_loss", "valid_bleu")
SPEED_COLUMNS = ("task", "rung", "seconds_per_step")
UNTIMED = ("stages.0.steps=", "optimizer.schedule=")  # a step takes as long whatever they are
INTERVALS = 5  # that a timing takes the median of


@dataclass(frozen=True)
class Job:
    """One run: a recipe, a rung, a seed."""

    task: str
    rung: str
    seed: int
    recipe: Path
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.task}-{self.rung}-{self.seed}"

    def data_settings(self) -> tuple[str, ...]:
        """Settings that prepared data depend on."""
        of_data = [setting for setting in self.settings if setting.startswith("data.")]
        return tuple(setting for setting in of_data if not setting.startswith("data.test"))

    def row(self) -> Row:
        return {"task": self.task, "rung": self.rung, "seed": self.seed}

    def digest(self) -> str:
        """Of the recipe with the rung's settings, apart from where its run lies."""
        values = read_config(self.recipe, self.settings).plain() | {"output": "", "device": ""}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    def step_settings(self) -> tuple[str, ...]:
        """Settings that the time of a step depends on."""
        return tuple(setting for setting in self.settings if not setting.startswith(UNTIMED))


def jobs_of(
    plan: Mapping[str, Any], folder: Path, own: Mapping[str, Sequence[str]], seeds: Sequence[int]
) -> Iterator[Job]:
    """Seed by seed, so that an early stop leaves whole ladders; `own`: a task's own settings."""
    for seed in seeds:
        for task, description in plan["tasks"].items():
            for rung, changes in plan["rungs"].items():
                skipped = rung in description.get("without", ())
                if skipped:
                    continue
                special = description.get("rungs", {}).get(rung)
                settings = [
                    *description.get("settings", ()),
                    *own.get(task, ()),
                    *(changes if special is None else special),
                    f"seed={seed}",
                ]
                recipe = (folder / description["run"]).resolve()
                yield Job(task, rung, seed, recipe, tuple(settings))


class Running:
    """The trainings under way. When we are asked to stop, so are they, and they save."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.stopped = False

    def run(self, command: Sequence[str], log: TextIO) -> None:
        with self.lock:
            if self.stopped:
                raise subprocess.CalledProcessError(STOPPED, command)
            process = subprocess.Popen(command, stdout=log, stderr=log)
            self.processes.append(process)
        status = process.wait()
        with self.lock:
            self.processes.remove(process)
        if status or self.stopped:
            raise subprocess.CalledProcessError(status or STOPPED, command)

    def stop(self, *_: object) -> None:
        self.stopped = True
        for process in list(self.processes):
            process.terminate()


STOPPED = 128 + signal.SIGTERM  # as shells call it
RUNNING = Running()


class Preparations:
    """Run directories with vocabulary and encoded corpus, made once for equal data."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.lock = Lock()
        self.made: dict[tuple[str, ...], RunDirectory] = {}

    def of(self, job: Job, log: TextIO) -> RunDirectory:
        key = (str(job.recipe), *job.data_settings())
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:8]
        with self.lock:
            if key not in self.made:
                place = self.work / f"prepared-{job.task}-{digest}"
                command = [sys.executable, "-m", "cbmi", "prepare", str(job.recipe)]
                RUNNING.run([*command, f"output={place}", *job.settings], log)
                self.made[key] = RunDirectory(place)
            return self.made[key]


def train(job: Job, preparations: Preparations, work: Path, device: str) -> float:
    """Train and test the job's run; returns the seconds it took, interrupted attempts included."""
    run = RunDirectory(work / job.name)
    command = [sys.executable, "-m", "cbmi", "train", str(job.recipe), f"output={run.path}"]
    with open(log_of(job, work), "a", encoding="utf-8") as log:
        if not run.path.exists():
            run.copy(preparations.of(job, log))
        begun = time.monotonic()
        clock = run.path / "seconds.txt"
        before = float(clock.read_text()) if clock.exists() else 0.0
        try:
            RUNNING.run([*command, *job.settings, f"device={device}"], log)
        finally:
            seconds = before + time.monotonic() - begun
            write_atomically(clock, f"{seconds}\n")
    return seconds


def log_of(job: Job, work: Path) -> Path:
    return work / f"{job.name}.txt"


def rows_of(job: Job, work: Path, seconds: float) -> tuple[list[Row], list[Row]]:
    """Lines for results.csv and curves.csv."""
    run = RunDirectory(work / job.name)
    curve = []
    for record in read_log(run.log):
        if "valid_loss" in record:
            figures = {key: record[key] for key in ("step", "valid_loss", "valid_bleu")}
            curve.append({**job.row(), **figures})
    best = max(curve, key=lambda row: float(row["valid_bleu"]))
    known = {
        **job.row(),
        "steps": curve[-1]["step"],
        "best_step": best["step"],
        "valid_bleu": f"{best['valid_bleu']:.3f}",
        "seconds": f"{seconds:.0f}",
        SETTINGS: job.digest(),
    }
    results = []
    for name, scores in read_json(run.test / "results.json")["results"].items():
        bleu = f"{scores['bleu']:.3f}"
        results.append({**known, "set": name, "bleu": bleu, "chrf": f"{scores['chrf']:.3f}"})
    return results, curve


def time_all(jobs: Sequence[Job], work: Path, options: argparse.Namespace) -> int:
    """Write the seconds per step of each rung, trained alone; returns how many failed.

    Rungs whose steps do the same work share one measurement.
    """
    speeds = options.out / "speed.csv"
    known = {(row["task"], row["rung"]) for row in read_rows(speeds)}
    preparations = Preparations(work)
    measured: dict[tuple[str, ...], float] = {}
    failed = 0
    for job in jobs:
        if (job.task, job.rung) in known:
            continue
        known.add((job.task, job.rung))  # other seeds take as long
        key = (job.task, *job.step_settings())
        try:
            if key not in measured:
                measured[key] = seconds_per_step(job, preparations, work, options)
        except subprocess.CalledProcessError as error:
            failed += 1
            report_failure(timed(job, options.time), work, error)
            continue
        say(f"{job.task}-{job.rung}: {1000 * measured[key]:.2f} ms per step")
        row = {"task": job.task, "rung": job.rung, "seconds_per_step": f"{measured[key]:.6f}"}
        append(speeds, SPEED_COLUMNS, [row])
    return failed


def timed(job: Job, steps: int) -> Job:
    """A short training of the same, without validation and tests."""
    short = (
        f"stages.0.steps={steps}",
        f"log.every={steps // INTERVALS}",
        f"validate.every={steps}",
        "validate.beam=0",
        "optimizer.warmup=1",
        "data.test={}",
    )
    return replace(job, rung=f"{job.rung}-timed", settings=(*job.settings, *short))


def seconds_per_step(
    job: Job, preparations: Preparations, work: Path, options: argparse.Namespace
) -> float:
    """The median over a few intervals of a short training."""
    short = timed(job, options.time)
    run = RunDirectory(work / short.name)
    if run.path.exists():
        shutil.rmtree(run.path)  # an earlier measurement was interrupted
    train(short, preparations, work, options.device)
    seconds = [float(record["seconds"]) for record in read_log(run.log) if "seconds" in record]
    shutil.rmtree(run.path)
    return median(seconds[:INTERVALS]) / (options.time // INTERVALS)


def append(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    # Ladders of other tasks may write to the same file.
    with locked(path.with_name(f".{path.name}.lock")):
        # All of it: files of older versions have fewer columns.
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows([*read_rows(path), *rows])
        write_atomically(path, text.getvalue())


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(rows: Sequence[Mapping[str, str]], speeds: Sequence[Mapping[str, str]] = ()) -> str:
    """Markdown: a line per task, test set and rung; means over seeds, standard deviations.

    speeds: lines of speed.csv; with them, there is a column of the minutes that training takes.
    """
    seconds = {(row["task"], row["rung"]): float(row["seconds_per_step"]) for row in speeds}
    groups: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["set"], row["rung"]), []).append(row)
    lines = []
    for (task, name, rung), members in groups.items():
        scores = [_mean(members, key) for key in ("valid_bleu", "bleu", "chrf")]
        steps = members[0]["steps"]
        minutes = []
        if seconds:
            known = seconds.get((task, rung))
            minutes = ["–" if known is None else f"{int(steps) * known / 60:.1f}"]
        lines.append([task, name, rung, steps, *minutes, str(len(members)), *scores])
    header = ["task", "set", "rung", "steps", "seeds", "BLEU valid", "BLEU", "chrF"]
    if seconds:
        header.insert(4, "minutes")
    return markdown_table(header, lines, "lll" + "r" * (len(header) - 3))


def _mean(rows: Sequence[Mapping[str, str]], key: str) -> str:
    values = [float(row[key]) for row in rows]
    spread = f" ± {pstdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread}"


def _chosen(text: str | None, name: str) -> bool:
    return text is None or name in text.split(",")


def _check_chosen(option: str, text: str | None, known: Collection[str]) -> None:
    for name in text.split(",") if text else []:
        if name not in known:
            raise UserError(f"{option}: there is no '{name}' in the plan{nearest(name, known)}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks")
    parser.add_argument("--rungs")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, help="for run directories; OUT if left out")
    parser.add_argument("--keep", action="store_true", help="keep the run directories")
    parser.add_argument("--time", type=int, metavar="STEPS", help="measure the time of a step")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("settings", nargs="*", metavar="TASK:KEY=VALUE")
    options = parser.parse_intermixed_args()
    results = options.out / "results.csv"
    speeds = options.out / "speed.csv"
    if options.report:
        print(table(read_rows(results), read_rows(speeds)))
        return
    if options.time is not None and options.time < INTERVALS:
        raise UserError(f"--time: {options.time} steps are too few; give at least {INTERVALS}.")
    own: dict[str, list[str]] = {}
    for setting in options.settings:
        task, _, value = setting.partition(":")
        own.setdefault(task, []).append(value)
    plan = read_mapping(options.plan, "plan of a ladder")
    for key in ("tasks", "rungs"):
        if not isinstance(plan.get(key), Mapping):
            raise UserError(f"{options.plan}: a plan of a ladder has '{key}'.")
    if not all(seed.isdecimal() for seed in options.seeds.split(",")):
        raise UserError(f"--seeds: '{options.seeds}' should be numbers, such as 1,2,3.")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    work = options.work or options.out
    work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    known = {tuple(row[key] for key in KEYS): row for row in read_rows(results)}
    _check_chosen("--tasks", options.tasks, plan["tasks"])
    _check_chosen("--rungs", options.rungs, plan["rungs"])
    _check_chosen("TASK:KEY=VALUE", ",".join(own) or None, plan["tasks"])
    wanted = []
    for job in jobs_of(plan, options.plan.parent, own, seeds):
        if not (_chosen(options.tasks, job.task) and _chosen(options.rungs, job.rung)):
            continue
        digest = job.digest()  # mistakes show before anything is trained
        row = known.get((job.task, job.rung, str(job.seed)))
        # Results of older versions do not say what they are of.
        if row is not None and row.get(SETTINGS) not in (None, "", digest):
            raise UserError(
                f"{results}: {job.name} was trained with other settings; give the rung another "
                "name, or the results another folder."
            )
        if row is None or options.time is not None:
            wanted.append(job)
    signal.signal(signal.SIGTERM, RUNNING.stop)
    do = run_all if options.time is None else time_all
    failed = do(wanted, work, options)
    print(table(read_rows(results), read_rows(speeds)))
    if RUNNING.stopped:
        sys.exit(STOPPED)
    if failed:
        raise UserError(f"{failed} of {len(wanted)} runs failed.")


def run_all(jobs: Sequence[Job], work: Path, options: argparse.Namespace) -> int:
    """Train them, write their lines as they end, and report those that fail; returns how many."""
    failed = 0
    preparations = Preparations(work)
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // max(options.jobs, 1)))
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {}
        for job in jobs:
            futures[pool.submit(train, job, preparations, work, options.device)] = job
        for future in as_completed(futures):
            job = futures[future]
            try:
                results, curve = rows_of(job, work, future.result())
            except subprocess.CalledProcessError as error:
                failed += 1
                report_failure(job, work, error)
                continue
            append(options.out / "results.csv", COLUMNS, results)
            append(options.out / "curves.csv", CURVE_COLUMNS, curve)
            if not options.keep:
                shutil.rmtree(work / job.name)
            say(f"{job.name}: {results[0]['valid_bleu']} on validation")
    return failed


def report_failure(job: Job, work: Path, error: subprocess.CalledProcessError) -> None:
    how = f"failed with status {error.returncode}; see {log_of(job, work)}"
    say(f"{job.name}: {'stopped' if RUNNING.stopped else how}")


if __name__ == "__main__":
    run(main)
