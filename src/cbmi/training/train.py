"""From a run file to a trained run: check, prepare, train, test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from cbmi.config import RunConfig, Stage
from cbmi.data.bmi import scipy_sparse
from cbmi.data.prepare import open_corpus, prepare
from cbmi.data.statistics import Statistics
from cbmi.data.text import check_pairs
from cbmi.errors import UserError
from cbmi.evaluation.metrics import sacrebleu_metrics
from cbmi.files import atomic_folder, write_atomically
from cbmi.objectives import Objective, build
from cbmi.progress import say
from cbmi.training.checkpoint import LANGUAGE_MODEL, TRANSLATOR, damage
from cbmi.training.live_run import LiveRun
from cbmi.training.log import summary_writer
from cbmi.training.run import Run
from cbmi.training.supply import make_statistics
from cbmi.training.testing import test_run
from cbmi.training.trainer import Trainer
from cbmi.training.validation import Validator
from cbmi.training.world import World, join_world


class Stopped(Exception):
    """Training was asked to stop and has saved; `number` is the signal that asked (0: another rank received it)."""

    def __init__(self, number: int) -> None:
        self.number = number


def train(config: RunConfig) -> None:
    """Train a run to its end, or go on with it; raises `Stopped` if it was asked to stop before the end."""
    config = completed(config)
    objectives = check_run(config)
    run = Run(config.output)
    with join_world(config.device) as world:
        if not world.first:
            world.barrier()  # until the first process has prepared the data
            with _enough_memory(world):
                _train(config, run, objectives, world)
            return
        with run.lock():
            prepare_run(config, run, objectives)
            world.barrier()
            with _enough_memory(world):
                _train(config, run, objectives, world)


@contextmanager
def _enough_memory(world: World) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(
            f"There is not enough memory on {world.device}: halve batch.tokens and double batch.accumulate, or say "
            "memory.head_tokens=4096 or memory.recompute_layers=true; the same command goes on."
        ) from error


def _train(config: RunConfig, run: Run, objectives: list[Objective], world: World) -> None:
    vocabularies = run.vocabularies()
    validator = None
    if config.data.valid:
        validator = Validator(config, open_corpus(run.path, "valid"), vocabularies[1], world)
    sizes = (len(vocabularies[0]), len(vocabularies[1]))
    live = LiveRun(config, run, sizes, world)
    if not live.resume() and config.initialize:
        live.load_networks(starting_point(config))
        theirs = Run(config.initialize).config().data
        if world.first and (theirs.source, theirs.target) != (config.data.source, config.data.target):
            languages = f"{theirs.source}→{theirs.target}, this run {config.data.source}→{config.data.target}"
            say(f"{config.initialize} translates {languages}; its language model knows '{theirs.target}' alone.")
    statistics = Statistics(open_corpus(run.path, "train"), sizes)
    trainer = Trainer(live, objectives, statistics, validator)
    if world.first:
        say(trainer.summary())
    trainer.train()
    if trainer.stopping:
        if world.first:
            say(f"Stopped at step {live.state.step:,}: {run.path}; the same command goes on.")
        raise Stopped(trainer.stop_signal or 0)
    if world.first:
        say(f"Finished at step {live.state.step:,}: {run.path}")
        test_run(run)


def completed(config: RunConfig) -> RunConfig:
    """The same with what follows from the rest of it: a language model that an objective needs rests where nothing
    else is said, and a run that starts from another has its vocabulary."""
    stages = []
    for stage in config.stages:
        if stage.language_model is None:
            needed = "lm" in build(stage.objective, f"stages.{stage.name}.objective").needs
            stage = stage.model_copy(update={"language_model": "frozen" if needed else "off"})
        stages.append(stage)
    config = config.model_copy(update={"stages": tuple(stages)})
    if config.initialize is None or "vocabulary" in config.data.model_fields_set:
        return config
    own = Run(config.output)
    known = own if own.config_file.exists() else Run(config.initialize)
    data = config.data.model_copy(update={"vocabulary": known.config().data.vocabulary})
    return config.model_copy(update={"data": data})


def check_run(config: RunConfig) -> list[Objective]:
    """The stages' objectives, once it is sure that the files are there and each stage gets what it needs."""
    check_files(config)
    if config.log.tensorboard:
        summary_writer()
    if config.data.test or (config.data.valid and config.validate_.beam):
        sacrebleu_metrics()
    return check_stages(config)


def check_files(config: RunConfig) -> None:
    for path in [*config.data.train, *(config.data.valid or ()), *sum(config.data.test.values(), ())]:
        if not Path(path).is_file():
            problem = "this is not an ordinary file" if Path(path).exists() else "there is no such file"
            raise UserError(f"{path}: {problem}.")


