"""From a run's settings to a trained run: check, prepare, train."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from cbmi.config import RunSettings
from cbmi.data.languages import remarks_on
from cbmi.data.prepare import open_corpus, open_training_corpora, prepare_corpora
from cbmi.data.statistics import Statistics
from cbmi.errors import TrainingStopped, UserError
from cbmi.files import atomic_folder, write_atomically
from cbmi.objectives import Objective
from cbmi.progress import say
from cbmi.training.belonging import check_ranks_agree
from cbmi.training.checks import (
    check_run,
    check_texts,
    complete_settings,
    looks_at_data,
    starting_point,
)
from cbmi.training.fitting import choices_for
from cbmi.training.live_run import LiveRun
from cbmi.training.log import OnRecord
from cbmi.training.run import RunDirectory
from cbmi.training.stage_inputs import make_statistics
from cbmi.training.trainer import Trainer
from cbmi.training.validation import Validator
from cbmi.training.world import World, is_first_process, join_world


def train_run(
    config: RunSettings,
    on_record: OnRecord | None = None,
    restart: bool = False,
    strict: bool = False,
) -> RunDirectory:
    """Train a run to its end, or resume it.

    Raises `TrainingStopped` if it was asked to stop before the end. `on_record` is called with
    every record of the log. `restart`: set aside what was trained before, and start from scratch.
    `strict`: refuse data that look wrong.
    """
    chosen = choices_for(config, restart)
    config = complete_settings(config, restart)
    objectives = check_run(config)
    run = RunDirectory(config.output)
    if chosen and is_first_process():
        say(chosen)
    with join_world(config.device, config.rank_timeout) as world:
        if world.first:
            with run.lock():
                # torchrun restarts with the same command: what it has trained meanwhile stays.
                if restart and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
                    _set_aside(run, config)
                prepare_run(config, run, objectives, strict=strict)
                world.barrier()
                _train(config, run, objectives, world, on_record)
        else:
            world.barrier()  # until the first process has prepared the data
            _train(config, run, objectives, world, on_record)
    return run


def _set_aside(run: RunDirectory, config: RunSettings) -> None:
    aside = run.set_aside(config)
    if aside is not None:
        say(
            f"What was trained before is set aside in {aside}. To resume this run, leave out "
            "--restart."
        )


def prepare_only(config: RunSettings, again: bool = False, strict: bool = False) -> RunDirectory:
    """Learn the vocabulary and encode the corpus of a run, without training.

    `again`: encode the corpus again, with the existing vocabulary. `strict`: refuse data that look
    wrong.
    """
    chosen = choices_for(config)
    config = complete_settings(config)
    objectives = check_run(config)
    run = RunDirectory(config.output)
    if chosen:
        say(chosen)
    with run.lock():
        prepare_run(config, run, objectives, again, strict)
    return run


def prepare_run(
    config: RunSettings,
    run: RunDirectory,
    objectives: Sequence[Objective],
    again: bool = False,
    strict: bool = False,
) -> None:
    """Make this the directory of the run, or leave it as it was.

    Makes what is missing: the vocabulary, the encoded corpora, and what the objectives need to know
    of them. `again`: the corpora are encoded again. `strict`: data that look wrong are refused.
    """
    prepared = run.prepared
    before = run.settings_files() if prepared else {}
    run.adopt(config)
    try:
        check_texts(config)
        if again or looks_at_data(run, strict):
            _look_at(config, strict)
        if config.initialize and not run.vocab.exists():
            with atomic_folder(run.vocab) as temporary:
                theirs = RunDirectory(config.initialize).vocab
                shutil.copytree(theirs, temporary, dirs_exist_ok=True)
        prepare_corpora(config.data, run.path, again)
        prepared = True  # what was made is kept, whatever comes
        make_statistics(objectives, _statistics(run))
    except UserError:
        if not prepared:
            run.clear()
        for file, content in before.items():
            if content is None:
                file.unlink(missing_ok=True)
            else:
                write_atomically(file, content)
        raise


def _look_at(config: RunSettings, strict: bool) -> None:
    """Say what is obviously wrong with the training data, or refuse it."""
    for remark in remarks_on(config.data, strict):
        say(f"{remark} (--strict refuses such data.)")


def _statistics(run: RunDirectory) -> list[Statistics]:
    """Of each segmentation that epochs are trained on in turn."""
    source, target = run.vocabularies()
    sizes = (len(source), len(target))
    return [Statistics(corpus, sizes) for corpus in open_training_corpora(run.path)]


def _train(
    config: RunSettings,
    run: RunDirectory,
    objectives: Sequence[Objective],
    world: World,
    on_record: OnRecord | None,
) -> None:
    check_ranks_agree(world, run, config)
    with _enough_memory(world):
        trainer = _new_trainer(config, run, objectives, world, on_record)
        if world.first:
            say(trainer.summary())
        trainer.train()
    step = trainer.state.step
    if trainer.stopping:
        if world.first:
            say(f"Stopped at step {step:,}: {run.path}; the same command resumes it.")
        raise TrainingStopped(trainer.stop_signal or 0)
    if world.first:
        say(f"Finished at step {step:,}: {run.path}")


def _new_trainer(
    config: RunSettings,
    run: RunDirectory,
    objectives: Sequence[Objective],
    world: World,
    on_record: OnRecord | None,
) -> Trainer:
    """Networks and state as the run directory has them, or those of the run to start from."""
    statistics = _statistics(run)
    validator = None
    if config.data.valid:
        target = run.vocabularies()[1]
        validator = Validator(config, open_corpus(run.path, "valid"), target, world)
    live = LiveRun(config, run, statistics[0].sizes, world)
    if not live.resume() and config.initialize:
        live.load_networks(starting_point(config))
        if world.first:
            _report_other_languages(config, config.initialize)
    return Trainer(live, objectives, statistics, validator, on_record)


def _report_other_languages(config: RunSettings, start: str) -> None:
    theirs = RunDirectory(start).config().data
    own = config.data
    if (theirs.source, theirs.target) != (own.source, own.target):
        say(
            f"{start} translates {theirs.source}→{theirs.target}, this run "
            f"{own.source}→{own.target}; its language model knows only '{theirs.target}'."
        )


@contextmanager
def _enough_memory(world: World) -> Iterator[None]:
    """Turn a lack of memory into a sentence."""
    try:
        yield
    except RuntimeError as error:
        # On a CPU the allocator raises a plain RuntimeError with these words.
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        if not out_of_memory and "can't allocate memory" not in str(error):
            raise
        raise UserError(
            f"There is not enough memory on {world.device}: set memory.recompute_layers=true or "
            "memory.head_tokens=4096 and resume the run, or, before its first checkpoint, halve "
            "batch.tokens and double batch.accumulate."
        ) from error
