"""The weight that an objective gives to every token of the training text, or of another: to look
at, or to train with elsewhere.

The translator is the run's best, without dropout; mini-batches are those of the run's first epoch,
or of another text's if the run were trained on it. As text there is one line per line of the text,
with one value per target piece, end of sentence included. A line that preparation leaves out has
the single value 1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor

from cbmi.data.corpus import Corpus, new_array
from cbmi.data.prepare import encode, open_corpus, open_training_corpora
from cbmi.data.statistics import Statistics
from cbmi.errors import UserError
from cbmi.inference.model import TrainedModel
from cbmi.objectives import NEEDS, Objective, build
from cbmi.objectives.base import join
from cbmi.progress import bar, counted, say
from cbmi.training import checkpoint as store
from cbmi.training.batching.micro_batch import (
    MicroBatch,
    StepInfo,
    make_micro_batch,
)
from cbmi.training.batching.plan import EpochPlan, split
from cbmi.training.checks import PUBLIC_GROUPS
from cbmi.training.scores import dropout_samples, token_scores
from cbmi.training.seeds import seed_for
from cbmi.training.stage_inputs import (
    StageInputs,
    boundaries_of_words,
    dropout_sample_count,
    frequency_of_pieces,
    values_of_tokens,
)


class WeightedText(NamedTuple):
    """The text whose tokens are weighted."""

    corpus: Corpus
    trained_on: list[Corpus]  # what pieces are counted in


class TextWeights(NamedTuple):
    corpus: Corpus
    values: np.ndarray  # (target tokens of the corpus,), by memory map


def text_weights(
    model: TrainedModel, name: str, settings: Mapping[str, Any], files: tuple[str, ...] | None
) -> Iterator[np.ndarray]:
    """One array of weights per line of the files, or else of the training text."""
    choice = {**objective_choice(model, name, settings), **settings}
    with tempfile.TemporaryDirectory() as folder:
        yield from by_line(compute_weights(model, choice, files, Path(folder)))


def _open_text(model: TrainedModel, files: tuple[str, ...] | None, folder: Path) -> WeightedText:
    """The run's training text; or these files, encoded into `folder` in the plain segmentation."""
    if files is None:
        return WeightedText(open_corpus(model.path, "train"), open_training_corpora(model.path))
    place = folder / "text"
    data = model.config.data
    vocabularies = (model.source, model.target)
    encode([files], model.languages, vocabularies, place, data.max_length, data.drop_copies)
    corpus = Corpus(place)
    return WeightedText(corpus, [corpus])


def objective_choice(model: TrainedModel, name: str, settings: Iterable[str]) -> dict[str, Any]:
    """What the run's last stage with an objective says of it.

    If `settings` (keys, or key=value) name a preset, its name alone: a preset stands for all.
    """
    if any(setting.partition("=")[0] == "preset" for setting in settings):
        return {"name": name}
    return model.config.objective(name)


def write_weights(
    model: TrainedModel,
    choice: dict[str, Any],
    files: tuple[str, ...] | None,
    output: TextIO,
    folder: Path,
) -> None:
    """The weights of the files, or else of the training text, as text. They wait in `folder`."""
    weights = compute_weights(model, choice, files, folder)
    for line in by_line(weights):
        output.write(" ".join(f"{value:.6g}" for value in line) + "\n")
    mean = weights.values.mean(dtype=float)
    tokens = counted(len(weights.values), "target token")
    pairs = counted(len(weights.corpus), "pair")
    say(f"Weighted {tokens} of {pairs}; mean weight {mean:.3f}")


