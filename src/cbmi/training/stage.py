"""A stage under way: what its objective needs, its batches, its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cbmi.config import StageSettings
from cbmi.data.corpus import Corpus
from cbmi.data.prepare import vocabulary_files
from cbmi.data.statistics import Statistics
from cbmi.model import kernels
from cbmi.model.attention import LARGEST_FUSED_HEAD
from cbmi.model.layers import POSITIONS
from cbmi.objectives import Objective
from cbmi.training.batching.builder import Batch, BatchBuilder, Segmentation
from cbmi.training.batching.loader import Loader
from cbmi.training.batching.mixing import mixing_of
from cbmi.training.cache import LanguageModelScorer, ScoreCache, fill_cache
from cbmi.training.graph import EagerSteps, GraphSteps
from cbmi.training.live_run import LiveRun
from cbmi.training.log import Meter
from cbmi.training.schedule import Place, learning_rate
from cbmi.training.stage_inputs import (
    StageInputs,
    boundaries_of_words,
    frequency_of_pieces,
    values_of_tokens,
)
from cbmi.training.step import Stepper
from cbmi.training.work import Throughput, matrix_rate, passes


class StageSession:
    """Takes a stage forward, step by step."""

    def __init__(
        self,
        live: LiveRun,
        stage: StageSettings,
        stepper: Stepper,
        steps: EagerSteps,
        loader: Loader[Batch],
        throughput: Throughput,
    ) -> None:
        self.state = live.state
        self.optimizer_settings = live.config.optimizer
        self.stage_steps = stage.steps
        self.stepper = stepper
        self.steps = steps
        self.loader = loader
        self.throughput = throughput

    def step(self) -> None:
        """Train on the next batch."""
        batch = self.loader.next()
        state = self.state
        state.epoch = batch.next_epoch
        state.batch = batch.next_batch
        state.step += 1
        state.stage_step += 1
        state.schedule_step += 1
        self.stepper.prepare_update(self.learning_rate())
        self.steps.compute(batch.micro_batches)
        self.throughput.add(batch.work)

    def learning_rate(self) -> float:
        """That of the current step."""
        place = Place(self.state.schedule_step, self.state.stage_step, self.stage_steps)
        return learning_rate(place, self.optimizer_settings)

    def read_throughput(self) -> dict[str, float]:
        """Speed since the last reading, for the log."""
        return self.throughput.read(self.loader.take_seconds_waited())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in the block does not count as training time."""
        begun = time.monotonic()
        yield
        self.throughput.pause(time.monotonic() - begun)