def check_stages(config: RunConfig) -> list[Objective]:
    """The stages' objectives, once it is sure that each gets what it needs."""
    objectives, has_language_model = [], _begins_with_language_model(config)
    for number, stage in enumerate(config.stages):
        objective = build(stage.objective, f"stages.{stage.name}.objective")
        _check_stage(stage, objective, fresh=number == 0 and config.initialize is None)
        if stage.language_model in ("frozen", "cached") and not has_language_model:
            others = f"neither an earlier stage nor {config.initialize}" if config.initialize else "no earlier stage"
            raise UserError(
                f"stages.{stage.name}: a {stage.language_model} language model is needed, but {others} has trained a "
                "language model: give an earlier stage language_model: train."
            )
        has_language_model = has_language_model or stage.language_model in ("train", "joint")
        objectives.append(objective)
    return objectives


def _begins_with_language_model(config: RunConfig) -> bool:
    own = Run(config.output)  # what it starts from matters only until it has begun
    weights = f"{LANGUAGE_MODEL}.safetensors"
    if config.initialize and not own.begun:
        return (starting_point(config) / weights).exists()
    return any(own.checkpoints.glob(f"step-*/{weights}"))


def _check_stage(stage: Stage, objective: Objective, fresh: bool) -> None:
    """Refuse a stage that does not give its objective what it needs; `fresh`: it starts from untrained networks."""
    where, named = f"stages.{stage.name}", f"objective '{stage.objective['name']}'"
    if "lm" in objective.needs and stage.language_model == "off":
        raise UserError(
            f"{where}: {named} needs a language model: give this stage language_model: "
            f"{'frozen' if objective.fusion else 'frozen, cached or joint'}."
        )
    whole = objective.fusion or "distribution" in objective.needs
    if stage.language_model == "cached" and "lm" in objective.needs and whole:
        raise UserError(
            f"{where}: {named} needs the language model's whole distributions, of which a cache holds the gold "
            "tokens' alone: say language_model: frozen."
        )
    if objective.fusion and stage.language_model != "frozen":
        raise UserError(f"{where}: {named} wants a language model that rests: say language_model: frozen.")
    if "teacher" in objective.needs and fresh:
        raise UserError(
            f"{where}: {named} needs a translator to learn from: put a stage before it, or say initialize: RUN."
        )
    if "bmi" in objective.needs:
        scipy_sparse()
    if "weights" in objective.needs and not Path(objective.file).is_file():
        raise UserError(f"{where}.objective.file: {objective.file}: there is no such file.")


def starting_point(config: RunConfig) -> Path:
    """The checkpoint that `initialize` names: the best of that run."""
    run = Run(config.initialize)
    theirs = run.config()
    if not run.best.exists():
        reason = "its best checkpoint is missing; cbmi train chooses another" if run.begun else "no checkpoint yet"
        raise UserError(f"initialize: {run.path} cannot be started from: {reason}.")
    for name in ("width", "feed_forward", "heads", "encoder_layers", "decoder_layers"):
        own, other = getattr(config.model, name), getattr(theirs.model, name)
        if own != other:
            raise UserError(f"initialize: {run.path} has model.{name} {other}, but this run has {own}.")
    if theirs.data.vocabulary != config.data.vocabulary:
        raise UserError(f"initialize: {run.path} has another data.vocabulary than this run.")
    folder = run.best.resolve()
    problem = damage(folder, [TRANSLATOR, LANGUAGE_MODEL])
    if problem:
        raise UserError(f"initialize: {folder}: {problem}.")
    return folder


def read_through(config: RunConfig) -> None:
    """Read validation and test sets once, so that a mistake in them shows before anything is made."""
    for files in [*([config.data.valid] if config.data.valid else []), *config.data.test.values()]:
        check_pairs(files)


def prepare_run(config: RunConfig, run: Run, objectives: list[Objective]) -> None:
    """Make this the directory of the run, with its vocabulary, encoded corpora and what the objectives need to know
    of them, or leave it as it was."""
    prepared = run.prepared
    before = run.config_file.read_text(encoding="utf-8") if prepared and run.config_file.exists() else None
    run.adopt(config)
    try:
        read_through(config)
        if config.initialize and not run.vocab.exists():
            with atomic_folder(run.vocab) as temporary:
                shutil.copytree(Run(config.initialize).vocab, temporary, dirs_exist_ok=True)
        prepare(config.data, run.path)
        prepared = True  # what was made is kept, whatever comes
        sizes = tuple(len(vocabulary) for vocabulary in run.vocabularies())
        make_statistics(objectives, Statistics(open_corpus(run.path, "train"), sizes))
    except UserError:
        if not prepared:
            run.clear()
        elif before is not None:
            write_atomically(run.config_file, before)
        raise
