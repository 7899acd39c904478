"""Micro-batches of one fixed shape, and batches that are built ahead of time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tasks import PIECES, WORLD, cbmi, random_corpus, write_run, write_task

from cbmi.config import OptimizerSettings
from cbmi.model import LanguageModel, Translator
from cbmi.model.layers import Shape
from cbmi.objectives import build
from cbmi.training import stage as stage_module
from cbmi.training.batching.builder import BatchBuilder, Segmentation
from cbmi.training.batching.loader import Loader
from cbmi.training.batching.micro_batch import Capacity, fill_sizes
from cbmi.training.graph import EagerSteps
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.stage_inputs import StageInputs
from cbmi.training.step import Stepper
from cbmi.training.world import World

SHAPE = Shape(16, 32, 2, 1, 1, 0.1, 0.1, 0.1)


@pytest.fixture
def corpus(tmp_path):
    return random_corpus(tmp_path)


def builder(corpus, accumulate=1, token_values=None, world=WORLD, groups=None):
    segmentation = Segmentation(corpus, token_values or {})
    return BatchBuilder([segmentation], 100, accumulate, 1, world, groups)


def steps(objective):
    torch.manual_seed(0)
    translator = Translator(SHAPE, PIECES, PIECES, shared=True)
    language_model = LanguageModel(SHAPE, PIECES)
    teacher = Translator(SHAPE, PIECES, PIECES, shared=True).eval().requires_grad_(False)
    optimizer = OptimizerSettings(warmup=0, peak_lr=1e-3)
    frozen = language_model.eval().requires_grad_(False) if objective.fusion else None
    learner = None if frozen else Learner(language_model, optimizer, WORLD, torch.float32)
    stage_inputs = StageInputs(frozen, teacher, torch.linspace(0.1, 3, PIECES))
    return EagerSteps(
        Stepper(
            objective,
            Learner(translator, optimizer, WORLD, torch.float32),
            learner,
            stage_inputs,
            0.1,
            torch.float32,
            WORLD,
            Meter(WORLD),
        )
    )


OBJECTIVES = [
    *({"name": name} for name in ("ce", "cbmi", "self-paced", "freq-exp", "bmi", "focal")),
    *({"name": name} for name in ("prior-selection", "lm-prior", "fusion-prenorm")),
    {"name": "cbmi", "shuffled": True},
    {"name": "cbmi", "std": "official"},
    {"name": "cbmi", "std": "official", "compare": "groups"},
    {"name": "freq-exp", "weight_drop": 0.3},
]


@pytest.mark.parametrize("settings", OBJECTIVES, ids=str)
def test_fillers_count_nowhere(corpus, settings):
    """Losses, gradients and figures of three steps, with dropout and several micro-batches each."""
    objective = build(settings, "test")
    token_values = (
        {"bmi": np.linspace(0, 2, len(corpus.target.ids))} if settings["name"] == "bmi" else {}
    )
    groups = 50 if "groups" in objective.needs() else None
    plan = builder(corpus, 2, token_values, groups=groups)
    results = []
    for capacity in (None, Capacity(80, 90, 30, 15)):
        runner = steps(objective)
        batches = plan.batches(0, 0, 1, capacity)
        for _ in range(3):
            batch = next(batches)
            if capacity:
                tables = [pinned.slices for pinned in batch.micro_batches]
                assert tables[0] == tables[1]
                assert all(pinned.filled for pinned in batch.micro_batches)
                assert tables[0]["target.ids"][2] == (90,)
            runner.stepper.prepare_update(1e-3)
            runner.compute(batch.micro_batches)
        stepper = runner.stepper
        norms = {key: float(norm) for key, norm in stepper.grad_norms.items()}
        results.append({**stepper.meter.read(), **stepper.meter.quantiles(), **norms})
    assert results[1] == pytest.approx(results[0], rel=1e-4)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=8),
    st.integers(0, 40),
    st.integers(1, 9),
)
def test_filling_up(pairs, room, longest):
    sizes = tuple(np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    filled = fill_sizes(*sizes, Capacity(room, room + 3, 12, longest))
    if filled is None:
        free = [room + 3 * side - sizes[side].sum() for side in (0, 1)]
        assert min(free) < 0 or max(free) > (12 - len(pairs)) * longest
        return
    for side, (old, new) in enumerate(zip(sizes, filled, strict=True)):
        assert new.sum() == room + 3 * side
        assert len(new) == 12
        assert (new[: len(old)] == old).all()
        assert new[len(old) :].max(initial=0) <= longest


def test_nearly_every_micro_batch_has_the_one_shape(corpus):
    plan = builder(corpus)
    capacity = plan.capacity(0)
    tables = [
        batch.micro_batches[0].slices
        for batch, _ in zip(plan.batches(0, 0, 1, capacity), range(40), strict=False)
    ]
    assert sum(table == tables[0] for table in tables) >= 38  # later epochs may have a larger batch


@pytest.mark.slow
def test_a_resumed_stage_has_the_shape_it_began_with(tmp_path, monkeypatch):
    """As on a GPU, where a graph has one shape: other shapes would round differently."""
    write_task(tmp_path, train=400, valid=5)
    used = []
    of_epoch = []
    make = BatchBuilder.batches

    def batches(builder, epoch, batch, step, capacity):
        used.append(capacity)
        of_epoch.append(builder.capacity(epoch))
        return make(builder, epoch, batch, step, capacity)

    monkeypatch.setattr(BatchBuilder, "batches", batches)
    monkeypatch.setattr(stage_module, "GraphSteps", EagerSteps)
    monkeypatch.setattr(stage_module, "can_use_graph", lambda live, longest: True)
    for steps in (5, 20, 40):
        stages = [{"name": "first", "steps": 7}, {"name": "second", "steps": steps}]
        path = write_run(
            tmp_path, stages=stages, batch={"tokens": 800}, validate={"every": 100, "beam": 0}
        )
        assert cbmi("train", path).returncode == 0
    first, second, *later = used
    assert (first, second) == tuple(of_epoch[:2])
    assert later == [second, second]
    assert set(of_epoch[2:]) != {second}  # or this would say nothing


def test_batches_can_be_resumed_at_any_place(corpus):
    """The same micro-batches, seeds included, however far a run had got before."""
    plan = builder(corpus)
    whole = [batch for batch, _ in zip(plan.batches(0, 0, 1, None), range(30), strict=False)]
    for start in (1, 7, 20):
        before = whole[start - 1]
        again = plan.batches(before.next_epoch, before.next_batch, start + 1, None)
        for batch, other in zip(whole[start : start + 8], again, strict=False):
            ours, theirs = (
                one.micro_batches[0].views(one.micro_batches[0].memory) for one in (batch, other)
            )
            assert all(torch.equal(ours[key], theirs[key]) for key in {**ours, **theirs})
            assert batch.next_epoch == other.next_epoch
            assert batch.next_batch == other.next_batch
            assert batch.work == other.work
    seeds = {
        tuple(one.micro_batches[0].to_device(WORLD.device).dropout_seed.tolist()) for one in whole
    }
    assert len(seeds) == 30


def test_ranks_draw_dropout_apart_and_the_rest_alike(corpus):
    micro_batches = []
    for rank in (0, 1):
        world = World(rank, 2, torch.device("cpu"))
        batch = next(builder(corpus, world=world).batches(0, 0, 1, None))
        micro_batches.append(batch.micro_batches[0].to_device(world.device))
    first, second = micro_batches
    assert not torch.equal(first.dropout_seed, second.dropout_seed)
    assert torch.equal(first.objective_seed, second.objective_seed)
    assert torch.equal(first.step_tokens, second.step_tokens)
    assert first.step_tokens == len(first.target.ids) + len(second.target.ids)


def test_the_loader_keeps_the_order_and_passes_errors_on():
    def items():
        yield from range(10)
        raise ValueError("broken")

    with Loader(items(), ahead=3) as loader:
        assert [loader.next() for _ in range(10)] == list(range(10))
        with pytest.raises(ValueError, match="broken"):
            loader.next()
