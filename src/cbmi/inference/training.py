"""Training from Python: a run file or its values in, a trained and tested run directory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

from cbmi.config import RunSettings, read_run_values
from cbmi.errors import UserError
from cbmi.inference.test_sets import score_test_sets
from cbmi.overrides import with_changes
from cbmi.progress import quiet
from cbmi.schema import check
from cbmi.training.log import OnRecord
from cbmi.training.run import RunDirectory
from cbmi.training.train import prepare_only, train_run
from cbmi.training.world import is_first_process

Config = RunSettings | Mapping[str, Any] | str | Path


def settings_of(config: Config, changes: Mapping[str, Any]) -> RunSettings:
    """The settings that a run file, its values, or settings describe, with changes."""
    if isinstance(config, RunSettings):
        if not changes:
            return config
        if any(key in ("model", "model.preset") for key in changes):
            raise UserError(
                "config: its model's sizes are already resolved; change the model in the run "
                "file or in a mapping instead."
            )
        values: Mapping[str, Any] = config.given()
        where = "config"
    elif isinstance(config, Mapping):
        values = config
        where = "config"
    else:
        values = read_run_values(config)
        where = str(config)
    return check(RunSettings, with_changes(values, changes), where)


def train_and_test(
    config: Config,
    changes: Mapping[str, Any],
    on_log: Callable[[dict[str, Any]], None] | None,
    progress: bool,
    restart: bool = False,
    strict: bool = False,
) -> Path:
    """Train a run, then translate and score its test sets; returns the run directory."""
    settings = settings_of(config, changes)
    with _shown(progress):
        run = train_run(settings, cast("OnRecord | None", on_log), restart, strict)
        if is_first_process():
            with run.lock():
                score_test_sets(run)
    return run.path


def prepare_data(
    config: Config,
    changes: Mapping[str, Any],
    progress: bool,
    again: bool = False,
    strict: bool = False,
) -> Path:
    """Learn the vocabulary and encode the corpus of a run; returns the run directory."""
    settings = settings_of(config, changes)
    with _shown(progress):
        run: RunDirectory = prepare_only(settings, again, strict)
    return run.path


def _shown(progress: bool) -> AbstractContextManager[None]:
    return nullcontext() if progress else quiet()
