"""One job of an experiment, and whether it is done.

Each folder has run.yaml, the run directory, output.txt (what the process said), begun.txt (when the
first process began), attempts.txt (how long each was at it) and, when the job is done, result.json.
An analysis has accuracy.json in place of a run of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cbmi.changes import changes_between, describe_changes
from cbmi.config import RunSettings
from cbmi.data.prepare import check_unchanged
from cbmi.data_settings import DataSettings
from cbmi.digests import digest
from cbmi.errors import UserError
from cbmi.experiments.records import JobKind, JobResult
from cbmi.files import read_json
from cbmi.objectives import build
from cbmi.schema import check
from cbmi.training.checkpoint import LANGUAGE_MODEL, TRANSLATOR
from cbmi.training.revision import FREE_TO_CHANGE
from cbmi.training.run import RunDirectory

# Settings that may differ from those of a result: where files lie (their content is compared), and
# what does not touch the numbers.
ELSEWHERE = (*FREE_TO_CHANGE, "initialize", "data.train", "data.valid")
INITIALIZE = "initialize"  # the role of the weights that a run starts from
# Settings that a prepared corpus depends on.
OF_CORPUS = ("data.source", "data.target", "data.vocabulary", "data.max_length", "data.drop_copies")
OF_DATA = ("train", "valid")
CHANGES_SHOWN = 3


@dataclass(frozen=True)
class Job:
    id: str
    kind: JobKind
    task: str
    seed: int
    folder: Path
    config: RunSettings  # of its run; an analysis has that of the run that it looks at
    after: str | None = None  # the job that it continues from
    system: str | None = None

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.folder / "run")

    @property
    def run_file(self) -> Path:
        return self.folder / "run.yaml"

    @property
    def result_file(self) -> Path:
        return self.folder / "result.json"

    @property
    def accuracy_file(self) -> Path:
        return self.folder / "accuracy.json"

    @property
    def output_file(self) -> Path:
        return self.folder / "output.txt"

    @property
    def attempts_file(self) -> Path:
        return self.folder / "attempts.txt"

    @property
    def begun_file(self) -> Path:
        return self.folder / "begun.txt"

    def has_begun(self) -> bool:
        """Whether it has a result or a checkpoint; results may lie where no models are."""
        return self.result_file.exists() or self.run.begun

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that this job trains."""
        names = tuple(stage.name for stage in self.config.stages)
        if self.kind is JobKind.START:
            return names
        if self.kind is JobKind.SYSTEM:
            return names[-1:]
        return ()

    @property
    def steps(self) -> int:
        """The most steps that this job trains; patience may end it earlier."""
        return sum(stage.steps for stage in self.config.stages if stage.name in self.stages)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return self.config.plain()

    @cached_property
    def file_digests(self) -> dict[str, list[str]]:
        """Digests of the files that it is made of, by role.

        train, valid, "test NAME", initialize, and "stages.NAME.objective" of those that read files.
        """
        data = self.config.data
        digests = {
            "train": _training_digests(data),
            "valid": [digest(file) for file in data.valid or ()],
        }
        for name, files in data.test.items():
            digests[f"test {name}"] = [digest(file) for file in files]
        if self.config.initialize:
            best = RunDirectory(self.config.initialize).best
            weights = [best / f"{name}.safetensors" for name in (TRANSLATOR, LANGUAGE_MODEL)]
            digests[INITIALIZE] = [digest(file) for file in weights if file.exists()]
        for stage in self.config.stages:
            role = f"stages.{stage.name}.objective"
            named = build(stage.objective, role).files()
            if named:
                digests[role] = [digest(file) for file in named]
        return digests

    def result(self) -> JobResult | None:
        """What it has given; None where something is missing.

        Refuses a result of other settings or of another corpus.
        """
        if self.kind is JobKind.CORPUS or not self.result_file.exists():
            return None
        result = self._read_result()
        self._check_settings(result)
        self._check_content(result)
        if self.kind is JobKind.PRIOR_ACCURACY:
            return result
        test_sets = self.config.data.test
        scores = {name: result.scores[name] for name in test_sets if name in result.scores}
        return replace(result, scores=scores)

    def _read_result(self) -> JobResult:
        values = read_json(self.result_file)
        try:
            return JobResult.from_json(values)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UserError(
                f"{self.result_file}: this is not a result; delete it, and the job is done again."
            ) from None

    def _check_settings(self, result: JobResult) -> None:
        # Through RunSettings, so that a setting that the result does not know has its default.
        known = check(RunSettings, result.settings, str(self.result_file)).plain()
        changes = []
        for change in changes_between(known, without_infinities(self.settings)):
            if not change.within(*ELSEWHERE):
                changes.append(change)
        if changes:
            raise UserError(
                f"{self.folder} is done, but with other settings "
                f"({describe_changes(changes, CHANGES_SHOWN)}): give the task or the system "
                "another name, choose another output=…, or delete the folder."
            )

    def _check_content(self, result: JobResult) -> None:
        changed = []
        for role, digests in self.file_digests.items():
            # Results of older versions lack some digests; a test set may have been added.
            if result.files.get(role, digests) != digests:
                changed.append(_setting(role))
        if bool(result.settings.get(INITIALIZE)) != bool(self.config.initialize):
            changed.append(INITIALIZE)
        if changed:
            raise UserError(
                f"{self.folder} is done, but the content of {' and '.join(changed)} has changed "
                "since: bring it back, give the task or the test set another name, or choose "
                "another output=…."
            )

    def check_begun(self) -> None:
        """Refuse a run that has begun with other settings and is not done."""
        if self.kind not in (JobKind.START, JobKind.SYSTEM):
            return
        if not self.run.config_file.exists() or self.done():
            return
        changes = self.run.changes(self.config)
        if changes:
            raise UserError(
                f"{self.folder} has begun with other settings "
                f"({describe_changes(changes, CHANGES_SHOWN)}): keep those, choose another "
                "output=…, or delete the folder."
            )

    def check_corpus(self) -> None:
        """Refuse a prepared corpus of other settings or of other files."""
        if self.kind is not JobKind.CORPUS:
            return
        if not self.run.config_file.exists() or not self.done():
            return
        changes = []
        for change in changes_between(self.run.config().plain(), self.settings):
            if change.within(*OF_CORPUS):
                changes.append(change)
        if changes:
            raise UserError(
                f"{self.folder} was prepared with other settings ({describe_changes(changes)}): "
                "give the task another name, choose another output=…, or delete the folder."
            )
        check_unchanged(self.run.data / "train", self.config.data.train_files())

    def done(self) -> bool:
        if self.kind is JobKind.CORPUS:
            return (self.run.data / "train").exists()
        result = self.result()
        if result is None:
            return False
        # A test set may have been added.
        return (
            self.kind is not JobKind.SYSTEM or result.scores.keys() >= self.config.data.test.keys()
        )

    def check_model(self) -> None:
        """Refuse to train a system again because its model cannot translate a new test set."""
        if self.kind is JobKind.SYSTEM and self.result_file.exists() and not self.run.begun:
            known = self._read_result().scores
            added = [name for name in self.config.data.test if name not in known]
            raise UserError(
                f"{self.folder}: its model is gone, so data.test.{', '.join(added)} cannot be "
                "translated; bring the model back, or delete the folder to train it again."
            )

    def ready(self) -> bool:
        """Whether another job can continue from here; a run may have been deleted since."""
        return self.done() and (self.kind is JobKind.CORPUS or self.run.best.exists())


def _setting(role: str) -> str:
    """The setting that names the files of a role."""
    if role in OF_DATA or role.startswith("test "):
        return f"data.{role.replace(' ', '.')}"
    return role


def without_infinities(value: Any) -> Any:
    """The same value with infinite numbers as text: JSON has none."""
    if isinstance(value, dict):
        return {key: without_infinities(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(one) for one in value]
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value


def _training_digests(data: DataSettings) -> list[str]:
    """Of the files of the training data, with the weights of corpora that have one."""
    digests = []
    for corpus in data.train:
        digests += [digest(file) for file in corpus.files]
        if corpus.weight != 1:
            digests.append(f"weight {corpus.weight}")
    return digests
