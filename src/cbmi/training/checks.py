"""What is checked before anything is made: files, stages, the run to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cbmi.config import RunSettings, StageSettings
from cbmi.data.bmi import scipy_sparse
from cbmi.data.text import check_pairs, no_pairs
from cbmi.errors import UserError
from cbmi.evaluation.metrics import sacrebleu_metrics
from cbmi.objectives import NEEDS, Objective, build
from cbmi.progress import counted
from cbmi.schema import check
from cbmi.training.belonging import SIZES, check_belongs
from cbmi.training.checkpoint import LANGUAGE_MODEL, TRANSLATOR, damage, read_state
from cbmi.training.fitting import NO_DECAY, ends_in_warmup, fit_to_corpus
from cbmi.training.run import RunDirectory
from cbmi.training.stage_inputs import weights_file
from cbmi.training.trackers import check_trackers

PUBLIC_GROUPS = 4096  # tokens of a group in the paper's public code


def complete_settings(config: RunSettings, restart: bool = False) -> RunSettings:
    """The settings, with defaults that depend on other settings filled in.

    What fits the corpus is chosen by its size. A language model that an objective needs is frozen
    unless the stage says otherwise. Groups that it compares are the public code's. A run that
    starts from another has its vocabulary. `restart`: as in `fit_to_corpus`.
    """
    config = fit_to_corpus(config, restart).config
    # What was chosen may contradict what was given.
    check(RunSettings, config.plain(), "with what the run file leaves out")
    stages = []
    for stage in config.stages:
        needs = build(stage.objective, f"stages.{stage.name}.objective").needs()
        changes: dict[str, Any] = {}
        if stage.language_model is None:
            changes["language_model"] = "frozen" if "lm" in needs else "off"
        if stage.groups is None and "groups" in needs:
            changes["groups"] = PUBLIC_GROUPS
        stages.append(stage.model_copy(update=changes))
    config = config.model_copy(update={"stages": tuple(stages)})
    if config.initialize is None or "vocabulary" in config.data.model_fields_set:
        return config
    own = RunDirectory(config.output)
    known = own if own.config_file.exists() else RunDirectory(config.initialize)
    # Its files are not needed any more: the run has a copy.
    without_files = {"model": None, "source": None, "target": None}
    vocabulary = known.config().data.vocabulary.model_copy(update=without_files)
    data = config.data.model_copy(update={"vocabulary": vocabulary})
    return config.model_copy(update={"data": data})


def check_run(config: RunSettings) -> list[Objective]:
    """The stages' objectives, once files, extras and stages have been checked."""
    check_files(config)
    check_trackers(config.log.trackers)
    if config.data.test or (config.data.valid and config.validate_.beam):
        sacrebleu_metrics()
    return check_stages(config)


def looks_at_data(run: RunDirectory, strict: bool) -> bool:
    """Whether the training text is looked at: before it is prepared, and whenever asked to."""
    return strict or not (run.data / "train").exists()


def check_files(config: RunSettings) -> None:
    """Refuse files that do not exist."""
    data = config.data
    paths = [*data.train_files(), *(data.valid or ()), *(data.vocabulary.files() or ())]
    for files in data.test.values():
        paths += files
    for path in paths:
        if not Path(path).is_file():
            exists = Path(path).exists()
            problem = "this is not an ordinary file" if exists else "there is no such file"
            raise UserError(f"{path}: {problem}.")


def check_texts(config: RunSettings) -> None:
    """Read validation and test sets once: mistakes in them show before anything is made."""
    groups = {f"data.test.{name}": files for name, files in config.data.test.items()}
    if config.data.valid:
        groups["data.valid"] = config.data.valid
    for key, files in groups.items():
        if check_pairs(files, config.data.languages) == 0:
            problem = no_pairs(files, config.data.languages)
            raise UserError(f"{key}: {' and '.join(files)}: {problem}.")


def check_stages(config: RunSettings) -> list[Objective]:
    """The stages' objectives, once it is sure that each gets what it needs."""
    if config.validate_.patience and not config.data.valid:
        raise UserError("validate.patience needs a validation set: give data.valid.")
    objectives = []
    has_language_model = _starts_with_language_model(config)
    for number, stage in enumerate(config.stages):
        objective = build(stage.objective, f"stages.{stage.name}.objective")
        _check_stage(stage, objective, untrained=number == 0 and config.initialize is None)
        _check_schedule(config, number)
        _check_weights_of_tokens(config, number, objective)
        step_tokens = config.batch.tokens * config.batch.accumulate
        check_groups(stage.groups, step_tokens, f"stages.{stage.name}")
        if stage.language_model in ("frozen", "cached") and not has_language_model:
            others = "no earlier stage"
            if config.initialize:
                others = f"neither an earlier stage nor {config.initialize}"
            raise UserError(
                f"stages.{stage.name}: a {stage.language_model} language model is needed, but "
                f"{others} has trained one: give an earlier stage language_model: train."
            )
        if stage.language_model in ("train", "joint"):
            has_language_model = True
        objectives.append(objective)
    return objectives


