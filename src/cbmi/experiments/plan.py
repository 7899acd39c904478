"""The jobs that an experiment comes to, checked before the first of them begins.

experiment/jobs/TASK-corpus         vocabulary and encoded corpus, once per task
experiment/jobs/TASK-SEED-start     the stages that all systems share, once per task and seed
experiment/jobs/TASK-SEED-SYSTEM    a copy of that (by hard links), and the system's own last stage
experiment/jobs/TASK-SEED-ANALYSIS  a look at the run of the shared stages
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbmi.config import RunSettings
from cbmi.errors import UserError
from cbmi.evaluation.metrics import unspaced
from cbmi.evaluation.multi_bleu import check_language
from cbmi.experiments.jobs import Job
from cbmi.experiments.records import JobKind, JobResult
from cbmi.experiments.settings import (
    EVERY_TEST_SET,
    VALIDATION_SET,
    ExperimentSettings,
    SystemSettings,
    TaskSettings,
)
from cbmi.objectives import Objective, build
from cbmi.objectives.registry import LANGUAGE_PAIRS, find
from cbmi.overrides import nearest, read_mapping, with_overrides
from cbmi.schema import check
from cbmi.training.checks import check_files, check_stages, check_texts, complete_settings
from cbmi.training.fitting import as_begun, fit_to_corpus, with_choices
from cbmi.training.run import RunDirectory


class Plan:
    """The jobs of an experiment by id. Systems with the very same settings share a job.

    They are in the order of the seeds: what is stopped early has compared whole seeds, and shards
    can be whole seeds.
    """

    def __init__(self, experiment: ExperimentSettings) -> None:
        self.experiment = experiment
        self.folder = Path(experiment.output)
        self.jobs_folder = Path(experiment.jobs) if experiment.jobs else self.folder / "jobs"
        self.jobs: dict[str, Job] = {}
        self.of_system: dict[tuple[str, int, str], str] = {}  # (task, seed, system) → job
        for name, task in experiment.tasks.items():
            self._check_task(name, task)
        for seed in experiment.seeds:
            for name, task in experiment.tasks.items():
                self._plan_seed(name, task, seed)
        for job in self.jobs.values():
            job.check_begun()

    def _check_task(self, name: str, task: TaskSettings) -> None:
        config = check(RunSettings, _run_values(task), task.run)
        if self.experiment.systems and len(config.stages) < 2:
            raise UserError(
                f"tasks.{name}.run: {task.run} has one stage; an experiment needs two: what all "
                "systems share, and the last, whose objective each system replaces."
            )
        check_files(config)
        check_texts(config)
        _check_report(self.experiment, name, config)
        _check_preset(self.experiment, name)

    def _plan_seed(self, name: str, task: TaskSettings, seed: int) -> None:
        start_name = f"{name}-{seed}-start"
        whole = self._with_choices(task, self.jobs_folder / start_name / "run")
        whole = _with_seed(whole, seed)
        shared = copy.deepcopy(whole)
        # All stages except the last; an experiment without systems may have a single stage.
        shared["stages"] = shared["stages"][:-1] or shared["stages"]
        corpus = self._add_corpus(name, seed, shared)
        start = self._add(start_name, JobKind.START, name, seed, shared, after=corpus.id)
        corpus.check_corpus()
        check_stages(start.config)
        for label, system in self.experiment.expanded().items():
            self._plan_system(task, label, system, start, copy.deepcopy(whole))
        for analysis in self.experiment.analyses:
            _check_analysis(analysis, start)
            self._add(
                f"{name}-{seed}-{analysis}",
                JobKind(analysis),
                name,
                seed,
                shared,
                after=start.id,
            )

    def _with_choices(self, task: TaskSettings, start: Path) -> dict[str, Any]:
        """A run file's values, with what it leaves out chosen once for all jobs of a seed.

        Jobs have some of the stages each, and begin at different times: each by itself might choose
        otherwise. `start`: the run of the shared stages, whose choices count once it has them.
        """
        values = _run_values(task)
        config = check(RunSettings, values, task.run)
        run = RunDirectory(start)
        if run.config_file.exists():
            return with_choices(values, config, as_begun(config, run.known_config()))
        if self.experiment.systems:
            config = _with_shortest_end(config, list(self.experiment.expanded().values()))
        return with_choices(values, config, fit_to_corpus(config).config)

    def _plan_system(
        self,
        task: TaskSettings,
        label: str,
        system: SystemSettings,
        start: Job,
        values: dict[str, Any],
    ) -> None:
        where = f"systems.{label}"
        objective = dict(system.objective)
        if task.preset:
            objective = {"preset": task.preset} | objective
        build(objective, f"{where}.objective")  # its mistakes are the system's, not the run file's
        last = values["stages"][-1]
        last["objective"] = objective
        last["language_model"] = system.language_model or _language_model(objective, last)
        for key in ("steps", "restart_optimizer", "groups"):
            value = getattr(system, key)
            if value is not None:
                last[key] = value
        config = complete_settings(check(RunSettings, values, f"{where} with {task.run}"))
        try:
            check_stages(config)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        job = self._job_of_same_run(start, config)
        if job is None:
            name = f"{start.task}-{start.seed}-{label}"
            job = self._add(name, JobKind.SYSTEM, start.task, start.seed, values, start.id, label)
        self.of_system[start.task, start.seed, label] = job.id

    def _job_of_same_run(self, start: Job, config: RunSettings) -> Job | None:
        """The job of another system that comes to the same run."""
        for job in self.jobs.values():
            beside = job.task == start.task and job.seed == start.seed
            if job.kind is JobKind.SYSTEM and beside and _same_run(job.config, config):
                return job
        return None

    def _add_corpus(self, task: str, seed: int, values: dict[str, Any]) -> Job:
        """The job of the first seed serves all."""
        name = f"{task}-corpus"
        if name in self.jobs:
            return self.jobs[name]
        return self._add(name, JobKind.CORPUS, task, seed, values)

    def _add(
        self,
        name: str,
        kind: JobKind,
        task: str,
        seed: int,
        values: dict[str, Any],
        after: str | None = None,
        system: str | None = None,
    ) -> Job:
        if name in self.jobs:
            raise UserError(
                f"{name}: two jobs have this name; give a task or a system another one."
            )
        folder = self.jobs_folder / name
        values = values | {"output": str(folder / "run")}
        config = complete_settings(check(RunSettings, values, name))
        self.jobs[name] = Job(name, kind, task, seed, folder, config, after, system)
        return self.jobs[name]

    def results(self) -> list[JobResult]:
        """What the jobs that are done have given, in the plan's order."""
        results = [job.result() for job in self.jobs.values()]
        return [result for result in results if result is not None]

    def systems_of_seed(self, job: Job) -> list[JobResult]:
        """Results of the systems that continue from the same shared stages as a job."""
        beside = [one for one in self.jobs.values() if (one.task, one.seed) == (job.task, job.seed)]
        results = [one.result() for one in beside if one.kind is JobKind.SYSTEM]
        return [result for result in results if result is not None]

    def check_shared_weights(self) -> None:
        """Refuse results of systems that continue from different weights with the same seed."""
        first: dict[tuple[str, int], JobResult] = {}
        for result in self.results():
            if result.kind is JobKind.SYSTEM and result.shared_weights is not None:
                other = first.setdefault((result.task, result.seed), result)
                if other.shared_weights != result.shared_weights:
                    raise UserError(
                        f"{self.jobs_folder}: {other.job} and {result.job} continue from different "
                        "weights, so they cannot be compared: delete one of the folders and train "
                        "it again."
                    )

    def wanted(self, shard: tuple[int, int] = (0, 1), only: Sequence[str] = ()) -> list[Job]:
        """What is to be done of a shard: its systems and analyses, and all that comes before.

        only: names of jobs to do instead.
        """
        ends = [
            job for job in self.jobs.values() if job.kind not in (JobKind.CORPUS, JobKind.START)
        ]
        number, count = shard
        first = len(ends) * number // count
        beyond = len(ends) * (number + 1) // count
        chosen = [self._named(name) for name in only] or ends[first:beyond]
        wanted: set[str] = set()
        for end in chosen:
            is_done = end.ready() if end.kind is JobKind.START else end.done()
            job = None if is_done else end
            while job is not None:
                job.check_model()
                wanted.add(job.id)
                job = self._needed_first(job)
        return [job for job in self.jobs.values() if job.id in wanted]

    def _named(self, name: str) -> Job:
        job = self.jobs.get(name)
        if job is None:
            raise UserError(f"--only: there is no job '{name}'{nearest(name, self.jobs)}.")
        return job

    def _needed_first(self, job: Job) -> Job | None:
        """The job that has to be done before this one can begin."""
        if job.after is None or job.run.config_file.exists():  # it has begun with a copy of it
            return None
        before = self.jobs[job.after]
        return None if before.ready() else before


