"""What an experiment is to test, written down with a hash before its first job runs.

A report shows the registration and marks whatever goes beyond it as exploratory. So a reader can
tell what was predicted from what was found on the way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbmi.changes import changes_between, describe_changes
from cbmi.errors import UserError
from cbmi.evaluation.paired_t import FEWEST_SEEDS
from cbmi.experiments.contrasts import WORDS_RECALL, parse_contrast
from cbmi.experiments.jobs import INITIALIZE, OF_DATA, Job, without_infinities
from cbmi.experiments.plan import Plan
from cbmi.experiments.records import DAY, JobKind, JobResult, moment_now
from cbmi.experiments.settings import METRIC_NAMES, ExperimentSettings
from cbmi.files import write_atomically
from cbmi.objectives import build
from cbmi.overrides import read_mapping
from cbmi.progress import say
from cbmi.training.revision import FREE_TO_CHANGE
from cbmi.yaml_text import dump_yaml

TESTS = (
    "Each system is compared with those it is tested against by a two-sided paired t-test over the "
    "seeds, corrected for the number of systems by Holm's method, and by a paired bootstrap over "
    "the sentences. A difference counts where both p-values are below 0.05. Contrasts are tested "
    "by a two-sided t-test over the seeds, corrected for their number by Holm's method."
)
STOPPING = (
    "Every system is trained with every seed, to the end of its stages. No seed, system or step is "
    "added or left out in view of a score; what is added later is exploratory."
)
# Settings of a run that say where it runs and where its files lie, not what it computes.
OF_THE_MACHINE = (*FREE_TO_CHANGE, "data.train", "data.valid", "data.test", "seed", "initialize")
KNOWN_BEFORE = "first stages that had begun before"
MAIN_OUTCOMES = "main outcomes"
CONTRASTS = "contrasts"
OTHER_DOMAINS = "other domains"
RESAMPLES = "resamples"
FILES = "files"  # digests of what is read
EXPLORATORY = " (exploratory)"  # of what was not registered
CHANGES_SHOWN = 3


@dataclass(frozen=True)
class Registration:
    """The hypotheses, with their hash and the moment when they were written down."""

    date: str  # such as 2026-11-16T09:30:00Z; of older versions, the day alone
    digest: str  # of the hypotheses
    hypotheses: Mapping[str, Any]

    def has_task(self, task: str) -> bool:
        return task in self.hypotheses["tasks"]

    def has_system(self, task: str, system: str) -> bool:
        return system in self.hypotheses["tasks"].get(task, {}).get("systems", {})

    def systems(self, task: str) -> int:
        """How many a task has."""
        return len(self.hypotheses["tasks"].get(task, {}).get("systems", {}))

    def has_set(self, task: str, test_set: str) -> bool:
        return test_set in self.hypotheses["tasks"].get(task, {}).get("sets", {})

    def has_metric(self, task: str, metric: str) -> bool:
        return metric in self.hypotheses["tasks"].get(task, {}).get("metrics", ())

    def has_seed(self, seed: int) -> bool:
        return seed in self.hypotheses["seeds"]

    def covers(self, task: str, system: str, test_set: str, metric: str) -> bool:
        """Whether a system's score was registered."""
        return (
            self.has_system(task, system)
            and self.has_set(task, test_set)
            and self.has_metric(task, metric)
        )

    def seeds(self) -> list[int]:
        return list(self.hypotheses["seeds"])

    def compared(self) -> Iterator[tuple[str, str]]:
        """Task and system of every comparison."""
        for name, task in self.hypotheses["tasks"].items():
            for system in task["systems"]:
                yield name, system

    def undone(self, results: Sequence[JobResult]) -> int:
        """How many of the runs are not among the results."""
        there = {(result.task, result.seed, result.system) for result in results}
        return sum(run not in there for run in self.runs())

    def runs(self) -> Iterator[tuple[str, int, str]]:
        """Task, seed and system of every run."""
        for task, system in self.compared():
            for seed in self.seeds():
                yield task, seed, system

    def outcomes(self) -> Iterator[tuple[str, str, str]]:
        """Task, test set and metric of every score."""
        for name, task in self.hypotheses["tasks"].items():
            for test_set in task["sets"]:
                for metric in task["metrics"]:
                    yield name, test_set, metric

    def known_before(self) -> list[str]:
        """Shared first stages that had begun when this was written."""
        return list(self.hypotheses.get(KNOWN_BEFORE, ()))

    def main_outcomes(self) -> Mapping[str, str]:
        """By task."""
        named: Mapping[str, str] | None = self.hypotheses.get(MAIN_OUTCOMES)
        # Older registrations do not name them.
        return _main_outcomes(self.hypotheses["tasks"]) if named is None else named

    def primary(self) -> list[str]:
        """The main outcome of each task."""
        return [f"{outcome} ({task})" for task, outcome in self.main_outcomes().items()]

    def contrasts(self) -> Mapping[str, Any]:
        """What each contrast is of, and by what it is tested."""
        found: Mapping[str, Any] = self.hypotheses.get(CONTRASTS, {})
        return found

    def covers_contrast(
        self, name: str, test_set: str, measure: str, seeds: Sequence[int], words: Sequence[str]
    ) -> bool:
        """Whether a contrast over these seeds was registered; `words`: of `words_recall`."""
        known = self.contrasts().get(name)
        if known is None or sorted(seeds) != sorted(self.seeds()):
            return False
        if measure == WORDS_RECALL and not self.has_words(words):
            return False
        return test_set in known["sets"] and measure in known["measures"]

    def has_other_domain(self, test_set: str) -> bool:
        """Whether what is measured on a test set of another domain was registered."""
        return test_set in self.other_domains()

    def other_domains(self) -> list[str]:
        """Test sets of other domains."""
        return list(self.hypotheses.get(OTHER_DOMAINS, {}).get("sets", ()))

    def has_words(self, words: Sequence[str]) -> bool:
        """Whether the recall of these words was."""
        return list(words) == self.hypotheses.get(OTHER_DOMAINS, {}).get("words", [])

    def begun_before(self, results: Sequence[JobResult]) -> list[str]:
        """Jobs that had begun before the registration, and it conceals."""
        found: dict[str, None] = {}  # each once
        for result in results:
            moment = result.begun or result.finished
            is_earlier = moment is not None and _is_before(moment, self.date)
            is_system = result.system is not None and self.has_system(result.task, result.system)
            is_start = result.kind is JobKind.START and self.has_task(result.task)
            if is_earlier and (is_system or is_start) and result.job not in self.known_before():
                found[result.job] = None
        return list(found)

    def came_first(self, results: Sequence[JobResult]) -> bool:
        """Whether the moments that results hold show that no system had begun before."""
        own = [one for one in results if one.system and self.has_system(one.task, one.system)]
        moments = [one.begun or "" for one in own]
        return len(self.date) > DAY and all(self.date <= moment for moment in moments)

    def to_yaml(self) -> str:
        return dump_yaml(
            {"registered": self.date, "sha256": self.digest, "hypotheses": dict(self.hypotheses)}
        )


