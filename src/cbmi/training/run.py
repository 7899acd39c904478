"""The run directory: the only state there is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cbmi.changes import Change, changes_between, describe_changes
from cbmi.config import RunSettings, check
from cbmi.data.prepare import load_vocabularies
from cbmi.data.vocabulary import Vocabulary
from cbmi.errors import UserError
from cbmi.files import (
    alone_in,
    atomic_folder,
    disk_errors,
    require_ordinary,
    unused_name,
    write_atomically,
)
from cbmi.objectives import build
from cbmi.overrides import read_mapping
from cbmi.yaml_text import dump_yaml

# Keys that may change when a run is resumed: they do not touch what was computed.
FREE_TO_CHANGE = (
    "output",
    "data.test",
    "log",
    "checkpoints",
    "device",
    "compile",
    "memory",
    "parallel",
    "rank_timeout",
)


class RunDirectory:
    """The names of what lies in a run directory."""

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

    def config(self) -> RunSettings:
        """The resolved settings; refuses what is not a run directory."""
        if self.path.is_file():
            raise UserError(
                f"{self.path}: this is a file; give the run directory (the run file's `output`)."
            )
        if not self.path.is_dir():
            raise UserError(f"{self.path}: there is no such run directory.")
        if not self.config_file.exists():
            raise UserError(f"{self.path}: this is not a run directory: it has no config.yaml.")
        require_ordinary(self.config_file)
        values = read_mapping(self.config_file, "run's settings")
        return check(RunSettings, values, str(self.config_file))

    def _known_config(self) -> RunSettings:
        try:
            return self.config()
        except UserError as error:
            reason = str(error).rstrip(".")
            raise UserError(
                f"{self.path} is not a run directory: choose another output=… ({reason})."
            ) from None

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Source and target; the same object if they are shared."""
        return load_vocabularies(self.vocab, self.config().data.vocabulary.shared)

    @property
    def prepared(self) -> bool:
        return (self.data / "train").exists() or self.begun

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint."""
        return any(self.checkpoints.glob("step-*"))

    def clear(self) -> None:
        """Remove what a failed preparation has left; `adopt` made sure that it is ours."""
        made = [self.data / name for name in ("train", "valid", "segmentations")]
        for folder in (self.vocab, *made):
            shutil.rmtree(folder, ignore_errors=True)
        if self.data.is_dir() and not any(self.data.iterdir()):
            self.data.rmdir()
        self.config_file.unlink(missing_ok=True)

    def adopt(self, config: RunSettings) -> None:
        """Make this the run of `config`; refuse if it is another's that has got anywhere."""
        config = _resolved(config)
        if self.config_file.exists():
            changes = self.changes(config)
            if changes and not self.prepared:
                self.clear()
            elif changes:
                raise UserError(
                    f"{self.path} holds a run with other settings ({describe_changes(changes)}): "
                    "resume it with the old settings, choose another output=…, or delete it to "
                    "start from scratch."
                )
        elif self.vocab.exists() or self.data.exists() or self.checkpoints.exists():
            raise UserError(
                f"{self.path} holds vocab, data or checkpoints but is not a run directory: choose "
                "another output=…."
            )
        write_atomically(self.config_file, dump_yaml(config.plain()))

    def changes(self, config: RunSettings) -> list[Change]:
        """How `config` differs from the settings of what was made here so far, where it matters."""
        changes = _changes_that_matter(_resolved(self._known_config()), _resolved(config))
        if (self.data / "train").exists():
            # Files may have moved: their content is compared with what was prepared.
            changes = [change for change in changes if not _is_moved_file(change)]
        if self.begun:
            return changes
        # Only data have been made so far.
        return [change for change in changes if change.within("data", "initialize")]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out of this directory."""
        if self.path.is_file():
            raise UserError(
                f"{self.path}: this is a file; a run needs a folder: choose another output=…."
            )
        with alone_in(self.path):
            try:
                yield
            finally:
                self._remove_if_empty()

    def copy(self, other: RunDirectory) -> None:
        """Become a copy of another run as far as it has got.

        What is never changed in place shares its space on the disk.
        """
        with atomic_folder(self.path) as temporary:
            for folder in (other.vocab, other.data, other.checkpoints, other.teachers):
                if folder.exists():
                    shutil.copytree(
                        folder,
                        temporary / folder.name,
                        ignore=shutil.ignore_patterns(".*"),
                        copy_function=_link,
                    )
            for file in (other.config_file, other.log):
                if file.exists():
                    shutil.copy2(file, temporary / file.name)
            if other.best.is_symlink():
                os.symlink(os.readlink(other.best), temporary / other.best.name)

    def set_aside(self, config: RunSettings) -> Path | None:
        """Move what was trained here into a folder of its own; None if there is nothing.

        Settings and vocabulary are copied with it, so that it can still be used. Refuses first what
        `adopt` would refuse afterwards.
        """
        if not self.config_file.exists():
            return None
        changes = _changes_that_matter(_resolved(self._known_config()), _resolved(config))
        changes = [change for change in changes if change.within("data", "initialize")]
        if (self.data / "train").exists():
            changes = [change for change in changes if not _is_moved_file(change)]
        if changes:
            raise UserError(
                f"{self.path} holds data that were prepared with other settings "
                f"({describe_changes(changes)}): choose another output=…, or delete it."
            )
        trained = [self.checkpoints, self.best, self.log, self.teachers, self.cache, self.test]
        trained = [path for path in trained if os.path.lexists(path)]
        if not trained:
            return None
        aside = unused_name(self.path / "before-restart")
        with disk_errors(aside):
            aside.mkdir()
            shutil.copy2(self.config_file, aside / self.config_file.name)
            if self.vocab.exists():
                shutil.copytree(self.vocab, aside / self.vocab.name)
            for path in trained:
                os.replace(path, aside / path.name)
        return aside

    def _remove_if_empty(self) -> None:
        """A run that was refused before anything was made leaves nothing behind.

        Whoever waits for the lock notices that its file has gone, and makes a new one.
        """
        if os.listdir(self.path) == [".lock"]:
            (self.path / ".lock").unlink()
            with suppress(OSError):  # another process has come into it
                self.path.rmdir()


def _resolved(config: RunSettings) -> RunSettings:
    """The same with every setting of its objectives, including defaults and presets."""
    stages = []
    for stage in config.stages:
        objective = build(stage.objective, f"stages.{stage.name}.objective")
        settings = {"name": stage.objective["name"], **objective.model_dump(mode="json")}
        stages.append(stage.model_copy(update={"objective": settings}))
    return config.model_copy(update={"stages": tuple(stages)})


def _link(source: str, place: str) -> None:
    """A hard link to a file, or a copy if the file system has none."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copy2(source, place)


def _is_moved_file(change: Change) -> bool:
    """Whether a corpus file has another name than before."""
    key, _, index = change.path.rpartition(".")
    return key in ("data.train", "data.valid") and index.isdigit()


def _changes_that_matter(old: RunSettings, new: RunSettings) -> list[Change]:
    """All changes, except training the last stage longer, adding stages, and `FREE_TO_CHANGE`."""
    before = old.plain()
    after = new.plain()
    known = len(before["stages"])
    if len(after["stages"]) >= known:
        after["stages"] = after["stages"][:known]
        last_before = before["stages"][-1]
        last_after = after["stages"][-1]
        if last_after["steps"] > last_before["steps"] and len(new.stages) == known:
            last_before["steps"] = last_after["steps"]
    changes = changes_between(before, after)
    return [change for change in changes if not change.within(*FREE_TO_CHANGE)]