@contextmanager
def open_stage(
    live: LiveRun,
    stage: StageSettings,
    objective: Objective,
    statistics: Sequence[Statistics],
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> Iterator[StageSession]:
    """A stage, ready to be trained from where the run's state stands.

    `statistics`: of each segmentation that epochs are trained on in turn.
    """
    config = live.config
    world = live.world
    live.set_language_model_mode(stage)
    live.translator.network.train()
    live.state.fusion = objective.fusion
    stage_inputs = _stage_inputs(live, stage, objective, statistics)
    segmentations = _segmentations(live, stage, objective, statistics, asked_to_stop)
    builder = _batch_builder(live, stage, segmentations)
    stepper = Stepper(
        objective=objective,
        translator=live.translator,
        language_model=live.language_model_learner,
        stage_inputs=stage_inputs,
        smoothing=config.label_smoothing,
        precision=live.precision,
        world=world,
        meter=Meter(world),
        r_drop=config.r_drop,
        head_tokens=config.memory.head_tokens,
    )
    longest = max(int(one.lengths.max()) for one in segmentations)
    use_graph = can_use_graph(live, longest)
    throughput = Throughput(
        config.model,
        live.sizes[1],
        passes(stage.language_model, objective, config.r_drop),
        matrix_rate(world.device, live.precision) * world.size,
    )
    state = live.state
    # A graph needs one shape; a resumed stage must have the one it began with.
    capacity = builder.capacity(state.stage_epoch) if use_graph else None
    batches = builder.batches(state.epoch, state.batch, state.step + 1, capacity)
    with Loader(batches) as loader:
        steps = GraphSteps(stepper) if use_graph else EagerSteps(stepper)
        yield StageSession(live, stage, stepper, steps, loader, throughput)


def can_use_graph(live: LiveRun, longest: int) -> bool:
    """Whether steps are replayed from a CUDA graph.

    Not with several processes, nor with the loss scaling of fp16, nor where a layer has no fused
    kernel, nor with sentences longer than the stored sinusoids.
    """
    model = live.config.model
    wanted = live.config.compile == "auto" and live.world.device.type == "cuda"
    fused = kernels.available() and model.width // model.heads <= LARGEST_FUSED_HEAD
    one_process = live.world.size == 1
    positions_stored = longest <= POSITIONS
    return (
        wanted and fused and one_process and positions_stored and live.precision == torch.bfloat16
    )


def _batch_builder(
    live: LiveRun, stage: StageSettings, segmentations: Sequence[Segmentation], mix: bool = True
) -> BatchBuilder:
    """`mix`: whether an epoch has the pairs of corpora as often as their weights say."""
    mixing = mixing_of(segmentations[0].corpus.meta, live.config.data) if mix else None
    return BatchBuilder(
        segmentations=segmentations,
        step_tokens=live.state.step_tokens,
        accumulate=live.accumulate,
        seed=live.config.seed,
        world=live.world,
        group_tokens=stage.groups,
        mixing=mixing,
    )


def _stage_inputs(
    live: LiveRun, stage: StageSettings, objective: Objective, statistics: Sequence[Statistics]
) -> StageInputs:
    frozen = live.language_model if stage.language_model == "frozen" else None
    if frozen is not None and "lm-dropout" in objective.needs():
        frozen.train()
    return StageInputs(
        frozen=frozen,
        teacher=live.teacher(stage) if "teacher" in objective.needs() else None,
        frequency=frequency_of_pieces(objective, statistics, live.world.device),
        boundaries=_boundaries(live, objective),
    )


def _boundaries(live: LiveRun, objective: Objective) -> Tensor | None:
    if "words" not in objective.needs():
        return None
    return boundaries_of_words(live.run.vocabularies()[1], live.world.device)


def _segmentations(
    live: LiveRun,
    stage: StageSettings,
    objective: Objective,
    statistics: Sequence[Statistics],
    asked_to_stop: Callable[[], bool],
) -> list[Segmentation]:
    """Each with what is known of its tokens beforehand."""
    token_values = [values_of_tokens(objective, one) for one in statistics]
    segmentations = []
    for one, values in zip(statistics, token_values, strict=True):
        segmentations.append(Segmentation(one.corpus, values))
    if stage.language_model == "cached":
        corpora = [one.corpus for one in statistics]
        if all(corpus.target is corpora[0].target for corpus in corpora):
            # One target: there is one segmentation, or the source alone is sampled.
            folder = live.run.cache / stage.name
            scores = _cached_scores(live, stage, corpora[0], folder, asked_to_stop)
            for known in token_values:
                known["lm"] = scores
        else:
            for number in _segmentations_ahead(live, stage, segmentations):
                folder = live.run.cache / stage.name / str(number)
                scores = _cached_scores(live, stage, corpora[number], folder, asked_to_stop)
                token_values[number]["lm"] = scores
    return segmentations


def _segmentations_ahead(
    live: LiveRun, stage: StageSettings, segmentations: Sequence[Segmentation]
) -> list[int]:
    """The numbers of those that the rest of the stage will use."""
    state = live.state
    builder = _batch_builder(live, stage, segmentations)
    steps = stage.steps - state.stage_step
    return sorted(builder.segmentations_of(state.epoch, state.batch, steps))


def _cached_scores(
    live: LiveRun,
    stage: StageSettings,
    corpus: Corpus,
    folder: Path,
    asked_to_stop: Callable[[], bool],
) -> np.ndarray:
    """log p_LM of every target token of the corpus."""
    language_model = live.require_language_model()
    cache = ScoreCache(folder, corpus, stage.cache_precision)
    identity = {}
    if live.world.first:
        shared = live.config.data.vocabulary.shared
        vocabulary = vocabulary_files(live.run.vocab, shared)[1]
        identity = cache.identity(language_model, vocabulary, live.precision)
    builder = _batch_builder(live, stage, [Segmentation(corpus, {})], mix=False)
    scorer = LanguageModelScorer(language_model, live.precision, live.world, asked_to_stop)
    # Batches round differently: a cache that is made again has those that it was first made over.
    return fill_cache(cache, identity, scorer, builder, live.state.stage_epoch)