def _language_model(objective: dict[str, Any], stage: dict[str, Any]) -> str | None:
    """What the run file's last stage says of the language model, where it suits the objective.

    None: what training chooses by itself.
    """
    built = build(objective, "objective")
    needs = built.needs()
    choice = stage.get("language_model")
    if "lm" not in needs or choice not in ("frozen", "cached", "joint"):
        return None
    needs_distributions = built.fusion is not None or "distribution" in needs
    if choice == "cached" and (needs_distributions or "lm-dropout" in needs):
        return None
    if choice == "joint" and built.fusion is not None:
        return None
    return str(choice)


def _run_values(task: TaskSettings) -> dict[str, Any]:
    """What a task's run file says, with the task's settings."""
    values = read_mapping(task.run, "run file")
    values["output"] = "-"  # every job has its own
    return with_overrides(values, task.settings)


def _with_shortest_end(config: RunSettings, systems: Sequence[SystemSettings]) -> RunSettings:
    """With the last stage of the system that has the least time for a schedule."""
    last = config.stages[-1]
    lengths = []
    restarting = []
    for system in systems:
        steps = system.steps or last.steps
        lengths.append(steps)
        restarts = system.restart_optimizer
        if last.restart_optimizer if restarts is None else restarts:
            restarting.append(steps)
    changes = {"steps": min(restarting or lengths), "restart_optimizer": bool(restarting)}
    stages = (*config.stages[:-1], last.model_copy(update=changes))
    return config.model_copy(update={"stages": stages})


