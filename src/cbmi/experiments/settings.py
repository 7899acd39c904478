"""What an experiment file says: tasks × systems × seeds, and what to report of them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cbmi.config import Count, Flag, Name, Positive, Settings, check, nearest, read_mapping, with_overrides
from cbmi.errors import UserError

Metric = Literal["bleu", "chrf", "ter", "multi-bleu"]


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return value


Number = Annotated[int | float, BeforeValidator(_number)]


class Task(Settings):
    """A run file; its stages but the last are trained once a seed, the last is every system's own."""

    run: str  # looked for from the working folder, then from the experiment file's
    label: str | None = None  # the table's column
    block: str | None = None  # the table's group of rows, such as the size of the model
    preset: str | None = None  # of the objectives' settings, such as wmt14-en-de
    metric: Metric | None = None  # None: the report's
    settings: tuple[str, ...] = ()  # key=value, as on the command line

    @field_validator("settings")
    @classmethod
    def _not_the_experiments(cls, settings: tuple[str, ...]) -> tuple[str, ...]:
        for setting in settings:
            if setting.partition("=")[0] in ("seed", "output", "device"):
                raise ValueError(f"'{setting}' is the experiment's own to say (seeds, output, --devices)")
        return settings


class System(Settings):
    """What takes the place of the last stage's objective."""

    objective: dict[str, Any]
    label: str | None = None
    language_model: Literal["joint", "frozen", "cached", "off"] | None = None  # None: frozen where it is needed
    steps: Positive | None = None  # of the last stage; None: the run file's
    restart_optimizer: Flag | None = None  # likewise
    # One setting of the objective and its values: a system each.
    vary: dict[str, Annotated[tuple[Number, ...], Field(min_length=1)]] = Field(default_factory=dict)

    @field_validator("objective", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("language_model", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value

    @model_validator(mode="after")
    def _complete(self) -> System:
        if not isinstance(self.objective.get("name"), str):
            raise ValueError("objective: should be an objective's name, or a mapping with 'name' and its settings")
        if len(self.vary) > 1:
            raise ValueError("vary: should name one setting of the objective and its values")
        return self


class Report(Settings):
    metric: Metric = "bleu"
    sets: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)  # test sets; "*": all of data.test; or valid
    baseline: str | None = None  # whose score the differences are to; None: the first system
    # Systems that the others are tested against; none: the baseline.
    significance: Annotated[tuple[str, ...], Field(max_length=4)] = ()
    costs: Flag = False  # a table of parameters, time and disk
    resamples: Annotated[int, Field(ge=100, strict=True)] = 1000  # of the paired bootstrap


class Experiment(Settings):
    title: str
    output: str
    jobs: str | None = None  # where jobs lie that several experiments share; None: in the output's own folder
    tasks: Annotated[dict[Name, Task], Field(min_length=1)]
    systems: dict[Name, System] = Field(default_factory=dict)
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)
    analyses: tuple[Literal["prior-accuracy"], ...] = ()  # of the first stages' runs
    report: Report = Report()
    # By task and system, the BLEU that others have published; it stands beside what was measured on the first set.
    published: dict[str, dict[str, str | Number]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_are_known(self) -> Experiment:
        if not self.systems and not self.analyses:
            raise ValueError("systems: there is none, and no analysis either")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: the same seed is given twice")
        names = [name for system, one in self.systems.items() for name in _names(system, one)]
        columns = [(self.title_of(name), task.block) for name, task in self.tasks.items()]
        labels = [self.label(name) for name in self.expanded()]
        against = list(self.report.significance)
        for what, several in (
            ("systems: two are named", names),
            ("systems: two are labelled", labels),
            ("tasks: two columns are named", columns),
            ("report.significance: this is given twice:", against),
        ):
            for one in several:
                if several.count(one) > 1:
                    raise ValueError(f"{what} '{one[0] if isinstance(one, tuple) else one}'")
        places = [("report.baseline", [self.report.baseline] if self.report.baseline else [])]
        places += [("report.significance", self.report.significance)]
        places += [(f"published.{task}", systems) for task, systems in self.published.items()]
        for where, names in places:
            for name in names:
                if name not in self.expanded():
                    raise ValueError(f"{where}: unknown system '{name}'{nearest(name, self.expanded())}")
        for task in self.published:
            if task not in self.tasks:
                raise ValueError(f"published: unknown task '{task}'{nearest(task, self.tasks)}")
        return self

    def expanded(self) -> dict[str, System]:
        """The systems, one for each value of a setting that varies."""
        result = {}
        for name, system in self.systems.items():
            if not system.vary:
                result[name] = system
            for setting, values in system.vary.items():
                for value, full in zip(values, _names(name, system), strict=True):
                    objective = system.objective | {setting: value}
                    label = f"{system.label or name}, {setting} {value}"
                    result[full] = system.model_copy(update={"objective": objective, "label": label, "vary": {}})
        return result

    @property
    def baseline(self) -> str | None:
        return self.report.baseline or next(iter(self.expanded()), None)

    def metric(self, task: str) -> str:
        return self.tasks[task].metric or self.report.metric

    def reported(self, scores: Collection[str]) -> list[str]:
        """Which of the test sets that a run has scores for are reported."""
        tests = [name for name in scores if name != "valid"]
        wanted = [name for one in self.report.sets for name in (tests if one == "*" else [one])]
        return list(dict.fromkeys(name for name in wanted if name in scores))

    def title_of(self, task: str) -> str:
        return self.tasks[task].label or task

    def label(self, system: str) -> str:
        return self.expanded()[system].label or system


def _names(name: str, system: System) -> list[str]:
    """Those of the systems that one becomes where it varies a setting."""
    values = [value for values in system.vary.values() for value in values]
    return [f"{name}={value}" for value in values] if system.vary else [name]


def read_experiment(path: Path, overrides: list[str]) -> Experiment:
    """The experiment that a YAML file and `key=value` overrides describe; its run files are found."""
    values = read_mapping(path, "experiment file")
    if "stages" in values:
        raise UserError(
            f"{path}: this is a run file; a task of an experiment file names it, or say cbmi train {path}."
        )
    values = with_overrides(values, overrides)
    experiment = check(Experiment, values, str(path))
    tasks = {}
    for name, task in experiment.tasks.items():
        places = [Path(task.run), path.parent / task.run]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise UserError(f"{path}: tasks.{name}.run: there is no run file {task.run}.")
        tasks[name] = task.model_copy(update={"run": str(found)})
    return experiment.model_copy(update={"tasks": tasks})
