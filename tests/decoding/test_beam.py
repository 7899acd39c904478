"""Beam search against brute force, greedy search and the full forward pass."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from searches import SPECIAL, language_model, model, packed, search, sources, translate

from cbmi.decoding import Fusion
from cbmi.model import shift_right
from cbmi.model.distribution import keep_states
from cbmi.model.runtime import Runtime


def log_probability(network, source, target):
    """log p(target | source) by the full forward pass."""
    gold = packed([target])
    return network(packed([source]), shift_right(gold, SPECIAL.begin), gold.ids)[0].sum().item()


@pytest.mark.parametrize("beam", [1, 3, 5])
def test_cached_steps_give_the_scores_of_the_full_forward_pass(beam):
    network = model(30)
    sentences = sources((4, 9, 2, 6), 30)
    for source, found in zip(
        sentences,
        search(network, sentences, beam=beam, nbest=beam),
        strict=True,
    ):
        assert 1 <= len(found) <= beam
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        for hypothesis in found:
            target = [*hypothesis.ids, SPECIAL.end]
            expected = log_probability(network, source, target)
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-4)
            assert hypothesis.score == pytest.approx(expected / len(target) ** 0.6, abs=1e-4)


def fused_probability(network, other, kind, source, target):
    """The fused score of a translation by the full forward pass."""
    gold = packed([target])
    inputs = shift_right(gold, SPECIAL.begin)
    states = [
        network(packed([source]), inputs, gold.ids, head=keep_states),
        other(inputs, gold.ids, head=keep_states),
    ]
    own, lm = (one.hidden @ one.weight.T for one in states)
    scores = torch.log_softmax(own, 1) + torch.log_softmax(lm, 1)
    scores = torch.log_softmax(scores, 1) if kind == "prenorm" else scores
    return scores.gather(1, gold.ids[:, None]).sum().item()


@pytest.mark.parametrize("kind", ["prenorm", "postnorm"])
def test_fused_steps_give_the_scores_of_the_full_forward_pass(kind):
    network, other = model(30), language_model(30)
    sentences = sources((4, 9, 2, 6), 30)
    settings = {"beam": 3, "nbest": 3, "length_penalty": 1.0, "fusion": Fusion(other, kind)}
    for source, found in zip(sentences, search(network, sentences, **settings), strict=True):
        for hypothesis in found:
            expected = fused_probability(
                network, other, kind, source, [*hypothesis.ids, SPECIAL.end]
            )
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["prenorm", "postnorm"])
def test_a_wide_fused_beam_finds_the_best_of_all(kind):
    network, other, source = model(6, sharpness=2.0), language_model(6), sources((4,), 6)[0]
    everything = [list(ids) for n in range(5) for ids in product(range(3, 6), repeat=n)]
    scores = {
        tuple(ids): fused_probability(network, other, kind, source, [*ids, SPECIAL.end])
        / (len(ids) + 1)
        for ids in everything
    }
    settings = {
        "beam": 200,
        "length_penalty": 1.0,
        "limits": torch.tensor([5]),
        "fusion": Fusion(other, kind),
    }
    found = search(network, [source], **settings)[0]
    assert tuple(found[0].ids) == max(scores, key=scores.get)


def test_the_search_goes_on_while_a_hypothesis_is_ahead():
    """The end of sentence is always a little likely: short ends fill the beam, a long one wins."""

    class Steady(torch.nn.Module):
        """Word 4 with probability 0.9 and the end with 0.04, up to six words; then the end."""

        output_weight = torch.eye(12)
        runtime = Runtime()

        def encode(self, source):
            return torch.zeros(len(source.ids), 1)

        def memories(self, states):
            return []

        def decode(self, ids, position, longest, attend_self, attend_source):
            p = torch.full((len(ids), 12), 0.06 / 10)
            p[:, 4], p[:, SPECIAL.end] = (0.9, 0.04) if longest <= 6 else (0.04, 0.9)
            return p.log()

    found = search(Steady(), [[5, 5, 5, 2]], beam=3)[0]
    assert found[0].ids == [4] * 6


def greedy(network, source, limit):
    ids = []
    while len(ids) < limit - 1:
        totals = [log_probability(network, source, [*ids, word]) for word in range(2, 20)]
        word = 2 + int(np.argmax(totals))
        if word == SPECIAL.end:
            break
        ids.append(word)
    return ids


def test_beam_one_is_greedy():
    network = model(20, seed=3)
    sentences = sources((4, 7, 2), 20)
    limits = torch.tensor([8, 8, 8])
    found = search(network, sentences, beam=1, limits=limits)
    assert [h[0].ids for h in found] == [greedy(network, source, 8) for source in sentences]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.5])
def test_a_wide_beam_finds_the_best_of_all(seed, penalty):
    network = model(6, seed=seed, sharpness=2.0)
    source = sources((4,), 6, seed)[0]
    words, limit = range(3, 6), 5
    everything = [list(ids) for n in range(limit) for ids in product(words, repeat=n)]
    scores = {
        tuple(ids): log_probability(network, source, [*ids, SPECIAL.end])
        / (len(ids) + 1) ** penalty
        for ids in everything
    }
    settings = {"beam": 200, "length_penalty": penalty, "limits": torch.tensor([limit]), "nbest": 3}
    found = search(network, [source], **settings)[0]
    best = sorted(scores, key=scores.get, reverse=True)[:3]
    assert [tuple(h.ids) for h in found] == best
    assert found[0].score == pytest.approx(scores[best[0]], abs=1e-5)


def test_the_rest_of_the_batch_does_not_matter():
    network = model(40, seed=5)
    sentences = sources((3, 11, 5, 8, 2, 7, 4), 40)
    together = translate(network, sentences, beam=4, length_penalty=0.6)
    for source, found in zip(sentences, together, strict=True):
        alone = translate(network, [source], beam=4, length_penalty=0.6)[0]
        assert found[0].ids == alone[0].ids
        assert found[0].score == pytest.approx(alone[0].score, abs=1e-5)


def test_special_ids_are_never_produced_and_limits_hold():
    network = model(12, seed=1, sharpness=0.5)
    sentences = sources((4, 4), 12)
    limits = torch.tensor([3, 6])
    for found, limit in zip(
        search(network, sentences, beam=4, nbest=4, limits=limits),
        limits,
        strict=True,
    ):
        for hypothesis in found:
            assert len(hypothesis.ids) < limit
            assert not {0, 1, 2} & set(hypothesis.ids)


def test_order_is_kept():
    network = model(30)
    sentences = sources((2, 9, 4, 9, 3), 30)
    seen = []
    found = translate(network, sentences, beam=2, length_penalty=0.6, advance=seen.append)
    assert sum(seen) == 5
    backwards = translate(network, sentences[::-1], beam=2, length_penalty=0.6)
    assert [h[0].ids for h in found] == [h[0].ids for h in backwards[::-1]]
