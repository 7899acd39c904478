"""The run directory: the only state there is."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cbmi.config import RunConfig, check, differences, read_mapping
from cbmi.data.prepare import load_vocabularies
from cbmi.data.vocabulary import Vocabulary
from cbmi.errors import UserError
from cbmi.files import alone_in, atomic_folder, write_atomically
from cbmi.objectives import build
from cbmi.yaml_text import dump_yaml

# What may change when a run goes on: it does not touch what was computed.
ELSEWHERE = re.compile(r"data\.(train|valid)\.\d+: (?!null, now).*, now (?!null)")
FREE_TO_CHANGE = ("output:", "data.test", "log.", "checkpoints.", "device:", "compile:", "memory.", "parallel:")


class Run:
    """Names of what lies in a run directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.vocab = self.path / "vocab"
        self.data = self.path / "data"
        self.checkpoints = self.path / "checkpoints"
        self.teachers = self.path / "teachers"
        self.cache = self.path / "cache"
        self.best = self.path / "best"
        self.log = self.path / "log.jsonl"
        self.test = self.path / "test"

    def config(self) -> RunConfig:
        if self.path.is_file():
            raise UserError(f"{self.path}: this is a file; name the run directory, a run file's output.")
        if not self.path.is_dir():
            raise UserError(f"{self.path}: there is no such run directory.")
        if not self.config_file.exists():
            raise UserError(f"{self.path}: this is not a run directory: it has no config.yaml.")
        return check(RunConfig, read_mapping(self.config_file, "run's settings"), str(self.config_file))

    def _known_config(self) -> RunConfig:
        try:
            return self.config()
        except UserError as error:
            reason = str(error).rstrip(".")
            raise UserError(f"{self.path} is no run directory: choose another output=… ({reason}).") from None

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        return load_vocabularies(self.vocab, self.config().data.vocabulary.shared)

    @property
    def prepared(self) -> bool:
        return (self.data / "train").exists() or self.begun

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint."""
        return any(self.checkpoints.glob("step-*"))

    def clear(self) -> None:
        """Remove what a preparation that did not succeed has left; `adopt` made sure that it is ours."""
        for folder in (self.vocab, self.data / "train", self.data / "valid"):
            shutil.rmtree(folder, ignore_errors=True)
        if self.data.is_dir() and not any(self.data.iterdir()):
            self.data.rmdir()
        self.config_file.unlink(missing_ok=True)

    def adopt(self, config: RunConfig) -> None:
        """Make this the run of `config`, or refuse if it is that of another that has got anywhere."""
        config = _resolved(config)
        if self.config_file.exists():
            changes = self.changes(config)
            if changes and not self.prepared:
                self.clear()
            elif changes:
                raise UserError(
                    f"{self.path} holds a run with other settings ({'; '.join(changes)}): "
                    "go on with the old settings, choose another output=…, or delete it to begin anew."
                )
        elif self.vocab.exists() or self.data.exists() or self.checkpoints.exists():
            raise UserError(
                f"{self.path} holds vocab, data or checkpoints but is no run directory: choose another output=…."
            )
        write_atomically(self.config_file, dump_yaml(config.plain()))

    def changes(self, config: RunConfig) -> list[str]:
        """In what `config` differs from the settings of what was made here so far."""
        changes = _changes_that_matter(_resolved(self._known_config()), _resolved(config))
        # Files may lie elsewhere: their content is compared with what was prepared.
        if (self.data / "train").exists():
            changes = [change for change in changes if not ELSEWHERE.match(change)]
        if self.begun:
            return changes
        return [change for change in changes if change.startswith(("data.", "initialize:"))]  # there are only data

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from this directory."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: this is a file; a run needs a folder: choose another output=….")
        with alone_in(self.path):
            try:
                yield
            finally:
                self._leave_no_empty_folder()

    def copy(self, other: Run) -> None:
        """Become a copy of another run as far as it has got. What is never changed in place is shared on the disk."""
        with atomic_folder(self.path) as temporary:
            for folder in (other.vocab, other.data, other.checkpoints, other.teachers):
                if folder.exists():
                    place, hidden = temporary / folder.name, shutil.ignore_patterns(".*")
                    shutil.copytree(folder, place, ignore=hidden, copy_function=_link)
            for file in (other.config_file, other.log):
                if file.exists():
                    shutil.copy2(file, temporary / file.name)
            if other.best.is_symlink():
                os.symlink(os.readlink(other.best), temporary / other.best.name)

    def _leave_no_empty_folder(self) -> None:
        """A run that was refused before anything was made leaves nothing behind."""
        if os.listdir(self.path) == [".lock"]:
            (self.path / ".lock").unlink()
            self.path.rmdir()


def _resolved(config: RunConfig) -> RunConfig:
    """The same with every setting of its objectives, also those that were left to defaults and presets."""
    stages = []
    for stage in config.stages:
        objective = build(stage.objective, f"stages.{stage.name}.objective")
        settings = {"name": stage.objective["name"], **objective.model_dump(mode="json")}
        stages.append(stage.model_copy(update={"objective": settings}))
    return config.model_copy(update={"stages": tuple(stages)})


def _link(source: str, place: str) -> None:
    """Another name for a file, or a copy where the file system has no such names."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copy2(source, place)


def _changes_that_matter(old: RunConfig, new: RunConfig) -> list[str]:
    """Training longer and adding stages are continuations; `FREE_TO_CHANGE` is no matter."""
    before, after = old.plain(), new.plain()
    known = len(before["stages"])
    if len(after["stages"]) >= known:
        after["stages"] = after["stages"][:known]
        last_before, last_after = before["stages"][-1], after["stages"][-1]
        if last_after["steps"] > last_before["steps"] and len(new.stages) == known:
            last_before["steps"] = last_after["steps"]
    lines = differences(before, after)
    return [line for line in lines if not line.startswith(FREE_TO_CHANGE)]
