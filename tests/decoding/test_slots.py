"""Beam search in slots finds what the plain search finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import SPECIAL, language_model, model, search, sources

from cbmi.decoding import Fusion, SearchSettings, queue
from cbmi.decoding.candidates import best_continuations
from cbmi.decoding.queue import Queue
from cbmi.decoding.slots import Room, Slots
from cbmi.decoding.translate import in_slots
from cbmi.model.layers import POSITIONS


def both_ways(network, sentences, limits, beam, nbest, fusion=None, penalty=0.6):
    sentences = sorted(sentences, key=len, reverse=True)
    options = {"beam": beam, "length_penalty": penalty, "nbest": nbest, "fusion": fusion}
    plain = search(network, sentences, limits, **options)
    done = []
    queue = Queue(network, SearchSettings(SPECIAL, **options))
    found = queue.translate(sentences, limits, torch.arange(len(sentences)), done.append)
    assert sum(done) == len(sentences)
    return plain, found


def assert_same(plain, found):
    for a, b in zip(plain, found, strict=True):
        assert [h.ids for h in a] == [h.ids for h in b]
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-3)
        assert [h.log_probability for h in a] == pytest.approx(
            [h.log_probability for h in b], abs=1e-3
        )


@pytest.mark.parametrize("fusion", [None, "prenorm", "postnorm"])
@pytest.mark.parametrize(("beam", "nbest"), [(1, 1), (4, 1), (5, 5)])
def test_the_same_translations(monkeypatch, fusion, beam, nbest):
    """In fewer slots than sentences, which end at all lengths: slots are refilled many times."""
    monkeypatch.setattr(queue, "MOST_SLOTS", 6)
    network = model(90)
    network.target_embedding.weight.data[SPECIAL.end] *= 1.5  # some translations end early
    sentences = sources([2 + i % 13 for i in range(40)], 90)
    limits = torch.tensor(sorted((2 * len(s) + 10 for s in sentences), reverse=True))
    fused = Fusion(language_model(90), fusion) if fusion else None
    plain, found = both_ways(network, sentences, limits, beam, nbest, fused)
    assert_same(plain, found)
    lengths = {len(hypotheses[0].ids) for hypotheses in found}
    assert len(lengths) > 5


@settings(max_examples=25)
@given(st.integers(0, 50), st.integers(1, 6), st.sampled_from([0.0, 0.6, 1.5]), st.integers(1, 30))
def test_the_same_with_any_limits(seed, beam, penalty, limit):
    network = model(40, seed, sharpness=2.0)
    sentences = sources([1 + (seed + 3 * i) % 9 for i in range(9)], 40, seed)
    limits = torch.full((9,), limit)
    assert_same(*both_ways(network, sentences, limits, beam, beam, penalty=penalty))


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(20, 400))
def test_the_best_continuations_are_the_best_of_all(seed, beam, size):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(3 * beam, size, generator=generator)
    scores = torch.randn(3, beam, generator=generator)
    at_limit = torch.tensor([False, True, False])
    log_p = logits.log_softmax(1)
    log_p[:, [SPECIAL.pad, SPECIAL.begin]] = -torch.inf
    only_end = torch.full_like(log_p, -torch.inf)
    only_end[:, SPECIAL.end] = log_p[:, SPECIAL.end]
    log_p = torch.where(at_limit.repeat_interleave(beam)[:, None], only_end, log_p)
    totals = (scores.view(-1, 1) + log_p).view(3, -1)
    expected, places = totals.topk(2 * beam, dim=1)
    found, parents, words = best_continuations(logits, scores, at_limit, SPECIAL)
    assert torch.allclose(found, expected, atol=1e-4)
    real = expected > -torch.inf
    assert torch.equal((parents * size + words)[real], places[real])


def test_a_very_long_sentence():
    """Longer translations than positions are kept for otherwise."""
    network = model(40)
    room = Room(slots=8, length=2 * POSITIONS, source=5)
    fusion = Fusion(language_model(40), "prenorm")
    Slots(network, SearchSettings(SPECIAL, beam=2, fusion=fusion), room)
    assert len(network.target_embedding.positions) == 2 * POSITIONS


def test_a_cpu_goes_without_slots():
    assert not in_slots(model(30))
