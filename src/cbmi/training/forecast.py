"""What training would do, and how long it may take: `cbmi train --dry-run`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import torch

from cbmi.config import RunSettings
from cbmi.data.corpus import read_meta
from cbmi.data.foreign_vocabulary import import_vocabulary
from cbmi.data.languages import remarks_on
from cbmi.data.text import check_pairs, no_pairs
from cbmi.errors import UserError
from cbmi.objectives import build
from cbmi.progress import clock, counted
from cbmi.training import checkpoint as store
from cbmi.training.checks import check_run, check_texts, complete_settings, looks_at_data
from cbmi.training.fitting import choices_for
from cbmi.training.networks import new_translator
from cbmi.training.run import RunDirectory
from cbmi.training.work import Work, language_model_flops, matrix_rate, passes, translator_flops
from cbmi.training.world import choose_device, choose_precision

USUAL_MFU = 0.3  # of a step, where nothing has shown how fast this machine is
USUAL_LENGTH = 27  # pieces per sentence


def training_flops(config: RunSettings, stages: Collection[str]) -> float:
    """Operations of training these stages, with sentences of usual length and every step full."""
    total = 0.0
    for stage in config.stages:
        if stage.name in stages:
            total += stage.steps * _flops_of_step(config, stage.name)
    return total


def _flops_of_step(config: RunSettings, name: str) -> float:
    stage = next(stage for stage in config.stages if stage.name == name)
    tokens = config.batch.tokens * config.batch.accumulate
    squares = tokens * USUAL_LENGTH  # a sum over sentences of their squared lengths
    work = Work(
        source=tokens,
        target=tokens,
        source_squares=squares,
        target_squares=squares,
        products=squares,
    )
    pieces = _pieces(config)[1]
    count = passes(stage.language_model, build(stage.objective, stage.name), config.r_drop)
    of_translator = count.translator * translator_flops(work, config.model, pieces)
    of_language_model = count.language_model * language_model_flops(work, config.model, pieces)
    return of_translator + of_language_model


def _pieces(config: RunSettings) -> tuple[int, int]:
    """The sizes of the source and of the target vocabulary."""
    vocabulary = config.data.vocabulary
    files = vocabulary.files()
    if files is None or not all(Path(file).is_file() for file in files):
        return vocabulary.size, vocabulary.size
    sizes = [len(import_vocabulary(Path(file))) for file in files]
    return sizes[0], sizes[-1]


def usual_rate(device: torch.device, precision: torch.dtype) -> float:
    """Operations per second that training usually does on a device."""
    return matrix_rate(device, precision) * USUAL_MFU


class _Standing(NamedTuple):
    """Where a run stands, in words, and how much of it is left."""

    text: str
    stage: int
    stage_step: int
    stage_over: bool = False


def describe_run(config: RunSettings, strict: bool = False) -> str:
    """What `cbmi train` would do with these settings. Nothing is written.

    `strict`: refuse data that look wrong.
    """
    chosen = choices_for(config)
    config = complete_settings(config)
    check_run(config)
    check_texts(config)
    run = RunDirectory(config.output)
    if run.config_file.exists():
        run.check_changes(config)
    device = choose_device(config.device)
    rate = usual_rate(device, choose_precision(config.precision, device))
    standing = _standing(run, config.validate_.patience)
    rows = [("run", f"{run.path}: {standing.text}"), ("data", _data(config, run))]
    rows.append(("model", _model(config)))
    total = 0.0
    for number, stage in enumerate(config.stages):
        done = 0
        if number < standing.stage or (number == standing.stage and standing.stage_over):
            done = stage.steps
        elif number == standing.stage:
            done = min(standing.stage_step, stage.steps)
        seconds = (stage.steps - done) * _flops_of_step(config, stage.name) / rate
        total += seconds
        left = f"about {clock(seconds)}" if done < stage.steps else "done"
        stage_text = f"{stage.name}: {stage.objective['name']}"
        if stage.language_model != "off":
            stage_text += f" (language_model: {stage.language_model})"
        rows.append(("stage", f"{stage_text}, {counted(stage.steps, 'step')}: {left}"))
    tokens = config.batch.tokens * config.batch.accumulate
    rows.append(("steps", f"{tokens:,} tokens each, validated every {config.validate_.every:,}"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    rows.append(("time", f"about {clock(total)} on one {name}, a rough guess from its speed"))
    if chosen:
        rows.append(("note", chosen))
    if looks_at_data(run, strict):
        rows += [("note", remark) for remark in remarks_on(config.data, strict)]
    return "\n".join(f"{key:6} {text}" for key, text in rows)


def _standing(run: RunDirectory, patience: int) -> _Standing:
    states = list(store.states_of(run.checkpoints).values()) if run.begun else []
    if states:
        newest = states[-1]
        over = newest.ended_early(patience)
        text = f"resumes at step {newest.step:,}"
        return _Standing(text, newest.stage, newest.stage_step, over)
    if run.begun:
        return _Standing("has checkpoints that cannot be read", 0, 0)
    text = "the data are prepared, training starts" if run.prepared else "starts from scratch"
    return _Standing(text, 0, 0)


def _data(config: RunSettings, run: RunDirectory) -> str:
    data = config.data
    if (run.data / "train").exists():
        pairs = read_meta(run.data / "train").pairs
        return f"{counted(pairs, 'prepared pair')}, {data.source}→{data.target}"
    pairs = sum(check_pairs(corpus.files, data.languages) for corpus in data.train)
    if not pairs:
        problem = no_pairs(data.train[0].files, data.languages)
        raise UserError(f"data.train: {' and '.join(data.train_files())}: {problem}.")
    files = data.vocabulary.files()
    at_most = "" if "size" in data.vocabulary.model_fields_set else "up to "
    vocabulary = f"{at_most}{data.vocabulary.size:,} pieces to be learnt"
    if files is not None:
        vocabulary = " and ".join(files)
    if config.initialize:
        vocabulary = f"that of {config.initialize}"
    found = counted(pairs, "pair")
    return f"{found} to be encoded, {data.source}→{data.target}; vocabulary: {vocabulary}"


def _model(config: RunSettings) -> str:
    model = config.model
    with torch.device("meta"):  # shapes without memory
        network = new_translator(config, _pieces(config))
    weights = sum(parameter.numel() for parameter in network.parameters())
    return (
        f"{model.encoder_layers} + {model.decoder_layers} layers, {model.width} wide, "
        f"{weights / 1e6:,.0f} million weights; dropout {model.dropout}"
    )