def _with_seed(values: dict[str, Any], seed: int) -> dict[str, Any]:
    """A run file's values with the seed; the validation set is translated like a test set."""
    values = copy.deepcopy(values)
    values["seed"] = seed
    data = values["data"]
    if data.get("valid"):  # some tables of the paper are on it
        data["test"] = (data.get("test") or {}) | {VALIDATION_SET: data["valid"]}
    values.setdefault("checkpoints", {}).setdefault("keep_last", 1)
    return values


def _same_run(one: RunSettings, other: RunSettings) -> bool:
    """Whether two systems come to the same run: a default that is spelt out does not matter."""
    return _comparable(one) == _comparable(other)


def _comparable(config: RunSettings) -> tuple[dict[str, Any], Objective]:
    settings = config.plain()
    settings["output"] = None
    choice = settings["stages"][-1].pop("objective")
    return settings, build(choice, "objective")


def _check_report(experiment: ExperimentSettings, task: str, config: RunSettings) -> None:
    """Refuse a report that the task's test sets cannot give."""
    where = f"tasks.{task}"
    known = list(config.data.test)
    if config.data.valid:
        if VALIDATION_SET in config.data.test:
            raise UserError(
                f"{where}.run: data.test.{VALIDATION_SET}: the validation set has this name here; "
                "choose another one."
            )
        known.append(VALIDATION_SET)
    for key in ("sets", "other_domains"):
        for name in getattr(experiment.report, key):
            if name != EVERY_TEST_SET and name not in known:
                raise UserError(
                    f"report.{key}: {where} has no test set '{name}'{nearest(name, known)}."
                )
    every = EVERY_TEST_SET in experiment.report.sets
    if experiment.systems and every and not config.data.test:
        raise UserError(
            f"{where}.run: there is no data.test to report on: give one, or say "
            f"report.sets: [{VALIDATION_SET}]."
        )
    if "multi-bleu" in experiment.metrics(task):
        key = f"{where}.metric" if experiment.tasks[task].metric else "report.metric"
        if unspaced(config.data.target):
            raise UserError(
                f"{key}: multi-bleu counts words between spaces, which {where} "
                f"({config.data.target}) does not have; use bleu or chrf."
            )
        check_language(config.data.target, f"{key}: multi-bleu")


def _check_preset(experiment: ExperimentSettings, task: str) -> None:
    """Refuse a preset that neither a language pair nor an objective has."""
    known = set(LANGUAGE_PAIRS)
    for name, system in experiment.systems.items():
        objective = find(system.objective["name"], f"systems.{name}.objective")
        known.update(objective.presets)
    preset = experiment.tasks[task].preset
    if preset is not None and preset not in known:
        raise UserError(f"tasks.{task}.preset: unknown preset '{preset}'{nearest(preset, known)}.")


def _check_analysis(analysis: str, start: Job) -> None:
    """Refuse an analysis of a run that lacks what it looks at."""
    where = f"tasks.{start.task}"
    choices = [stage.language_model for stage in start.config.stages]
    if "train" not in choices and "joint" not in choices:
        raise UserError(
            f"analyses: {analysis} needs a language model, which {where} does not train first."
        )
    if not start.config.data.valid:
        raise UserError(f"analyses: {analysis} looks at data.valid, which {where} does not have.")
