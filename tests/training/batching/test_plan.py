"""The order of batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cbmi.training.batching.plan import EpochPlan, split


def lengths(pairs=3000, seed=0):
    random = np.random.default_rng(seed)
    target = np.clip(random.lognormal(3.0, 0.6, pairs), 2, 120).astype(np.int64)
    source = np.clip(target * random.normal(1, 0.12, pairs), 2, 130).astype(np.int64)
    return np.stack([source, target])


@given(st.integers(1, 300), st.integers(1, 500), st.integers(0, 9), st.integers(0, 9))
def test_every_pair_once_per_epoch_and_no_batch_too_large(pairs, tokens, seed, epoch):
    both = lengths(pairs, seed)
    plan = EpochPlan(both, tokens, seed, epoch)
    batches = [plan[step] for step in range(len(plan))]
    assert sorted(np.concatenate(batches)) == list(range(pairs))
    for batch in batches:
        assert len(batch) == 1 or (both[:, batch].sum(axis=1) <= tokens).all()


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    both = lengths()
    first = EpochPlan(both, 1000, 1, 5)
    again = EpochPlan(both, 1000, 1, 5)
    assert all((first[step] == again[step]).all() for step in range(len(first)))
    for other in (EpochPlan(both, 1000, 1, 6), EpochPlan(both, 1000, 2, 5)):
        assert (first.order != other.order).mean() > 0.9
        assert len(first) != len(other) or any(
            len(first[s]) != len(other[s]) for s in range(len(first))
        )


def test_a_batch_is_a_sample_of_the_corpus():
    """It mixes sentences of all lengths; no batch has only short or only long ones."""
    both = lengths()
    plan = EpochPlan(both, 1000, 1, 0)
    middle = np.array([both[1][plan[step]].mean() for step in range(len(plan) - 1)])
    sentences = np.array([len(plan[step]) for step in range(len(plan) - 1)])
    assert middle.std() < 1.3 * both[1].std() / sentences.mean() ** 0.5


def test_batches_are_full():
    both = lengths()
    plan = EpochPlan(both, 1000, 1, 0)
    fill = [both[:, plan[step]].sum(axis=1).max() / 1000 for step in range(len(plan))]
    assert np.mean(fill) > 0.95
    sizes = np.array(
        [[*both[:, plan[step]].sum(axis=1), len(plan[step])] for step in range(len(plan))]
    )
    assert (plan.sizes() == sizes.T).all()


@given(st.integers(1, 40), st.integers(1, 8))
def test_shares_are_fair(pairs, parts):
    target = lengths(pairs)[1]
    shares = split(target, parts)
    assert len(shares) == parts
    assert sorted(np.concatenate(shares)) == list(range(pairs))
    assert all((np.diff(target[one]) <= 0).all() for one in shares)  # longest first
    sizes = [target[one].sum() for one in shares]
    assert max(sizes) - min(sizes) <= target.max()
