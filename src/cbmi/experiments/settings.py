"""What an experiment file says: tasks × systems × seeds, and what to report of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from cbmi.errors import UserError
from cbmi.experiments.contrasts import Measure, parse_contrast
from cbmi.overrides import nearest, read_mapping, with_overrides
from cbmi.schema import Flag, Name, NonNegativeInt, PositiveInt, Settings, check

MetricName = Literal["bleu", "chrf", "ter", "multi-bleu"]
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "multi-bleu": "multi-BLEU"}


def _one_or_several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _each_once(metrics: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(metrics)) < len(metrics):
        raise ValueError("a metric is given twice")
    return metrics


# One, or several in the order of their tables.
Metrics = Annotated[
    tuple[MetricName, ...],
    BeforeValidator(_one_or_several),
    AfterValidator(_each_once),
    Field(min_length=1),
]
EVERY_TEST_SET = "*"  # in report.sets
VALIDATION_SET = "valid"  # the name under which the validation set is translated and reported


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return value


Number = Annotated[int | float, BeforeValidator(_number)]


class TaskSettings(Settings):
    """A run file. All its stages except the last are trained once per seed, for all systems."""

    run: str  # the run file; looked for in the working folder, then in the experiment file's
    label: str | None = None  # the table's column
    block: str | None = None  # the table's group of rows, such as the size of the model
    preset: str | None = None  # of the objectives' settings, such as wmt14-en-de
    metric: Metrics | None = None  # None: the report's
    settings: tuple[str, ...] = ()  # key=value, as on the command line

    @field_validator("settings")
    @classmethod
    def _not_the_experiments(cls, settings: tuple[str, ...]) -> tuple[str, ...]:
        for setting in settings:
            if setting.partition("=")[0] in ("seed", "output", "device"):
                raise ValueError(f"'{setting}' cannot be set here; use seeds, output or --devices")
        return settings


class SystemSettings(Settings):
    """What takes the place of the last stage's objective."""

    objective: dict[str, Any]
    label: str | None = None
    # None: frozen if the objective needs one, else off.
    language_model: Literal["joint", "frozen", "cached", "off"] | None = None
    steps: PositiveInt | None = None  # of the last stage; None: the run file's
    restart_optimizer: Flag | None = None  # likewise
    groups: PositiveInt | None = None  # likewise; or what the objective compares
    # One setting of the objective and its values: one system per value.
    vary: dict[str, Annotated[tuple[Number, ...], Field(min_length=1)]] = Field(
        default_factory=dict
    )

    @field_validator("objective", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("language_model", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value

    @model_validator(mode="after")
    def _complete(self) -> SystemSettings:
        if not isinstance(self.objective.get("name"), str):
            raise ValueError(
                "objective: should be an objective's name, or a mapping with 'name' and its "
                "settings"
            )
        if len(self.vary) > 1:
            raise ValueError("vary: should name one setting of the objective and its values")
        return self


class ReportSettings(Settings):
    metric: Metrics = ("bleu",)
    # Test sets; "*": all of data.test; "valid": the validation set.
    sets: Annotated[tuple[str, ...], Field(min_length=1)] = (EVERY_TEST_SET,)
    baseline: str | None = None  # the differences are from its score; None: the first system
    # Systems that the others are tested against; none: the baseline.
    significance: Annotated[tuple[str, ...], Field(max_length=4)] = ()
    # Test sets of other domains than the training data: a table of their own, with what BLEU and
    # chrF do not show.
    other_domains: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # whose recall that table has, such as articles
    # By name: sums and differences of scores, seed by seed, such as `a/cbmi - a/ce`.
    contrasts: dict[str, str] = Field(default_factory=dict)
    measures: tuple[Measure, ...] = ()  # of other domains; contrasts are also computed by these
    costs: Flag = False  # a table of parameters, time and disk
    resamples: Annotated[int, Field(ge=100, strict=True)] = 1000  # of the paired bootstrap

    @model_validator(mode="after")
    def _measures_are_taken(self) -> ReportSettings:
        for key in ("words", "measures"):
            if getattr(self, key) and not self.other_domains:
                raise ValueError(
                    f"{key}: needs other_domains: the test sets that it is measured on"
                )
        if self.measures and not self.contrasts:
            raise ValueError("measures: they are for contrasts, of which there are none")
        if "words_recall" in self.measures and not self.words:
            raise ValueError("measures: words_recall needs words")
        return self


class ExperimentSettings(Settings):
    title: str
    output: str
    # Where the jobs of several experiments lie; None: in the output's own folder.
    jobs: str | None = None
    tasks: Annotated[dict[Name, TaskSettings], Field(min_length=1)]
    systems: dict[Name, SystemSettings] = Field(default_factory=dict)
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (1,)
    # Write down what is tested before the first job runs; what goes beyond it is exploratory.
    register_: Annotated[Flag, Field(alias="register")] = False
    analyses: tuple[Literal["prior-accuracy"], ...] = ()  # of the first stages' runs
    report: ReportSettings = ReportSettings()
    # By task and system: BLEU that others have published, shown beside what was measured on the
    # first test set.
    published: dict[str, dict[str, str | Number]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_are_known(self) -> ExperimentSettings:
        if not self.systems and not self.analyses:
            raise ValueError("give at least one system or analysis")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: the same seed is given twice")
        self._check_unique()
        if self.report.baseline:
            self._check_systems("report.baseline", [self.report.baseline])
        self._check_systems("report.significance", self.report.significance)
        self._check_contrasts()
        for task, systems in self.published.items():
            self._check_systems(f"published.{task}", systems)
        for task in self.published:
            if task not in self.tasks:
                raise ValueError(f"published: unknown task '{task}'{nearest(task, self.tasks)}")
        return self

    def _check_unique(self) -> None:
        """Refuse two things of one name where the name is all that tells them apart."""
        names: list[str] = []
        for name, system in self.systems.items():
            names += _expanded_names(name, system)
        _check_repeated("systems: two are named", names, names)
        labels = [self.label(name) for name in self.expanded()]
        _check_repeated("systems: two are labelled", labels, labels)
        # Tasks of several blocks may share a column.
        titles = [self.title_of(name) for name in self.tasks]
        columns = [(self.title_of(name), task.block) for name, task in self.tasks.items()]
        _check_repeated("tasks: two columns are named", columns, titles)
        tested = self.report.significance
        _check_repeated("report.significance: this is given twice:", tested, tested)

    def _check_contrasts(self) -> None:
        for name, text in self.report.contrasts.items():
            where = f"report.contrasts.{name}"
            try:
                terms = parse_contrast(text, list(self.tasks))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            self._check_systems(where, [term.system for term in terms])
            for term in terms:
                if term.task not in self.tasks:
                    task = f"'{term.task}'{nearest(term.task, self.tasks)}"
                    raise ValueError(f"{where}: unknown task {task}")

    def _check_systems(self, where: str, names: Iterable[str]) -> None:
        """Refuse names of systems that the experiment does not have."""
        known = self.expanded()
        for name in names:
            if name not in known:
                raise ValueError(f"{where}: unknown system '{name}'{nearest(name, known)}")

    def expanded(self) -> dict[str, SystemSettings]:
        """The systems by name, one for each value of a setting that varies."""
        result: dict[str, SystemSettings] = {}
        for name, system in self.systems.items():
            if not system.vary:
                result[name] = system
            for setting, values in system.vary.items():
                full_names = _expanded_names(name, system)
                for value, full_name in zip(values, full_names, strict=True):
                    changes = {
                        "objective": system.objective | {setting: value},
                        "label": f"{system.label or name}, {setting} {value}",
                        "vary": {},
                    }
                    result[full_name] = system.model_copy(update=changes)
        return result

    @property
    def baseline(self) -> str | None:
        """The system whose score the differences are from; None: there is no system."""
        return self.report.baseline or next(iter(self.expanded()), None)

    def tested_against(self) -> list[str]:
        """The systems that the others are tested against, each of which has a mark of its own."""
        if self.report.significance:
            return list(self.report.significance)
        return [] if self.baseline is None else [self.baseline]

    def metrics(self, task: str) -> tuple[MetricName, ...]:
        return self.tasks[task].metric or self.report.metric

    def reported(self, translated: Collection[str]) -> list[str]:
        """Which of the test sets that a run has translated are reported, in the report's order."""
        wanted: list[str] = []
        for name in self.report.sets:
            if name == EVERY_TEST_SET:
                wanted += [one for one in translated if one != VALIDATION_SET]
            else:
                wanted.append(name)
        there = [name for name in wanted if name in translated]
        return list(dict.fromkeys(there))  # each once

    def title_of(self, task: str) -> str:
        return self.tasks[task].label or task

    def block_of(self, task: str) -> str:
        return self.tasks[task].block or ""

    def label(self, system: str) -> str:
        return self.expanded()[system].label or system


def _check_repeated(problem: str, values: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse a duplicate value; `names` says what each is called."""
    for value, name in zip(values, names, strict=True):
        if values.count(value) > 1:
            raise ValueError(f"{problem} '{name}'")


def _expanded_names(name: str, system: SystemSettings) -> list[str]:
    """The names of the systems that one becomes where it varies a setting: `cbmi=0.1`."""
    if not system.vary:
        return [name]
    names: list[str] = []
    for values in system.vary.values():
        names += [f"{name}={value}" for value in values]
    return names


def read_experiment(path: Path, overrides: list[str]) -> ExperimentSettings:
    """The experiment that a YAML file and `key=value` overrides describe; finds its run files."""
    values = read_mapping(path, "experiment file")
    if "stages" in values:
        raise UserError(
            f"{path}: this is a run file; a task of an experiment file names it, or say cbmi train "
            f"{path}."
        )
    experiment = check(ExperimentSettings, with_overrides(values, overrides), str(path))
    tasks: dict[str, TaskSettings] = {}
    for name, task in experiment.tasks.items():
        places = [Path(task.run), path.parent / task.run]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise UserError(f"{path}: tasks.{name}.run: there is no run file {task.run}.")
        tasks[name] = task.model_copy(update={"run": str(found)})
    return experiment.model_copy(update={"tasks": tasks})