def check_groups(groups: int | None, step_tokens: int, where: str) -> None:
    """Refuse steps that cannot be made of groups."""
    if groups is not None and step_tokens % groups:
        raise UserError(
            f"{where}: steps of {step_tokens:,} tokens cannot be made of groups of {groups:,}: "
            "give batch.tokens a multiple of that, or set the stage's groups."
        )


def _check_schedule(config: RunSettings, number: int) -> None:
    """Refuse a stage that ends before the learning rate can fall."""
    stage = config.stages[number]
    settings = config.optimizer
    if settings.schedule != NO_DECAY and ends_in_warmup(config, number):
        raise UserError(
            f"stages.{stage.name}: it ends after {counted(stage.steps, 'step')}, within the "
            f"warm-up of {settings.warmup:,}, so schedule: {settings.schedule} could not decay: "
            "lower optimizer.warmup, give the stage more steps, or set its restart_optimizer: "
            "false or optimizer.schedule: inverse-sqrt."
        )


def _starts_with_language_model(config: RunSettings) -> bool:
    own = RunDirectory(config.output)
    weights = f"{LANGUAGE_MODEL}.safetensors"
    # What it starts from matters only until it has begun.
    if config.initialize and not own.begun:
        return (starting_point(config) / weights).exists()
    return any(own.checkpoints.glob(f"step-*/{weights}"))


def _check_stage(stage: StageSettings, objective: Objective, untrained: bool) -> None:
    """Refuse a stage that does not give its objective what it needs.

    `untrained`: the stage starts from untrained networks.
    """
    where = f"stages.{stage.name}"
    named = f"objective '{stage.objective['name']}'"
    needs = objective.needs()
    if "lm" in needs and stage.language_model == "off":
        choices = "frozen" if objective.fusion else "frozen, cached or joint"
        raise UserError(
            f"{where}: {named} needs a language model: give this stage language_model: {choices}."
        )
    needs_distributions = objective.fusion is not None or "distribution" in needs
    if stage.language_model == "cached" and "lm" in needs and needs_distributions:
        raise UserError(
            f"{where}: {named} needs the language model's whole distributions, but a cache holds "
            "only those of the gold tokens: set language_model: frozen."
        )
    if stage.language_model == "cached" and "lm-dropout" in needs:
        raise UserError(
            f"{where}: {named} needs {NEEDS['lm-dropout']}, and cached scores have none: set "
            "language_model: frozen."
        )
    if objective.fusion and stage.language_model != "frozen":
        raise UserError(
            f"{where}: {named} needs a frozen language model: set language_model: frozen."
        )
    if "teacher" in needs and untrained:
        raise UserError(
            f"{where}: {named} needs a translator to learn from: put a stage before it, or set "
            "initialize: RUN."
        )
    if "bmi" in needs:
        scipy_sparse()
    if "weights" in needs:
        file = weights_file(objective).file
        if not Path(file).is_file():
            raise UserError(f"{where}.objective.file: {file}: there is no such file.")


def _check_weights_of_tokens(config: RunSettings, number: int, objective: Objective) -> None:
    """Refuse weights of tokens where a target has several segmentations."""
    segmentations = config.data.segmentations
    if "weights" not in objective.needs() or segmentations is None:
        return
    if weights_file(objective).per == "token" and segmentations.sides != "source":
        raise UserError(
            f"stages.{config.stages[number].name}.objective.per: weights of tokens belong to one "
            "segmentation, but data.segmentations samples several of each target: use per: pair, "
            "or segmentations.sides: source."
        )


def starting_point(config: RunSettings) -> Path:
    """The checkpoint that `initialize` names: the best of that run."""
    if config.initialize is None:
        raise ValueError("the run starts from scratch")
    run = RunDirectory(config.initialize)
    theirs = run.config()
    if not run.best.exists():
        reason = "no checkpoint yet"
        if run.begun:
            reason = "its best checkpoint is missing; cbmi train chooses another"
        raise UserError(f"initialize: {run.path} cannot be started from: {reason}.")
    for name in SIZES:
        own_size = getattr(config.model, name)
        their_size = getattr(theirs.model, name)
        if own_size != their_size:
            raise UserError(
                f"initialize: {run.path} has model.{name} {their_size}, but this run has "
                f"{own_size}."
            )
    ours = config.data.vocabulary
    other = theirs.data.vocabulary
    are_learnt = ours.files() is None and other.files() is None
    if ours.shared != other.shared or (are_learnt and ours.size != other.size):
        raise UserError(f"initialize: {run.path} has another data.vocabulary than this run.")
    folder = run.best.resolve()
    problem = damage(folder, [TRANSLATOR, LANGUAGE_MODEL])
    if problem:
        raise UserError(f"initialize: {folder}: {problem}.")
    check_belongs(run, theirs, read_state(folder).made_with, folder, data=False)
    return folder
