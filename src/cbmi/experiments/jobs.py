"""The jobs that an experiment comes to, and what of them is done.

experiment/jobs/TASK-corpus         vocabulary and encoded corpus, once a task
experiment/jobs/TASK-SEED-start     the stages that all systems share, once a task and seed
experiment/jobs/TASK-SEED-SYSTEM    a copy of that (by hard links), gone on with the last stage, the system's own

Each folder has run.yaml, the run directory, output.txt (what the process said) and, when it is done, result.json.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cbmi.config import RunConfig, check, differences, nearest, read_mapping, with_overrides
from cbmi.data.prepare import check_unchanged
from cbmi.errors import UserError
from cbmi.evaluation.metrics import unspaced
from cbmi.evaluation.multi_bleu import check_language
from cbmi.experiments.settings import Experiment, System, Task
from cbmi.files import digest, read_json
from cbmi.objectives import build
from cbmi.objectives.registry import LANGUAGE_PAIRS, find
from cbmi.training.run import FREE_TO_CHANGE, Run
from cbmi.training.train import check_files, check_stages, completed, read_through

ELSEWHERE = (*FREE_TO_CHANGE, "initialize:", "data.train", "data.valid")  # where files lie; their content counts
OF_CORPUS = ("data.source", "data.target", "data.vocabulary", "data.max_length", "data.drop_copies")


@dataclass(frozen=True)
class Job:
    id: str
    kind: Literal["corpus", "start", "system", "prior-accuracy"]
    task: str
    seed: int
    folder: Path
    config: RunConfig  # of its run; an analysis has that of the run that it looks at
    after: str | None = None  # the job that it goes on from
    system: str | None = None

    @property
    def run(self) -> Run:
        return Run(self.folder / "run")

    @property
    def result_file(self) -> Path:
        return self.folder / "result.json"

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that this job trains."""
        names = tuple(stage.name for stage in self.config.stages)
        return {"start": names, "system": names[-1:]}.get(self.kind, ())

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.config.stages if stage.name in self.stages)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return self.config.plain()

    @cached_property
    def files(self) -> dict[str, list[str]]:
        """Digests of the files that it was made of."""
        data = self.config.data
        named = {"train": data.train, "valid": data.valid or (), **{f"test {n}": f for n, f in data.test.items()}}
        return {name: [digest(file) for file in files] for name, files in named.items()}

    def result(self) -> dict[str, Any] | None:
        """What it has given; None where something is missing. Refuses that of other settings or another corpus."""
        if self.kind == "corpus" or not self.result_file.exists():
            return None
        result = read_json(self.result_file)
        if not isinstance(result, dict) or not {"settings", "job"} <= result.keys():
            raise UserError(f"{self.result_file}: this is no result; delete it, and the job is done again.")
        # Through RunConfig, so that a setting that has come since has its default.
        settings = check(RunConfig, result["settings"], str(self.result_file)).plain()
        changes = differences(settings, without_infinities(self.settings))
        changes = [line for line in changes if not line.startswith(ELSEWHERE)]
        known = result.get("files", {})
        others = [f"data.{name.replace(' ', '.')}" for name, own in self.files.items() if known.get(name, own) != own]
        if changes:
            raise UserError(
                f"{self.folder} is done, but with other settings ({'; '.join(changes[:3])}): give the task or the "
                "system another name, choose another output=…, or delete the folder."
            )
        if others:
            raise UserError(
                f"{self.folder} is done, but the content of {' and '.join(others)} has changed since: bring it "
                "back, give the task or the test set another name, or choose another output=…."
            )
        if "scores" in result:
            sets = self.config.data.test
            if self.kind == "system" and not sets.keys() <= result["scores"].keys():
                return None  # a test set has been added
            result["scores"] = {name: result["scores"][name] for name in sets if name in result["scores"]}
        return result

    def check_begun(self) -> None:
        """Refuse a run that has begun with other settings and is not done."""
        if self.kind in ("start", "system") and self.run.config_file.exists() and not self.done():
            changes = self.run.changes(self.config)
            if changes:
                raise UserError(
                    f"{self.folder} has begun with other settings ({'; '.join(changes[:3])}): go on with those, "
                    "choose another output=…, or delete the folder."
                )

    def check_corpus(self) -> None:
        """Refuse a prepared corpus of other settings or of other files."""
        if self.kind == "corpus" and self.run.config_file.exists() and self.done():
            known = self.run.config().plain()
            changes = [line for line in differences(known, self.settings) if line.startswith(OF_CORPUS)]
            if changes:
                raise UserError(
                    f"{self.folder} was prepared with other settings ({'; '.join(changes)}): give the task another "
                    "name, choose another output=…, or delete the folder."
                )
            check_unchanged(self.run.data / "train", self.config.data.train)

    def done(self) -> bool:
        if self.kind == "corpus":
            return (self.run.data / "train").exists()
        return self.result() is not None

    def ready(self) -> bool:
        """Whether another job can go on from here."""
        return self.done() and (self.kind == "corpus" or self.run.best.exists())