def registration_file(plan: Plan) -> Path:
    return plan.folder / "registration.yaml"


def register(plan: Plan) -> Registration:
    """Write the registration, or check that the experiment still holds to the one there is."""
    known = read_registration(plan)
    if known is not None:
        return known
    if not plan.experiment.systems:
        raise UserError("register: there is no system to be compared; set register: false.")
    systems = [job for job in plan.jobs.values() if job.kind is JobKind.SYSTEM]
    begun = [job.id for job in systems if job.has_begun()]
    if begun:
        raise UserError(
            f"register: {begun[0]} has begun already, and a registration comes before the first "
            "system is trained: bring its registration.yaml back, choose another output=… and "
            "jobs=…, or set register: false."
        )
    if len(plan.experiment.seeds) < FEWEST_SEEDS:
        say(f"register: with fewer than {FEWEST_SEEDS} seeds, no difference can count.")
    hypotheses = _hypotheses(plan)
    starts = [job for job in plan.jobs.values() if job.kind is JobKind.START]
    known_before = [job.id for job in starts if job.has_begun()]
    if known_before:
        hypotheses[KNOWN_BEFORE] = known_before
    registration = Registration(moment_now(), _digest(hypotheses), hypotheses)
    write_atomically(registration_file(plan), registration.to_yaml())
    return registration


def read_registration(plan: Plan) -> Registration | None:
    """The registration, if there is one, once it is sure that what it names is unchanged."""
    path = registration_file(plan)
    if not path.exists():
        return None
    values = read_mapping(path, "registration")
    try:
        registration = Registration(
            str(values["registered"]), str(values["sha256"]), dict(values["hypotheses"])
        )
        _check_unchanged(plan, registration, path)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path}: this is not a registration.") from None
    return registration


