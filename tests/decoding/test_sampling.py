"""Samples follow the model's distribution, score its log p, and depend on nothing else."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from searches import SPECIAL, language_model, model, packed, search, sources, translate

from cbmi import UserError
from cbmi.decoding import Fusion, Sampling, SearchSettings, queue
from cbmi.decoding.candidates import SpecialIds, continuations
from cbmi.decoding.queue import Queue
from cbmi.decoding.sampling import gumbel_noise, sample_tokens
from cbmi.decoding.translate import _advance_by
from cbmi.model import shift_right
from cbmi.model.fusion import gold_scores

EULER = 0.5772156649


def samples(network, sentences, **settings):
    """One sample of each sentence, or `nbest` of them."""
    given = {"temperature": 1.0, "top_k": 0, "seed": 1}
    given |= {name: settings.pop(name) for name in list(settings) if name in given}
    return translate(network, sentences, beam=1, sampling=Sampling(**given), **settings)


def ids(found):
    results = []
    for best in found:
        results.append([hypothesis.ids for hypothesis in best])
    return results


def expected_shares(logits, temperature, top_k, excluded):
    """softmax(logits / temperature) over the tokens that may be drawn."""
    values = logits.double().clone()
    values[list(excluded)] = -torch.inf
    if top_k:
        values[values < values.sort(descending=True).values[top_k - 1]] = -torch.inf
    return (values / temperature).softmax(0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize("by", ["sentence", "position", "seed"])
def test_draws_follow_the_distribution(temperature, top_k, by):
    """Chi-square over 20,000 draws: of many sentences, of many positions, or by many seeds."""
    logits = 2 * torch.randn(12, generator=torch.Generator().manual_seed(3))
    expected = expected_shares(logits, temperature, top_k, (0, 1))
    draws = 20_000
    rows = logits.expand(draws, -1)
    count = torch.arange(draws)
    fixed = torch.full_like(count, 7)
    if by == "seed":
        drawn = []
        for seed in range(2000):
            sampling = Sampling(temperature, top_k, seed)
            drawn.append(sample_tokens(rows[:10], count[:10], fixed[:10], sampling, (0, 1)))
        tokens = torch.cat(drawn)
    else:
        both = (count, fixed) if by == "sentence" else (fixed, count)
        tokens = sample_tokens(rows, *both, Sampling(temperature, top_k), (0, 1))
    counts = torch.bincount(tokens, minlength=12).double()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    mean = draws * expected[possible]
    chi_square = ((counts[possible] - mean) ** 2 / mean).sum().item()
    degrees = int(possible.sum()) - 1
    assert chi_square <= degrees + 5 * (2 * degrees) ** 0.5


def test_what_is_excluded_is_not_drawn_at_any_temperature():
    logits = torch.randn(50, 12, generator=torch.Generator().manual_seed(3))
    count = torch.arange(50)
    for temperature in (1e-6, 1e6):
        sampling = Sampling(temperature)
        tokens = sample_tokens(logits, count, count, sampling, (0, 1, 3))
        assert not set(tokens.tolist()) & {0, 1, 3}
    assert len(set(tokens.tolist())) > 5  # so hot that all are about equally likely
    with pytest.raises(UserError, match=r"should be above 0 and at most 1e\+06"):
        Sampling(1e300)


def test_an_unknown_piece_is_never_drawn():
    logits = torch.full((40, 8), -20.0)
    logits[:, 3] = 20.0
    special = SpecialIds(0, 1, 2, 3)
    settings = SearchSettings(special, beam=1, sampling=Sampling())
    numbers = torch.arange(40)
    limits = torch.full((40,), 9)
    drawn = continuations(logits, torch.zeros(40, 1), numbers, 1, limits, settings).tokens
    assert not (drawn == 3).any()
    assert (drawn > 3).any()


def test_the_noise_is_gumbel_noise():
    numbers = torch.arange(2000)
    noise = gumbel_noise(5, numbers, torch.zeros_like(numbers), torch.arange(500)[None]).double()
    assert noise.mean().item() == pytest.approx(EULER, abs=0.01)
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, abs=0.02)
    for other in (noise[1:, 1:], noise[1:, :-1], noise[:-1, 1:]):
        pair = torch.stack([noise[:-1, :-1].flatten(), other.flatten()])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.005


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(0, 1000))
def test_the_noise_is_finite(seed, number, position):
    row = torch.tensor([number])
    noise = gumbel_noise(seed, row, torch.tensor([position]), torch.arange(1000)[None])
    assert noise.isfinite().all()


def test_a_low_temperature_takes_the_best_and_a_high_one_any():
    logits = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(40)
    cold = sample_tokens(logits, rows, rows, Sampling(1e-40))
    assert torch.equal(cold, logits.argmax(1))
    many = torch.arange(3000)
    hot = sample_tokens(logits[:1].expand(3000, -1), many, many, Sampling(1e6))
    assert torch.bincount(hot, minlength=30).min() > 60


def test_a_step_gives_the_sample_and_nothing_else():
    """At the limit the sample is the end of sentence, whatever top-k."""
    logits = 3 * torch.randn(50, 20, generator=torch.Generator().manual_seed(1))
    scores = -torch.rand(50, 1, generator=torch.Generator().manual_seed(2))
    limits = torch.where(torch.arange(50) < 10, 4, 9)
    settings = SearchSettings(SPECIAL, beam=1, sampling=Sampling(top_k=2))
    found = continuations(logits, scores, torch.arange(50), 4, limits, settings)
    assert found.scores.shape == found.tokens.shape == found.parents.shape == (50, 2)
    assert (found.tokens[:10] == SPECIAL.end).all()
    assert (found.scores[:, 1] == -torch.inf).all()
    log_p = logits.double().log_softmax(1).gather(1, found.tokens[:, :1])
    assert torch.allclose(found.scores[:, :1].double(), scores + log_p, atol=1e-5)
    tensor_length = torch.full((50,), 4)
    again = continuations(logits, scores, torch.arange(50), tensor_length, limits, settings)
    assert torch.equal(found.tokens, again.tokens)


@pytest.mark.parametrize("fusion", [None, "prenorm", "postnorm"])
def test_scores_are_those_of_the_model_itself(fusion):
    """Whatever temperature and top-k: log p by the full forward pass in float64."""
    network = model(30)
    other = language_model(30) if fusion else None
    sentences = sources((4, 9, 2, 6), 30)
    found = samples(
        network,
        sentences,
        temperature=1.5,
        top_k=8,
        nbest=3,
        length_penalty=0.5,
        fusion=Fusion(other, fusion) if fusion else None,
    )
    exact = copy.deepcopy(network).double()
    exact_other = copy.deepcopy(other).double() if fusion else None
    for source, three in zip(sentences, found, strict=True):
        assert len(three) == 3
        for hypothesis in three:
            gold = packed([[*hypothesis.ids, SPECIAL.end]])
            inputs = shift_right(gold, SPECIAL.begin)
            scores = gold_scores(exact, exact_other, packed([source]), inputs, gold.ids, fusion)
            expected = scores.nmt.sum().item()
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-3)
            by_length = expected / len(gold.ids) ** 0.5
            assert hypothesis.score == pytest.approx(by_length, abs=1e-3)


def test_whole_samples_follow_the_distribution():
    """All translations of up to two words, by their probabilities."""
    network = model(6, seed=2, sharpness=2.0)
    source = sources((4,), 6)[0]
    draws = 4000
    found = ids(search_samples(network, source, draws, limit=3))
    counts = Counter(tuple(words) for (words,) in found)
    everything = [*product(range(3, 6), repeat=2), (3,), (4,), (5,), ()]
    distance = 0.0
    total = 0.0
    for words in everything:
        p = probability(network, source, words, limit=3)
        total += p
        distance += abs(counts[words] / draws - p) / 2
    assert total == pytest.approx(1, abs=1e-5)
    assert distance < 0.03


def search_samples(network, source, draws, limit):
    limits = torch.full((draws,), limit)
    return search(network, [source] * draws, limits, beam=1, sampling=Sampling())


def probability(network, source, words, limit):
    """Of a sample: pad and begin are never drawn, and the end is certain at the limit."""
    gold = packed([[*words, SPECIAL.end]])
    inputs = shift_right(gold, SPECIAL.begin)
    p = 1.0
    for length in range(1, len(words) + 2):
        if length == limit:
            break
        log_p = []
        for token in range(SPECIAL.end, 6):
            same = torch.full_like(gold.ids, token)
            log_p.append(network(packed([source]), inputs, same)[0][length - 1])
        p *= torch.stack(log_p).softmax(0)[gold.ids[length - 1] - SPECIAL.end].item()
    return p


def test_the_likeliest_token_alone_is_greedy_search():
    network = model(40, seed=3)
    sentences = sources((4, 7, 2, 9), 40)
    greedy = translate(network, sentences, beam=1, length_penalty=1.3)
    found = samples(network, sentences, top_k=1, length_penalty=1.3)
    assert ids(found) == ids(greedy)
    for ours, theirs in zip(found, greedy, strict=True):
        assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-5)


def test_the_seed_decides():
    network = model(40)
    sentences = sources((4, 9, 2, 6), 40)
    torch.manual_seed(7)
    first = ids(samples(network, sentences, seed=5))
    state = torch.get_rng_state()
    assert ids(samples(network, sentences, seed=5)) == first
    assert torch.equal(torch.get_rng_state(), state)
    other = ids(samples(network, sentences, seed=6))
    assert all(a != b for a, b in zip(first, other, strict=True))
    high_word = ids(samples(network, sentences, seed=5 + 2**32))
    assert all(a != b for a, b in zip(first, high_word, strict=True))


def test_the_rest_of_the_batch_does_not_matter():
    network = model(40, seed=5)
    sentences = sources((3, 11, 5, 8, 2, 7, 4), 40)
    numbers = [10, 3, 2**33, 0, 5, 1, 8]
    together = ids(samples(network, sentences, numbers=numbers, nbest=2))
    backwards = ids(samples(network, sentences[::-1], numbers=numbers[::-1], nbest=2))
    assert backwards[::-1] == together
    for source, number, found in zip(sentences, numbers, together, strict=True):
        assert ids(samples(network, [source], numbers=[number], nbest=2)) == [found]


def test_samples_of_a_sentence_differ_and_come_in_the_order_drawn():
    network = model(40)
    sentences = sources((6, 9), 40)
    four = samples(network, sentences, nbest=4, numbers=[3, 8])
    for best, number in zip(four, [3, 8], strict=True):
        assert len({tuple(hypothesis.ids) for hypothesis in best}) == 4
        source = sentences[0] if number == 3 else sentences[1]
        alone = samples(network, [source] * 4, numbers=[number * 4 + i for i in range(4)])
        assert [hypothesis.ids for hypothesis in best] == [one[0].ids for one in alone]


def test_limits_hold_and_special_ids_are_never_drawn():
    network = model(12, seed=1, sharpness=0.5)
    sentences = sources((4,) * 300, 12)
    limits = torch.tensor([1, 3, 6] * 100)
    found = search(network, sentences, limits, beam=1, sampling=Sampling(temperature=3.0))
    for best, limit in zip(found, limits.tolist(), strict=True):
        assert len(best) == 1
        assert len(best[0].ids) < limit
        assert not {0, 1, 2} & set(best[0].ids)
    assert {len(best[0].ids) for best in found} == set(range(6))


def test_progress_counts_sentences():
    seen = []
    samples(model(30), sources((2, 9, 4, 9, 3), 30), nbest=3, advance=seen.append)
    assert sum(seen) == 5
    steps = []
    advance = _advance_by(3, steps.append)
    for count in (2, 2, 5):
        advance(count)
    assert steps == [0, 1, 2]


@pytest.mark.parametrize("fusion", [None, "prenorm", "postnorm"])
@pytest.mark.parametrize("top_k", [0, 6])
def test_slots_draw_the_same(monkeypatch, fusion, top_k):
    """In fewer slots than sentences: slots are refilled many times."""
    monkeypatch.setattr(queue, "MOST_SLOTS", 6)
    network = model(90)
    network.target_embedding.weight.data[SPECIAL.end] *= 1.5  # some translations end early
    sentences = sorted(sources([2 + i % 13 for i in range(40)], 90), key=len, reverse=True)
    limits = torch.tensor([2 * len(sentence) + 10 for sentence in sentences])
    numbers = torch.arange(40) * 3 + 1
    fused = Fusion(language_model(90), fusion) if fusion else None
    sampling = Sampling(temperature=0.8, top_k=top_k, seed=4)
    settings = SearchSettings(SPECIAL, beam=1, fusion=fused, sampling=sampling)
    found = Queue(network, settings).translate(sentences, limits, numbers, lambda done: None)
    plain = search(
        network, sentences, limits, numbers=numbers, beam=1, fusion=fused, sampling=sampling
    )
    assert ids(found) == ids(plain)
    for a, b in zip(found, plain, strict=True):
        assert a[0].score == pytest.approx(b[0].score, abs=1e-3)
    assert len({len(best[0].ids) for best in found}) > 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0, but should be above 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1, but should be at least 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
    ],
)
def test_what_is_not_a_way_to_sample(settings, message):
    with pytest.raises(UserError, match=message):
        Sampling(**settings)
