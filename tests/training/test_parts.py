"""Parts of one fixed shape, and batches that are made ready beforehand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tasks import cbmi, write_run, write_task

from cbmi.config import Optimizer
from cbmi.data.corpus import Corpus
from cbmi.model import LanguageModel, Translator
from cbmi.model.layers import Shape
from cbmi.objectives import build
from cbmi.training import trainer
from cbmi.training.graph import PlainSteps
from cbmi.training.learner import Learner
from cbmi.training.loader import Loader, Recipe
from cbmi.training.log import Meter
from cbmi.training.part import Capacity, fill
from cbmi.training.step import Stepper
from cbmi.training.supply import Supply
from cbmi.training.world import World

WORLD = World(0, 1, torch.device("cpu"))
SHAPE = Shape(16, 32, 2, 1, 1, 0.1, 0.1, 0.1)
PIECES = 60


@pytest.fixture
def corpus(tmp_path):
    random = np.random.default_rng(0)
    lengths = {"source": random.integers(1, 12, 90), "target": random.integers(1, 15, 90)}
    for name, sizes in lengths.items():
        random.integers(4, PIECES, sizes.sum()).astype(np.uint16).tofile(tmp_path / f"{name}.ids")
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64).tofile(tmp_path / f"{name}.offsets")
    np.arange(90).tofile(tmp_path / "lines")
    tokens = {name: int(sizes.sum()) for name, sizes in lengths.items()}
    (tmp_path / "meta.json").write_text(json.dumps({"pairs": 90, "dtype": "uint16", "tokens": tokens}))
    return Corpus(tmp_path)


def recipe(corpus, accumulate=1, numbers=None, world=WORLD):
    return Recipe(corpus, corpus.lengths(), 100, accumulate, 1, world, numbers or {})


def steps(objective, numbers):
    torch.manual_seed(0)
    translator = Translator(SHAPE, PIECES, PIECES, shared=True)
    language_model = LanguageModel(SHAPE, PIECES)
    teacher = Translator(SHAPE, PIECES, PIECES, shared=True).eval().requires_grad_(False)
    optimizer = Optimizer(warmup=0, peak_lr=1e-3)
    frozen = language_model.eval().requires_grad_(False) if objective.fusion else None
    learner = None if frozen else Learner(language_model, optimizer, WORLD, torch.float32)
    supply = Supply(frozen, teacher, torch.linspace(0.1, 3, PIECES), numbers)
    return PlainSteps(
        Stepper(
            objective,
            Learner(translator, optimizer, WORLD, torch.float32),
            learner,
            supply,
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
    {"name": "freq-exp", "weight_drop": 0.3},
]


@pytest.mark.parametrize("settings", OBJECTIVES, ids=str)
def test_fillers_count_nowhere(corpus, settings):
    """Losses, gradients and figures of three steps, with dropout and several parts a step."""
    objective = build(settings, "test")
    numbers = {"bmi": np.linspace(0, 2, len(corpus.target.ids))} if settings["name"] == "bmi" else {}
    plan = recipe(corpus, 2, numbers)
    results = []
    for capacity in (None, Capacity(80, 90, 30, 15)):
        runner = steps(objective, numbers)
        batches = plan.batches(0, 0, 1, capacity)
        for step in (1, 2, 3):
            batch = next(batches)
            if capacity:
                tables = [parcel.table for parcel in batch.parts]
                assert tables[0] == tables[1]
                assert all(parcel.filled for parcel in batch.parts)
                assert tables[0]["target.ids"][2] == (90,)
            runner.stepper.schedule(step)
            runner.run(batch.parts)
        stepper = runner.stepper
        norms = {key: float(norm) for key, norm in stepper.norms.items()}
        results.append({**stepper.meter.read(), **stepper.meter.quantiles(), **norms})
    assert results[1] == pytest.approx(results[0], rel=1e-4)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=8), st.integers(0, 40), st.integers(1, 9))
def test_filling_up(pairs, room, longest):
    sizes = tuple(np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    filled = fill(sizes, Capacity(room, room + 3, 12, longest))
    if filled is None:
        free = [room + 3 * side - sizes[side].sum() for side in (0, 1)]
        assert min(free) < 0 or max(free) > (12 - len(pairs)) * longest
        return
    for side, (old, new) in enumerate(zip(sizes, filled, strict=True)):
        assert new.sum() == room + 3 * side
        assert len(new) == 12
        assert (new[: len(old)] == old).all()
        assert new[len(old) :].max(initial=0) <= longest


def test_nearly_every_part_has_the_one_shape(corpus):
    plan = recipe(corpus)
    capacity = plan.capacity(0)
    tables = [batch.parts[0].table for batch, _ in zip(plan.batches(0, 0, 1, capacity), range(40), strict=False)]
    assert sum(table == tables[0] for table in tables) >= 38  # later epochs may have a larger batch


def test_a_stage_goes_on_with_the_shape_it_began_with(tmp_path, monkeypatch):
    """As on a GPU, where a graph has one shape: steps rounded otherwise would not be those of an undisturbed run."""
    write_task(tmp_path, train=400, valid=5)
    used, of_epoch, make = [], [], Recipe.batches

    def batches(recipe, epoch, batch, step, capacity):
        used.append(capacity)
        of_epoch.append(recipe.capacity(epoch))
        return make(recipe, epoch, batch, step, capacity)

    monkeypatch.setattr(Recipe, "batches", batches)
    monkeypatch.setattr(trainer, "GraphSteps", PlainSteps)
    monkeypatch.setattr(trainer.Trainer, "_graphs", lambda self: True)
    for steps in (5, 20, 40):
        stages = [{"name": "first", "steps": 7}, {"name": "second", "steps": steps}]
        path = write_run(tmp_path, stages=stages, batch={"tokens": 800}, validate={"every": 100, "beam": 0})
        assert cbmi("train", path).returncode == 0
    first, second, *later = used
    assert (first, second) == tuple(of_epoch[:2])
    assert later == [second, second]
    assert set(of_epoch[2:]) != {second}  # or this would say nothing


def test_batches_go_on_from_any_place(corpus):
    """The same parts, seeds included, however far a run had got before."""
    plan = recipe(corpus)
    whole = [batch for batch, _ in zip(plan.batches(0, 0, 1, None), range(30), strict=False)]
    for start in (1, 7, 20):
        before = whole[start - 1]
        again = plan.batches(before.epoch, before.batch, start + 1, None)
        for batch, other in zip(whole[start : start + 8], again, strict=False):
            ours, theirs = (one.parts[0].views(one.parts[0].memory) for one in (batch, other))
            assert all(torch.equal(ours[key], theirs[key]) for key in {**ours, **theirs})
            assert (batch.epoch, batch.batch, batch.work) == (other.epoch, other.batch, other.work)
    seeds = {tuple(batch.parts[0].part(torch.device("cpu")).seed.tolist()) for batch in whole}
    assert len(seeds) == 30


def test_ranks_draw_dropout_apart_and_the_rest_alike(corpus):
    parts = []
    for rank in (0, 1):
        world = World(rank, 2, torch.device("cpu"))
        parts.append(next(recipe(corpus, world=world).batches(0, 0, 1, None)).parts[0].part(world.device))
    assert not torch.equal(parts[0].seed, parts[1].seed)
    assert torch.equal(parts[0].draw, parts[1].draw)
    assert torch.equal(parts[0].tokens, parts[1].tokens)
    assert parts[0].tokens == sum(len(part.target.ids) for part in parts)


def test_the_loader_keeps_the_order_and_passes_errors_on():
    def numbers():
        yield from range(10)
        raise ValueError("broken")

    with Loader(numbers(), ahead=3) as loader:
        assert [loader.next() for _ in range(10)] == list(range(10))
        with pytest.raises(ValueError, match="broken"):
            loader.next()
