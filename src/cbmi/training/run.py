"""The run directory: the only state there is."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from cbmi.changes import Change, changes_between, describe_changes
from cbmi.config import RunSettings
from cbmi.data.prepare import load_vocabularies
from cbmi.data.vocabulary import Vocabulary
from cbmi.errors import UserError
from cbmi.files import atomic_folder, disk_errors, require_ordinary, unused_name, write_atomically
from cbmi.locks import alone_in
from cbmi.objectives import build
from cbmi.overrides import read_mapping
from cbmi.progress import say
from cbmi.schema import check
from cbmi.training.checkpoint import states_of
from cbmi.training.revision import FREE_TO_CHANGE, Progress, revise
from cbmi.yaml_text import dump_yaml

GIVEN_VOCABULARY = ("data.vocabulary.model", "data.vocabulary.source", "data.vocabulary.target")
# What weights are of: a run with another cannot start from them.
OF_THE_WEIGHTS = ("model", "data.vocabulary", "initialize")


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
        self.trackers = self.path / "trackers.json"  # what they have been sent
        self.tensorboard = self.path / "tensorboard"
        self.test = self.path / "test"
        self.history = self.path / "history.jsonl"  # of changed settings

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

    def known_config(self) -> RunSettings:
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
            elif self.begun:
                self._revise(config)
            elif changes:
                raise self._other_settings(changes)
        elif self.vocab.exists() or self.data.exists() or self.checkpoints.exists():
            raise UserError(
                f"{self.path} holds vocab, data or checkpoints but is not a run directory: choose "
                "another output=…."
            )
        write_atomically(self.config_file, dump_yaml(config.plain()))

    def check_changes(self, config: RunSettings) -> None:
        """Refuse what `adopt` would refuse, and say what it would change; nothing is written."""
        config = _resolved(config)
        if self.begun:
            self._accepted(config)
        elif self.prepared and self.changes(config):
            raise self._other_settings(self.changes(config))

    def _revise(self, config: RunSettings) -> None:
        """Refuse settings that contradict what has been computed; write down what else changes."""
        progress = self._progress()
        accepted = self._accepted(config)
        if accepted and progress is not None:
            self._write_history(progress, accepted)

    def _accepted(self, config: RunSettings) -> list[Change]:
        """What changes from the next step on, which is said; the rest is refused."""
        progress = self._progress()
        if progress is None:  # resuming will say what is wrong with the checkpoints
            changes = self.changes(config)
            if changes:
                raise self._other_settings(changes)
            return []
        revision = revise(_resolved(self.known_config()), config, progress)
        refused = [change for change in revision.refused if not self._is_moved_file(change)]
        if refused:
            raise self._other_settings(refused, progress)
        if revision.accepted:
            say(f"From step {progress.step + 1:,} on: {describe_changes(revision.accepted)}.")
        return revision.accepted

    def _progress(self) -> Progress | None:
        """Where the newest checkpoint that can be read stands."""
        states = list(states_of(self.checkpoints).values())
        if not states:
            return None
        newest = states[-1]
        return Progress(newest.step, newest.stage, newest.stage_step)

    def _write_history(self, progress: Progress, changes: Sequence[Change]) -> None:
        known = self.history.read_text(encoding="utf-8") if self.history.exists() else ""
        record = {
            "step": progress.step,
            "changes": [asdict(change) for change in changes],
        }
        line = json.dumps(record, ensure_ascii=False) + "\n"
        if not known.endswith(line):  # it was killed before the settings were written
            write_atomically(self.history, known + line)

    def _other_settings(
        self, changes: Sequence[Change], progress: Progress | None = None
    ) -> UserError:
        """The error of settings that what was made here does not go with."""
        text = describe_changes(changes)
        if progress is None or any(change.within(*OF_THE_WEIGHTS) for change in changes):
            way_out = "choose another output=…, or delete it to start from scratch"
        elif any(change.within("stages") for change in changes):
            way_out = (
                f"or start from its weights in a new run: output=… initialize={self.path}; stages "
                "that have not begun may change, and the current one may end at its step "
                f"{progress.stage_step:,} or later"
            )
        else:
            way_out = f"or start from its weights in a new run: output=… initialize={self.path}"
        return UserError(
            f"{self.path} holds a run with other settings ({text}): resume it with the old "
            f"settings, {way_out}."
        )

    def settings_files(self) -> dict[Path, str | None]:
        """The contents of what `adopt` changes; None: there is no such file."""
        contents = {}
        for file in (self.config_file, self.history):
            contents[file] = file.read_text(encoding="utf-8") if file.exists() else None
        return contents

    def changes(self, config: RunSettings) -> list[Change]:
        """How `config` differs from the settings of what was made here so far, where it matters."""
        changes = _changes_that_matter(_resolved(self.known_config()), _resolved(config))
        changes = [change for change in changes if not self._is_moved_file(change)]
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
            for file in (other.config_file, other.history, other.log):
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
        changes = _changes_that_matter(_resolved(self.known_config()), _resolved(config))
        changes = [change for change in changes if change.within("data", "initialize")]
        changes = [change for change in changes if not self._is_moved_file(change)]
        if changes:
            raise UserError(
                f"{self.path} holds data that were prepared with other settings "
                f"({describe_changes(changes)}): choose another output=…, or delete it."
            )
        trained = [self.checkpoints, self.best, self.log, self.teachers, self.cache, self.test]
        trained += [self.history, self.trackers, self.tensorboard]
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

    def _is_moved_file(self, change: Change) -> bool:
        """Whether a corpus file has another name than when it was prepared.

        Files may move: their content is compared with what was prepared.
        """
        are_names = isinstance(change.old, str) and isinstance(change.new, str)
        is_text = re.fullmatch(r"data\.(train|valid)(\.\d+\.files)?\.\d+", change.path)
        is_file = is_text is not None or change.within(*GIVEN_VOCABULARY)
        return are_names and is_file and (self.data / "train").exists()

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
