"""CBMI weights against references written from the formulas, sentence by sentence, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from batches import on_two_ranks
from hypothesis import given
from hypothesis import strategies as st

from cbmi.errors import UserError
from cbmi.objectives import TokenScores, build, cbmi_weights
from cbmi.objectives.cbmi import Cbmi, packed_cbmi_weights


def reference(nmt, lm, lengths, scale_token=0.1, scale_sentence=0.3, padded=None):
    """The weights of each sentence, by loops; `padded`: what the public code divides by."""
    floor = 1e-9 if padded else 0.0
    equal = 0.0 if padded else 1.0  # the weight of equal values
    values = []
    for b, n in enumerate(lengths):
        p_lm = np.exp(lm[b][:n]) + floor
        values.append(np.log(np.exp(nmt[b][:n]) / p_lm))
    means = [sum(c) / len(c) for c in values]
    mean = sum(means) / len(means)
    std = math.sqrt(sum((s - mean) ** 2 for s in means) / (padded or len(means)))
    weights = []
    for c, s in zip(values, means, strict=True):
        spread = math.sqrt(sum((x - s) ** 2 for x in c) / (padded or len(c)))
        w_s = max(0.0, scale_sentence * (s - mean) / std + 1) if std > 0 else equal
        w_t = [max(0.0, scale_token * (x - s) / spread + 1) if spread > 0 else equal for x in c]
        weights.append([w_s * w for w in w_t])
    return weights


def ragged(lengths, seed=0, width=None):
    """Random log-probabilities with rubbish at the padding."""
    random = np.random.default_rng(seed)
    shape = (len(lengths), width or max(lengths))
    mask = np.arange(shape[1]) < np.array(lengths)[:, None]
    nmt, lm = (np.where(mask, -random.exponential(2, shape), np.nan) for _ in range(2))
    return torch.tensor(nmt), torch.tensor(lm), torch.tensor(mask)


@pytest.mark.parametrize(
    "lengths", [(5, 3, 9, 1, 2), (1,), (1, 1, 1), (7,), (4, 4), (30, 2, 17, 8)]
)
@pytest.mark.parametrize("scales", [(0.1, 0.3), (0.0, 0.3), (0.1, 0.0), (2.0, 1.5)])
@pytest.mark.parametrize("std", ["population", "official"])
def test_weights_equal_the_formula(lengths, scales, std):
    nmt, lm, mask = ragged(lengths)
    padded = mask.shape[1] if std == "official" else None
    expected = reference(nmt.tolist(), lm.tolist(), lengths, *scales, padded=padded)
    found = cbmi_weights(nmt, lm, mask, *scales, std=std)
    for row, n, weights in zip(found, lengths, expected, strict=True):
        assert row[:n].tolist() == pytest.approx(weights, abs=1e-12)
        assert (row[n:] == 0).all()


def test_float32_is_close_to_float64():
    nmt, lm, mask = ragged((12, 5, 30, 1, 18))
    expected = cbmi_weights(nmt, lm, mask)
    assert torch.allclose(cbmi_weights(nmt.float(), lm.float(), mask).double(), expected, atol=1e-5)


def test_large_scales_cut_at_zero_and_both_scales_zero_is_cross_entropy():
    nmt, lm, mask = ragged((12, 5, 30))
    assert (cbmi_weights(nmt, lm, mask, 5.0, 0.0) == 0)[mask].any()
    assert (cbmi_weights(nmt, lm, mask, 0.0, 0.0)[mask] == 1).all()


@pytest.mark.parametrize("value", [0.1, -3.7, 0.0, 1e-3, 123.456])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_values_give_weight_one_but_zero_in_the_public_code(value, dtype):
    mask = torch.arange(7) < torch.tensor([[7], [3], [1], [6]])
    nmt = torch.full((4, 7), value, dtype=dtype)
    lm = torch.full_like(nmt, -0.3)
    assert (cbmi_weights(nmt, lm, mask)[mask] == 1).all()
    assert (cbmi_weights(nmt, lm, mask, std="official")[mask] == 0).all()


lengths_strategy = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@given(lengths_strategy, st.integers(0, 1000), st.integers(0, 5))
def test_weights_do_not_depend_on_padding(lengths, seed, extra):
    nmt, lm, mask = ragged(lengths, seed, max(lengths) + extra)
    tight = [tensor[:, : max(lengths)] for tensor in (nmt, lm, mask)]
    assert torch.allclose(
        cbmi_weights(nmt, lm, mask)[:, : max(lengths)], cbmi_weights(*tight), atol=1e-9
    )


@given(lengths_strategy, st.integers(0, 1000), st.randoms())
def test_weights_do_not_depend_on_the_order_of_sentences(lengths, seed, random):
    nmt, lm, mask = ragged(lengths, seed)
    order = list(range(len(lengths)))
    random.shuffle(order)
    assert torch.allclose(
        cbmi_weights(nmt, lm, mask)[order], cbmi_weights(nmt[order], lm[order], mask[order])
    )


@given(lengths_strategy, st.integers(0, 1000), st.floats(-50, 50))
def test_weights_do_not_depend_on_a_constant(lengths, seed, constant):
    nmt, lm, mask = ragged(lengths, seed)
    assert torch.allclose(
        cbmi_weights(nmt, lm, mask), cbmi_weights(nmt + constant, lm, mask), atol=1e-8
    )


def test_weights_carry_no_gradient():
    nmt, lm, mask = ragged((4, 2))
    assert not cbmi_weights(nmt.requires_grad_(), lm, mask).requires_grad


def packed_scores(lengths):
    nmt, lm, mask = ragged(lengths)
    sentence = mask.nonzero()[:, 0]
    real = torch.ones(len(sentence), dtype=torch.bool)
    places = torch.arange(len(sentence))
    values = (nmt[mask], nmt[mask], lm[mask], real, sentence, len(lengths), max(lengths))
    return TokenScores(*values, gold=places % 7 + 4, corpus_index=places)


def test_packed_and_padded_layouts_agree():
    lengths = (5, 1, 8, 3)
    nmt, lm, mask = ragged(lengths)
    assert torch.allclose(Cbmi().weights(packed_scores(lengths)), cbmi_weights(nmt, lm, mask)[mask])


def test_fillers_count_nowhere():
    lengths = (5, 1, 8)
    scores = packed_scores(lengths)
    alone = packed_cbmi_weights(scores.cbmi(), scores.mask, scores.sentence, 3, Cbmi(), 8)
    cbmi = torch.cat([scores.cbmi(), torch.tensor([99.0, -99.0])])
    mask = torch.cat([scores.mask, torch.tensor([False, False])])
    sentence = torch.cat([scores.sentence, torch.tensor([3, 3])])
    filled = packed_cbmi_weights(cbmi, mask, sentence, 4, Cbmi(), 8)
    assert torch.allclose(filled.token[:14], alone.token)
    assert torch.allclose(filled.sentence[:3], alone.sentence)


@pytest.mark.parametrize("std", ["population", "official"])
def test_two_ranks_with_half_the_sentences_each_give_the_weights_of_one(std):
    whole, settings = packed_scores((5, 1, 8, 3, 2, 7)), Cbmi(std=std)

    def half(number, ranks):
        mine = (whole.sentence >= 3) == bool(number)
        fields = [getattr(whole, name)[mine] for name in ("nmt", "mean", "lm", "mask")]
        ids = {"gold": whole.gold[mine], "corpus_index": whole.corpus_index[mine]}
        return settings.weights(
            TokenScores(*fields, whole.sentence[mine] - 3 * number, 3, 8, **ids, ranks=ranks)
        )

    assert torch.allclose(torch.cat(on_two_ranks(half)), settings.weights(whole))


def test_the_public_codes_zeros_are_those_of_the_whole_step():
    """A sentence that is alone in its micro-batch differs from those in the others."""
    assert Cbmi(std="official", scale_sentence=0.0).weighs_together()
    assert not Cbmi(scale_sentence=0.0).weighs_together()


def test_bad_settings_are_refused():
    for settings in ({"scale_token": -1}, {"std": "sample"}, {"scale_tokens": 0.1}):
        with pytest.raises(UserError, match=r"stages\.adapt"):
            build({"name": "cbmi", **settings}, "stages.adapt")
    with pytest.raises(UserError, match="did you mean 'cbmi'"):
        build({"name": "cmbi"}, "stages.adapt")


def test_the_pieces_of_a_word_have_one_weight():
    """The sum over its pieces is what counts, so that a word in many pieces stands out."""
    lm = torch.tensor([[-3.0, -3.0, -3.0, -3.0, -3.0]])
    nmt = torch.tensor([[-2.0, -1.0, -1.0, -1.0, -2.0]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    starts = torch.tensor([[True, True, False, False, True]])
    (weights,) = cbmi_weights(nmt, lm, mask, scale_token=0.5, word_starts=starts)
    values = np.array([1.0, 6.0, 6.0, 6.0, 1.0])
    expected = np.maximum(0, 0.5 * (values - values.mean()) / values.std() + 1)
    assert weights.tolist() == pytest.approx(expected.tolist())


def test_lengths_are_compared_with_their_like():
    """Long sentences have a higher mean: compared with their like, none of that is left."""
    random = np.random.default_rng(0)
    lengths = [4] * 40 + [60] * 40
    nmt, lm, mask = ragged(lengths)
    offset = torch.tensor(np.where(np.array(lengths) == 60, 5.0, 0.0))[:, None]
    noise = torch.tensor(random.normal(size=(80, 1)))
    whole = cbmi_weights(nmt + offset + noise, lm, mask, scale_token=0.0)[:, 0]
    apart = cbmi_weights(nmt + offset + noise, lm, mask, scale_token=0.0, compare="lengths")[:, 0]
    assert whole[40:].mean() - whole[:40].mean() > 0.3
    assert float(apart[:40].mean()) == pytest.approx(1, abs=1e-9)
    assert float(apart[40:].mean()) == pytest.approx(1, abs=1e-9)
    assert apart[:40].std(correction=0) == pytest.approx(0.3, abs=1e-9)


@pytest.mark.parametrize("value", [0.0, -1.3, 1e6])
def test_equal_sentences_of_like_length_weigh_one(value):
    lengths = [3, 3, 3, 4, 5, 6, 30, 33]
    _, lm, mask = ragged(lengths)
    same = torch.where(mask, value, 0.0)
    weights = cbmi_weights(same, torch.zeros_like(lm), mask, compare="lengths")
    assert torch.equal(weights[mask], torch.ones(sum(lengths), dtype=torch.float64))


def test_the_public_codes_std_does_not_go_with_lengths():
    with pytest.raises(UserError, match="cannot be combined with compare: lengths"):
        build({"name": "cbmi", "std": "official", "compare": "lengths"}, "objective")