def _check_unchanged(plan: Plan, registration: Registration, path: Path) -> None:
    if _digest(registration.hypotheses) != registration.digest:
        raise UserError(
            f"{path} was changed after it was written: its hypotheses do not have its hash."
        )
    now = _hypotheses(plan)
    changes = []
    outcomes = registration.main_outcomes()
    for key in ("baseline", "tested_against"):
        changes += changes_between(registration.hypotheses[key], now[key], f"report.{key}")
    if RESAMPLES in registration.hypotheses:
        known = registration.hypotheses[RESAMPLES]
        changes += changes_between(known, now[RESAMPLES], f"report.{RESAMPLES}")
    for name, contrast in registration.contrasts().items():
        if name in now[CONTRASTS]:
            where = f"report.contrasts.{name}"
            changes += changes_between(contrast["of"], now[CONTRASTS][name]["of"], where)
    for task, registered in registration.hypotheses["tasks"].items():
        current = now["tasks"].get(task)
        if current is None:
            continue  # the report says that it is missing
        _leave_out_unknown(registered["run"][FILES], current["run"][FILES])
        changes += changes_between(registered["run"], current["run"], f"tasks.{task}")
        where = f"tasks.{task}.main outcome"
        changes += changes_between(outcomes[task], now[MAIN_OUTCOMES][task], where)
        for part in ("sets", "systems"):
            for name, settings in registered[part].items():
                if name in current[part]:
                    if part == "systems":
                        _leave_out_unknown(settings, current[part][name], FILES)
                    where = f"tasks.{task}.{part}.{name}"
                    changes += changes_between(settings, current[part][name], where)
    if changes:
        raise UserError(
            f"{path}: this was registered otherwise "
            f"({describe_changes(changes, CHANGES_SHOWN)}): bring it back, or give another name to "
            "what has changed."
        )


def _leave_out_unknown(registered: Mapping[str, Any], current: dict[str, Any], *keys: str) -> None:
    """Drop what older registrations do not have; without keys, all of that."""
    for key in keys or tuple(current):
        if key not in registered:
            current.pop(key, None)


def _main_outcomes(tasks: Mapping[str, Any]) -> dict[str, str]:
    """Of each task, its first metric on its first test set."""
    outcomes = {}
    for name, task in tasks.items():
        outcomes[name] = f"{METRIC_NAMES[task['metrics'][0]]} on {next(iter(task['sets']))}"
    return outcomes


def _hypotheses(plan: Plan) -> dict[str, Any]:
    experiment = plan.experiment
    tasks: dict[str, Any] = {}
    for name in experiment.tasks:
        jobs = [job for job in plan.jobs.values() if job.task == name]
        start = next(job for job in jobs if job.kind is JobKind.START)
        files = start.file_digests
        run = _computed(start)
        run[FILES] = {role: files[role] for role in (*OF_DATA, INITIALIZE) if role in files}
        systems = {}
        for system in experiment.expanded():
            job = plan.jobs[plan.of_system[name, experiment.seeds[0], system]]
            stage = job.config.stages[-1]
            objective = build(stage.objective, system).model_dump(mode="json")
            systems[system] = stage.model_dump(mode="json") | {
                "objective": {"name": stage.objective["name"], **objective}
            }
            read = job.file_digests.get(f"stages.{stage.name}.objective")
            if read is not None:
                systems[system][FILES] = read
        test_sets = experiment.reported(start.config.data.test)
        tasks[name] = {
            "run": run,
            "systems": systems,
            "sets": {test_set: files[f"test {test_set}"] for test_set in test_sets},
            "metrics": list(experiment.metrics(name)),
        }
    return without_infinities(
        {
            "title": experiment.title,
            "tasks": tasks,
            # Beside the order of metrics and sets, which the hash does not see.
            MAIN_OUTCOMES: _main_outcomes(tasks),
            "seeds": list(experiment.seeds),
            "baseline": experiment.baseline,
            "tested_against": experiment.tested_against(),
            RESAMPLES: experiment.report.resamples,
            CONTRASTS: _contrasts(experiment, tasks),
            OTHER_DOMAINS: {
                "sets": list(experiment.report.other_domains),
                "words": list(experiment.report.words),
            },
            "tests": TESTS,
            "stopping": STOPPING,
        }
    )


def _contrasts(experiment: ExperimentSettings, tasks: Mapping[str, Any]) -> dict[str, Any]:
    """By name: what each is of, and on which sets and by which measures it is tested."""
    found = {}
    for name, text in experiment.report.contrasts.items():
        named = {term.task for term in parse_contrast(text, list(experiment.tasks))}
        first, *others = [tasks[task] for task in experiment.tasks if task in named]
        shared = {}
        for key in ("sets", "metrics"):
            shared[key] = [one for one in first[key] if all(one in other[key] for other in others)]
        measures = [*shared["metrics"], *experiment.report.measures]
        found[name] = {"of": " ".join(text.split()), "sets": shared["sets"], "measures": measures}
    return found


def _is_before(one: str, other: str) -> bool:
    """Of two moments; where one is a day alone, whether it is an earlier day."""
    length = min(len(one), len(other))
    return one[:length] < other[:length]


def _computed(job: Job) -> dict[str, Any]:
    """The settings of a run that its results depend on."""
    settings = job.config.plain()
    for key in OF_THE_MACHINE:
        group = settings
        *parents, last = key.split(".")
        for parent in parents:
            group = group[parent]
        group.pop(last, None)
    return settings


def _digest(hypotheses: Mapping[str, Any]) -> str:
    text = json.dumps(hypotheses, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