class Plan:
    """The jobs of an experiment by id; systems with the very same settings share theirs."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.folder = experiment, Path(experiment.output)
        self.jobs_folder = Path(experiment.jobs) if experiment.jobs else self.folder / "jobs"
        self.jobs: dict[str, Job] = {}
        self.of_system: dict[tuple[str, int, str], str] = {}  # (task, seed, system) → job
        for name, task in experiment.tasks.items():
            self._plan_task(name, task)
        for job in self.jobs.values():
            job.check_begun()

    def _plan_task(self, name: str, task: Task) -> None:
        experiment, where = self.experiment, f"tasks.{name}"
        config = check(RunConfig, _run_values(task), task.run)
        if experiment.systems and len(config.stages) < 2:
            raise UserError(
                f"{where}.run: {task.run} has one stage; an experiment needs two: what all systems share, and the "
                "last, whose objective each system replaces."
            )
        check_files(config)
        read_through(config)
        _check_report(experiment, name, config)
        _check_preset(experiment, name)
        for seed in experiment.seeds:
            self._plan_seed(name, task, seed)

    def _plan_seed(self, name: str, task: Task, seed: int) -> None:
        experiment, where = self.experiment, f"tasks.{name}"
        shared = self._values(_run_values(task), seed)
        shared["stages"] = shared["stages"][:-1] or shared["stages"]
        corpus = self._add("corpus", name, seed, f"{name}-corpus", shared)
        start = self._add("start", name, seed, f"{name}-{seed}-start", shared, corpus.id)
        corpus.check_corpus()
        check_stages(start.config)
        for label, system in experiment.expanded().items():
            self._plan_system(name, task, seed, label, system, start)
        for analysis in experiment.analyses:
            if all(stage.language_model not in ("train", "joint") for stage in start.config.stages):
                raise UserError(f"analyses: {analysis} needs a language model, which {where} does not train first.")
            if not start.config.data.valid:
                raise UserError(f"analyses: {analysis} looks at data.valid, which {where} has not.")
            self._add(analysis, name, seed, f"{name}-{seed}-{analysis}", shared, start.id)

    def _plan_system(self, name: str, task: Task, seed: int, label: str, system: System, start: Job) -> None:
        where = f"systems.{label}"
        values = self._values(_run_values(task), seed)
        objective = {"preset": task.preset} | system.objective if task.preset else system.objective
        build(objective, f"{where}.objective")  # whose mistakes are the system's, not the run file's
        own = {"steps": system.steps, "restart_optimizer": system.restart_optimizer}
        own = {key: value for key, value in own.items() if value is not None}
        values["stages"][-1] |= {"objective": objective, "language_model": system.language_model, **own}
        config = completed(check(RunConfig, values, f"{where} with {task.run}"))
        try:
            check_stages(config)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        for other in self.jobs.values():
            same = (other.kind, other.task, other.seed) == ("system", name, seed)
            if same and _same_run(other.config, config):
                self.of_system[name, seed, label] = other.id
                return
        job = self._add("system", name, seed, f"{name}-{seed}-{label}", values, start.id, label)
        self.of_system[name, seed, label] = job.id

    def _values(self, values: dict[str, Any], seed: int) -> dict[str, Any]:
        """A run file's values with the seed; the validation set is translated like a test set."""
        values = copy.deepcopy(values) | {"seed": seed}
        data = values["data"]
        if data.get("valid"):  # some tables of the paper are on it
            data["test"] = (data.get("test") or {}) | {"valid": data["valid"]}
        checkpoints = values.setdefault("checkpoints", {})
        checkpoints.setdefault("keep_last", 1)
        return values

    def _add(
        self,
        kind: str,
        task: str,
        seed: int,
        name: str,
        values: dict[str, Any],
        after: str | None = None,
        system: str | None = None,
    ) -> Job:
        if name in self.jobs and kind != "corpus":
            raise UserError(f"{name}: two jobs have this name; give a task or a system another one.")
        if name not in self.jobs:
            folder = self.jobs_folder / name
            config = completed(check(RunConfig, values | {"output": str(folder / "run")}, name))
            self.jobs[name] = Job(name, kind, task, seed, folder, config, after, system)
        return self.jobs[name]

    def results(self) -> list[dict[str, Any]]:
        """Of all jobs that are done, in the plan's order."""
        return [result for job in self.jobs.values() if (result := job.result()) is not None]

    def wanted(self, shard: tuple[int, int] = (0, 1)) -> list[Job]:
        """What is to be done: this shard's share of the systems and analyses, with all that comes before them."""
        ends = [job for job in self.jobs.values() if job.kind not in ("corpus", "start")]
        number, count = shard
        mine = ends[len(ends) * number // count : len(ends) * (number + 1) // count]
        wanted: set[str] = set()
        for end in mine:
            job = None if end.done() else end
            while job is not None:
                wanted.add(job.id)
                before = None if job.run.config_file.exists() else self.jobs.get(job.after)
                job = before if before and not before.ready() else None
        return [job for job in self.jobs.values() if job.id in wanted]


def _run_values(task: Task) -> dict[str, Any]:
    """What a task's run file says, with the task's settings."""
    return with_overrides(read_mapping(task.run, "run file") | {"output": "-"}, task.settings)


def _same_run(one: RunConfig, other: RunConfig) -> bool:
    """Whether two systems come to the same run: a default that is spelt out makes no difference."""

    def comparable(config: RunConfig) -> tuple[dict[str, Any], Any]:
        settings = config.plain() | {"output": None}
        choice = settings["stages"][-1].pop("objective")
        return settings, build(choice, "objective")

    return comparable(one) == comparable(other)


def _check_report(experiment: Experiment, task: str, config: RunConfig) -> None:
    """Refuse a report that the task's test sets cannot give."""
    where = f"tasks.{task}"
    if config.data.valid and "valid" in config.data.test:
        raise UserError(f"{where}.run: data.test.valid: the validation set has this name here; choose another one.")
    known = [*config.data.test, *(["valid"] if config.data.valid else [])]
    for name in experiment.report.sets:
        if name not in [*known, "*"]:
            raise UserError(f"report.sets: {where} has no test set '{name}'{nearest(name, known)}.")
    if experiment.systems and "*" in experiment.report.sets and not config.data.test:
        raise UserError(f"{where}.run: there is no data.test to report on: give one, or say report.sets: [valid].")
    if experiment.metric(task) == "multi-bleu":
        key = f"{where}.metric" if experiment.tasks[task].metric else "report.metric"
        if unspaced(config.data.target):
            raise UserError(
                f"{key}: multi-bleu counts words between spaces, which {where} ({config.data.target}) has not; "
                "use bleu or chrf."
            )
        check_language(config.data.target, f"{key}: multi-bleu")


def _check_preset(experiment: Experiment, task: str) -> None:
    preset = experiment.tasks[task].preset
    objectives = [
        find(system.objective["name"], f"systems.{n}.objective") for n, system in experiment.systems.items()
    ]
    known = {*LANGUAGE_PAIRS, *(name for objective in objectives for name in objective.presets)}
    if preset is not None and preset not in known:
        raise UserError(f"tasks.{task}.preset: unknown preset '{preset}'{nearest(preset, known)}.")


def without_infinities(value: Any) -> Any:
    """The same, with infinite numbers as text: JSON has none."""
    if isinstance(value, dict):
        return {key: without_infinities(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(one) for one in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value