def compute_weights(
    model: TrainedModel, choice: dict[str, Any], files: tuple[str, ...] | None, folder: Path
) -> TextWeights:
    """The weights of the files, or else of the training text; they are kept in `folder`."""
    name = choice["name"]
    objective = build(choice, f"objective '{name}'")
    if type(objective).weights is Objective.weights:
        raise UserError(f"objective '{name}' has no weights to write: its w is 1 for every token.")
    needs = objective.needs()
    for need in ("teacher", "distribution"):
        if need in needs:
            raise UserError(
                f"objective '{name}' needs {NEEDS[need]}, which exists only in training."
            )
    stage = model.config.last_stage_with(name)
    groups = stage.groups if stage else None
    step_tokens = store.read_state(model.folder).step_tokens
    if groups is None and "groups" in needs:
        groups = PUBLIC_GROUPS
        if step_tokens % groups:
            raise UserError(
                f"objective '{name}' compares groups of {groups:,} tokens, as the public code "
                f"does, but this run's steps have {step_tokens:,}: set compare to batch or lengths."
            )
    with model.run.lock():
        text = _open_text(model, files, folder)
        corpus = text.corpus
        sizes = (len(model.source), len(model.target))
        inputs = StageInputs(
            frozen=model.language_model() if "lm" in needs else None,
            frequency=frequency_of_pieces(
                objective, [Statistics(one, sizes) for one in text.trained_on], model.device
            ),
            boundaries=_boundaries(model) if "words" in needs else None,
        )
        token_values = values_of_tokens(objective, Statistics(corpus, sizes))
    weights = new_array(folder / "weights", np.dtype(np.float32), len(corpus.target.ids), 1.0)
    with bar("Weighting", len(weights), "tokens") as progress:
        for parts in mini_batches(model, corpus, groups):
            micro_batches = [
                make_micro_batch(corpus, part.pairs, part.info, token_values, model.device)
                for part in parts
            ]
            places, values = _weights_of_batch(model, objective, inputs, micro_batches)
            weights[places.cpu().numpy()] = values.float().cpu().numpy()
            progress.advance(len(places))
    return TextWeights(corpus, weights)


def _boundaries(model: TrainedModel) -> Tensor:
    return boundaries_of_words(model.target, model.device)


class Part(NamedTuple):
    """What is scored at a time."""

    pairs: np.ndarray
    info: StepInfo


def mini_batches(
    model: TrainedModel, corpus: Corpus, groups: int | None = None
) -> Iterator[list[Part]]:
    """Mini-batches as in the run's first epoch, each pair once whatever the weights of corpora.

    `groups`: tokens of those they are made of.
    """
    batch = model.config.batch
    seed = model.config.seed
    step_tokens = store.read_state(model.folder).step_tokens
    plan = EpochPlan(corpus.lengths(), step_tokens, seed, 0, groups)
    for number in range(len(plan)):
        pairs = plan[number]
        made_of = plan.groups(number)
        lengths = corpus.target.lengths[pairs]
        parts = []
        for place, share in enumerate(split(lengths, -(-step_tokens // batch.tokens))):
            info = StepInfo(
                longest=int(lengths.max()),
                groups=made_of.select(share) if made_of else None,
                dropout_seed=seed_for(seed, "weights", number, place),
                objective_seed=seed_for(seed, "weights", number) >> 2,
            )
            parts.append(Part(pairs[share], info))
        yield [part for part in parts if len(part.pairs)]


@torch.inference_mode()
def _weights_of_batch(
    model: TrainedModel,
    objective: Objective,
    inputs: StageInputs,
    micro_batches: Sequence[MicroBatch],
) -> tuple[Tensor, Tensor]:
    """Corpus indices and weights of a mini-batch's tokens, as in training but without dropout."""
    scores = []
    masks = dropout_sample_count(objective)
    for micro_batch in micro_batches:
        gold = micro_batch.target.ids
        found = model.gold_scores(inputs.frozen, micro_batch.source, micro_batch.inputs, gold)
        samples = None
        if masks:
            samples = dropout_samples(model.translator.train(), micro_batch, masks)
            model.translator.eval()
        scores.append(
            token_scores(
                micro_batch,
                nmt=found.nmt,
                mean=found.mean,
                lm=found.lm,
                frequency=inputs.frequency,
                boundaries=inputs.boundaries,
                samples=samples,
            )
        )
    together = join(scores)
    weights = objective.weights(together)
    assert weights is not None
    return together.corpus_index, weights


def by_line(weights: TextWeights) -> Iterator[np.ndarray]:
    """One array per line of the text."""
    corpus = weights.corpus
    offsets = corpus.target.offsets
    lines_of_text = corpus.lines_of_text()
    pair = 0
    for line in range(corpus.text_lines):
        if pair < len(corpus) and lines_of_text[pair] == line:
            yield np.array(weights.values[offsets[pair] : offsets[pair + 1]])
            pair += 1
        else:
            yield np.ones(1, np.float32)
