"""Every objective against its formula; the identities between them; what must not change a loss."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from batches import LENGTHS, SMOOTHING, batch, leaf, on_two_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from references import Reference
from torch.utils._python_dispatch import TorchDispatchMode

from cbmi.errors import UserError
from cbmi.model.distribution import Distributions, States
from cbmi.model.head import CHUNK_ELEMENTS
from cbmi.objectives import TABLE, build
from cbmi.objectives.heads import head_for

FILE = {"file": "weights.txt"}
CASES = [
    *((name, {}) for name in TABLE if name != "weights-file"),
    ("weights-file", FILE),
    ("freq-exp", {"amplitude": 0.7, "decay": 0.35}),
    ("freq-exp", {"rescale": "e"}),
    ("freq-chi2", {"rescale": 3.0, "decay": 1.0}),
    ("bmi", {"slope": 0.4, "base": 0.2, "threshold": 0.8}),
    ("bmi", {"threshold": None}),
    ("focal", {"alpha": 0.9, "gamma": 2.0}),
    ("focal", {"alpha": 0.9, "gamma": 2.0, "detach": True}),
    ("focal", {"alpha": 1.0, "gamma": 0.5}),
    ("anti-focal", {"alpha": 2.0, "gamma": 1.5}),
    ("anti-focal", {"alpha": 2.0, "gamma": 1.5, "detach": True}),
    ("self-paced", {"power": 1.0}),
    ("lm-prior", {"strength": 1.5, "temperature": 0.5}),
    ("cbmi", {"scale_token": 1.5, "scale_sentence": 0.9}),
    ("cbmi", {"unit": "word"}),
    ("cbmi", {"compare": "lengths"}),
    ("cbmi", {"unit": "word", "compare": "lengths", "scale_token": 1.5, "scale_sentence": 0.9}),
    ("prior-lm", {"strength": 2.0, "interval": [-1.0, 1.0]}),
    ("prior-tm", {"gold_only": True}),
    ("prior-tm", {"interval": [0.0, math.inf]}),
    ("prior-cbmi", {"gold_only": True, "strength": 3.0, "interval": [-math.inf, 0.5]}),
    ("prior-selection", {"thresholds": [-1.0, 1.0]}),
    ("prior-selection", {"thresholds": [-1.0, 1.0], "only": "tm", "strength": 0.7}),
    ("prior-selection", {"thresholds": [-0.5, 0.5], "gold_only": True}),
]
IDS = [
    "-".join([name, *(f"{k}={v}" for k, v in values.items() if k != "file")])
    for name, values in CASES
]
every_case = pytest.mark.parametrize(("name", "values"), CASES, ids=IDS)


def objective(name, **values):
    return build({"name": name, **values}, "stages.adapt.objective")


def assert_equal(found, expected, case=None):
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    if case is not None:
        for ours, theirs in zip(case.gradients(found), case.gradients(expected), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-9)


@every_case
@settings(max_examples=8)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(5, 40),
    st.integers(1, 20),
    st.integers(0, 999),
)
def test_losses_and_gradients_equal_the_formula(name, values, lengths, vocabulary, chunk, seed):
    case = batch(tuple(lengths), vocabulary, seed=seed)
    found, _ = case.losses(objective(name, **values), chunk)
    assert_equal(found, Reference(case).losses(name, **values), case)


@every_case
def test_order_of_sentences_does_not_matter(name, values):
    case, chosen = batch(), objective(name, **values)
    order = [3, 0, 5, 4, 1, 2]
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    tokens = torch.cat([torch.arange(starts[b], starts[b + 1]) for b in order])
    mixed = case.rows(tokens, tuple(LENGTHS[b] for b in order))
    assert_equal(mixed.losses(chosen)[0], case.losses(chosen)[0][tokens])


@every_case
def test_fillers_count_nowhere(name, values):
    """Tokens that the mask excludes change no other token's loss and have none."""
    case, chosen = batch(), objective(name, **values)
    tokens = torch.cat([torch.arange(sum(LENGTHS)), torch.tensor([4, 9, 2])])
    filled = case.rows(tokens, (*LENGTHS, 3))
    filled.mask[sum(LENGTHS) :] = False
    filled.samples[:, sum(LENGTHS) :] = -1e6  # the lowest of all, were it counted
    losses, _ = filled.losses(chosen)
    assert_equal(losses[: sum(LENGTHS)], case.losses(chosen)[0])
    assert (losses[sum(LENGTHS) :] == 0).all()


WEIGHTING = [name for name in TABLE if "shuffled" in TABLE[name].model_fields]
CONTROLS = [{"shuffled": "batch"}, {"shuffled": "sentence"}, {"mirrored": True}]
CONTROLLED = [
    (name, values | control) for name, values in CASES if name in WEIGHTING for control in CONTROLS
]


@pytest.mark.parametrize(("name", "values"), CASES + CONTROLLED, ids=str)
def test_fillers_may_lie_between_sentences(name, values):
    """As in Hugging Face's padded batches."""
    case, chosen = batch(), objective(name, **values)
    order = []
    is_real = []
    start = 0
    for length in LENGTHS:
        order += [*range(start, start + length), 4]
        is_real += [True] * length + [False]
        start += length
    real = torch.tensor(is_real)
    filled = case.rows(torch.tensor(order), (*LENGTHS, len(LENGTHS)))
    filled.mask[~real] = False
    filled.sentence[real] = case.sentence
    filled.sentence[~real] = len(LENGTHS)
    filled.samples[:, ~real] = -1e6
    losses, _ = filled.losses(chosen)
    assert_equal(losses[real], case.losses(chosen)[0])
    assert (losses[~real] == 0).all()


@pytest.mark.parametrize(("name", "values"), CASES + CONTROLLED, ids=str)
def test_two_ranks_give_what_one_gives(name, values):
    case, chosen = batch(), objective(name, **values)
    ends = torch.tensor([0, sum(LENGTHS[:3]), sum(LENGTHS)])

    def half(number, ranks):
        mine = case.rows(
            torch.arange(ends[number], ends[number + 1]), LENGTHS[3 * number : 3 * number + 3]
        )
        return mine.losses(chosen, ranks=ranks)[0]

    assert_equal(torch.cat(on_two_ranks(half)), case.losses(chosen)[0])


@pytest.mark.parametrize("name", WEIGHTING)
def test_shuffled_weights_are_the_same_multiset(name):
    case, values = batch(), FILE if name == "weights-file" else {}
    if name == "self-paced":
        case.samples.copy_(case.samples * torch.rand_like(case.samples))
    plain = case.losses(objective(name, **values))[1]
    shuffled = case.losses(objective(name, **values, shuffled=True))[1]
    assert torch.equal(plain.detach().sort().values, shuffled.sort().values)
    assert not torch.equal(plain, shuffled)
    assert not shuffled.requires_grad


def test_equal_places_get_weights_of_their_own():
    """Hugging Face's trainer knows a pair by its text, and a step may have the same pair twice."""
    case = batch()
    case = replace(case, corpus_index=case.corpus_index // 3)
    plain = case.losses(objective("focal"))[1]
    assert len(plain.unique()) == len(plain)
    ends = torch.tensor([0, sum(LENGTHS[:3]), sum(LENGTHS)])

    def half(number, ranks):
        places = torch.arange(ends[number], ends[number + 1])
        mine = case.rows(places, LENGTHS[3 * number : 3 * number + 3])
        return mine.losses(objective("focal", shuffled=True), ranks=ranks)[1]

    for shuffled in (
        case.losses(objective("focal", shuffled=True))[1],
        torch.cat(on_two_ranks(half)),
    ):
        assert_equal(plain.detach().sort().values, shuffled.sort().values)


@pytest.mark.parametrize("name", WEIGHTING)
def test_weights_shuffled_within_sentences_stay_in_them(name):
    case, values = batch(), FILE if name == "weights-file" else {}
    if name == "self-paced":
        case.samples.copy_(case.samples * torch.rand_like(case.samples))
    plain = case.losses(objective(name, **values))[1].detach()
    shuffled = case.losses(objective(name, **values, shuffled="sentence"))[1]
    for ours, theirs in zip(shuffled.split(LENGTHS), plain.split(LENGTHS), strict=True):
        assert torch.equal(ours.sort().values, theirs.sort().values)
    assert not torch.equal(plain, shuffled)
    assert not shuffled.requires_grad


def test_shuffling_within_a_sentence_gives_every_order_as_often():
    case, chosen = batch((3, 2)), objective("weights-file", **FILE, shuffled="sentence")
    scores = case.scores(torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))
    dealt = torch.stack([chosen.weights(replace(scores, seed=seed)) for seed in range(2000)])
    for weight in case.given[:3]:
        assert ((dealt[:, :3] == weight).double().mean(0) - 1 / 3).abs().max() < 0.04
    for weight in case.given[3:]:
        assert ((dealt[:, 3:] == weight).double().mean(0) - 1 / 2).abs().max() < 0.04


def test_true_shuffles_in_the_batch_and_false_not_at_all():
    assert objective("cbmi", shuffled=True) == objective("cbmi", shuffled="batch")
    assert objective("cbmi", shuffled=False) == objective("cbmi")


@pytest.mark.parametrize("name", WEIGHTING)
def test_mirrored_weights(name):
    case, values = batch(), FILE if name == "weights-file" else {}
    plain = case.losses(objective(name, **values))[1]
    mirrored = case.losses(objective(name, **values, mirrored=True, scale=0.5))[1]
    assert_equal(mirrored, (2 - plain).clamp(min=0) * 0.5)


def test_shuffling_deals_every_weight_in_a_large_corpus():
    """Places beyond what float32 tells apart."""
    case = batch()
    far = replace(case, corpus_index=case.corpus_index + 10**9)
    for name in ("cbmi", "freq-exp"):
        plain, shuffled = (far.losses(objective(name, shuffled=flag))[1] for flag in (False, True))
        assert torch.allclose(plain.sort().values, shuffled.sort().values)


def test_shuffling_is_random_and_changes_with_the_step():
    """Over many steps every token gets every weight about as often."""
    case, chosen = batch((3, 2)), objective("weights-file", **FILE, shuffled=True)
    scores = case.scores(torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))
    dealt = torch.stack([chosen.weights(replace(scores, seed=seed)) for seed in range(2000)])
    for weight in case.given:
        assert ((dealt == weight).double().mean(0) - 0.2).abs().max() < 0.04


IDENTITIES = [
    ("focal", {"alpha": 0.0}),
    ("focal", {"gamma": 0.0}),
    ("anti-focal", {"alpha": 0.0}),
    ("cbmi", {"scale_token": 0.0, "scale_sentence": 0.0}),
    ("freq-exp", {"amplitude": 0.0}),
    ("freq-chi2", {"amplitude": 0.0}),
    ("freq-exp", {"rescale": 1.0}),
    ("bmi", {"slope": 0.0, "base": 1.0, "threshold": None}),
    ("lm-prior", {"strength": 0.0}),
    ("prior-lm", {"strength": 0.0}),
    ("prior-tm", {"strength": 0.0}),
    ("prior-cbmi", {"strength": 0.0}),
    ("prior-selection", {"strength": 0.0}),
    ("prior-lm", {"interval": [math.inf, math.inf]}),
]


@pytest.mark.parametrize(
    ("name", "values"), IDENTITIES, ids=[f"{name}-{values}" for name, values in IDENTITIES]
)
def test_without_its_strength_an_objective_is_cross_entropy(name, values):
    case = batch()
    assert_equal(case.losses(objective(name, **values))[0], case.losses(objective("ce"))[0], case)


def grads_of(case, name, teacher=None, lm=None, **values):
    """The gradient of an objective less that of cross-entropy: the gradient of its term."""
    chosen = objective(name, **values)
    head = head_for(chosen, SMOOTHING, lm or case.lm, teacher or case.teacher)
    _, _, term = head(case.hidden, case.weight, case.gold)
    return term, torch.autograd.grad(term.sum(), (case.hidden, case.weight))


def test_the_models_own_distribution_as_prior_has_no_gradient():
    case = batch()
    own = States(case.hidden.detach(), case.weight.detach())
    _, gradients = grads_of(case, "prior-tm", teacher=own, strength=5.0)
    assert all(torch.allclose(g, torch.zeros_like(g), atol=1e-12) for g in gradients)


def test_the_divergence_of_equal_distributions_is_zero():
    case = batch()
    term, gradients = grads_of(
        case, "lm-prior", lm=States(case.hidden.detach(), case.weight.detach()), strength=5.0
    )
    assert torch.allclose(term, torch.zeros_like(term), atol=1e-12)
    assert all(torch.allclose(g, torch.zeros_like(g), atol=1e-12) for g in gradients)


@given(st.floats(0.3, 5), st.integers(0, 99))
def test_the_divergence_is_never_negative(temperature, seed):
    term, _ = grads_of(batch(seed=seed), "lm-prior", temperature=temperature)
    assert (term >= -1e-12).all()


def test_postnorm_has_the_gradient_of_cross_entropy():
    case = batch()
    fused, plain = (case.losses(objective(name))[0] for name in ("fusion-postnorm", "ce"))
    for ours, theirs in zip(case.gradients(fused), case.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)
    assert (fused > plain).all()


def test_renormalised_postnorm_is_prenorm():
    case = batch()
    scores = torch.log_softmax(case.hidden @ case.weight.T, 1) + torch.log_softmax(
        case.lm.hidden @ case.lm.weight.T, 1
    )
    renormalised = Reference(case).smoothed(torch.log_softmax(scores, dim=1))
    assert_equal(case.losses(objective("fusion-prenorm"))[0], renormalised, case)


@pytest.mark.parametrize(
    ("thresholds", "single"),
    [
        ([math.inf, math.inf], "prior-lm"),
        ([-math.inf, math.inf], "prior-tm"),
        ([-math.inf, -math.inf], "prior-cbmi"),
    ],
)
def test_selection_with_infinite_thresholds_is_a_single_prior(thresholds, single):
    case = batch()
    selection = case.losses(objective("prior-selection", thresholds=thresholds))[0]
    assert_equal(selection, case.losses(objective(single))[0], case)


def test_the_three_parts_of_the_selection_make_up_the_whole():
    case, plain = batch(), batch().losses(objective("ce"))[0]
    parts = [
        case.losses(objective("prior-selection", only=one))[0] - plain
        for one in ("lm", "tm", "cbmi")
    ]
    assert_equal(plain + sum(parts), case.losses(objective("prior-selection"))[0])


def test_steady_predictions_have_equal_weights():
    case = batch()
    case.samples[:] = case.samples[0].clone()
    weights = case.losses(objective("self-paced"))[1]
    assert torch.allclose(weights, torch.ones_like(weights))


@given(st.integers(0, 99))
def test_self_paced_weights_have_the_mean_one(seed):
    weights = batch(seed=seed).losses(objective("self-paced"))[1]
    assert float(weights.mean()) == pytest.approx(1)


def test_bounds_of_intervals_and_thresholds_belong_to_the_lower_side():
    """c, or BMI, exactly at a bound."""
    case = batch()
    log_lm = torch.log_softmax(case.lm.hidden @ case.lm.weight.T, dim=1)
    log_tm = torch.log_softmax(case.teacher.hidden @ case.teacher.weight.T, dim=1)
    logits = case.hidden @ case.weight.T
    chunk = Distributions(logits, logits.log_softmax(1), case.gold, SMOOTHING, log_lm, log_tm)
    c = chunk.cbmi()
    low, high = (float(value) for value in c.sort().values[[5, 20]])
    assert torch.equal(
        objective("prior-lm", interval=[low, high]).term(chunk) != 0, (c > low) & (c <= high)
    )
    for only, where in (("lm", c <= low), ("tm", (c > low) & (c <= high)), ("cbmi", c > high)):
        chosen = objective("prior-selection", thresholds=[low, high], only=only)
        assert torch.equal(chosen.term(chunk) != 0, where)
    case.bmi[0] = 0.4
    assert case.losses(objective("bmi"))[1][0] == 0


def test_pieces_that_do_not_occur_do_not_matter():
    """`rescale` is relative to the highest weight of a piece of the corpus."""
    case = batch()
    with_unseen = replace(
        case, frequency=torch.cat([case.frequency, torch.zeros(3, dtype=torch.float64)])
    )
    chosen = objective("freq-exp", rescale=2.0)
    assert_equal(with_unseen.losses(chosen)[1], case.losses(chosen)[1])


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0])
def test_a_certain_token_has_a_finite_gradient(gamma):
    nmt = torch.zeros(40, requires_grad=True)
    case = batch((40,))
    weights = objective("focal", alpha=1.0, gamma=gamma).weights(case.scores(nmt, nmt))
    (grad,) = torch.autograd.grad((weights * -nmt).sum() + weights.sum(), nmt)
    assert torch.isfinite(grad).all()


def test_scaling_and_clipping_come_in_that_order():
    case = batch()
    plain = case.losses(objective("cbmi"))[1]
    changed = case.losses(objective("cbmi", scale=2.0, clip=[1.9, 2.2]))[1]
    assert torch.equal(changed, (2 * plain).clamp(1.9, 2.2))
    assert ((changed > 1.9) & (changed < 2.2)).any()
    assert ((changed == 1.9) | (changed == 2.2)).any()


def test_dropped_weights_are_one_and_as_many_as_asked_for():
    case = batch((400, 600), vocabulary=30)
    plain = case.losses(objective("freq-exp"))[1]
    dropped = case.losses(objective("freq-exp", weight_drop=0.3))[1]
    changed = dropped != plain
    assert (dropped[changed] == 1).all()
    assert 0.2 < float(changed.float().mean()) < 0.4
    shuffled = case.losses(objective("freq-exp", weight_drop=0.3, shuffled=True))[1]
    assert (
        0.2 < float((shuffled[:500] == 1).float().mean()) < 0.4
    )  # what is drawn for one purpose is not for another


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor in single or double precision that any operation has made."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.float32, torch.float64):
                self.largest = max(self.largest, tensor.numel())
        return result


@every_case
def test_tokens_times_vocabulary_is_never_held(name, values):
    """With chunks of 4 tokens no tensor is larger than 4 × vocabulary (or a matrix of weights)."""
    case, chosen = batch((60, 40), vocabulary=200, width=8), objective(name, **values)
    reference = case.losses(chosen)[0]
    with LargestTensor() as seen:
        losses, _ = case.losses(chosen, chunk=4)
        case.gradients(losses)
    assert_equal(losses, reference)
    assert seen.largest <= 200 * 16  # prenorm's output matrix is twice as wide


@every_case
def test_chunks_are_small_by_default(name, values, monkeypatch):
    """What training uses: no matrix of all tokens, and none over the limit."""
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 30 * 1500)
    case, chosen = batch((60, 40), vocabulary=1500, width=4), objective(name, **values)
    with LargestTensor() as seen:
        case.gradients(case.losses(chosen)[0])
    assert seen.largest <= 30 * 1500
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 1 << 40)
    with LargestTensor() as seen:
        case.gradients(case.losses(chosen)[0])
    assert seen.largest <= 25 * 1500


@pytest.mark.parametrize("name", ["prior-cbmi", "lm-prior"])
def test_half_precision_gradients_add_up_in_single_precision(name):
    """Many small chunks: sums over them may not be rounded to bfloat16 one after the other."""
    expected = batch((900,), vocabulary=20, width=8)
    half = expected.rows(torch.arange(900), (900,))
    case = replace(half, hidden=leaf(half.hidden.bfloat16()), weight=leaf(half.weight.bfloat16()))
    case = replace(case, lm=to_half(half.lm), teacher=to_half(half.teacher))
    same = replace(expected, hidden=leaf(case.hidden.double()), weight=leaf(case.weight.double()))
    same = replace(
        same,
        lm=States(case.lm.hidden.double(), case.lm.weight.double()),
        teacher=States(case.teacher.hidden.double(), case.teacher.weight.double()),
    )
    chosen = objective(name, strength=5.0)
    ours, reference = (
        one.gradients(one.losses(chosen, chunk=1)[0])[1].double() for one in (case, same)
    )
    assert float((ours - reference).norm() / reference.norm()) < 0.01


def to_half(states):
    return States(states.hidden.bfloat16(), states.weight.bfloat16())


REFUSED = [
    ("self-paced", {"samples": -1}, "samples"),
    ("self-paced", {"samples": 1}, "samples"),
    ("focal", {"alpha": 1.5}, "alpha"),
    ("anti-focal", {"alpha": -0.1}, "alpha"),
    ("focal", {"gamma": -1}, "gamma"),
    (
        "prior-selection",
        {"thresholds": [8.0, 0.0]},
        "the first bound 8.0 should not be above the second, 0.0",
    ),
    ("prior-selection", {"thresholds": [0.0, math.nan]}, "should not be above"),
    ("prior-lm", {"interval": [1.0, -1.0]}, "should not be above"),
    ("prior-lm", {"strength": -0.1}, "strength"),
    ("lm-prior", {"temperature": 0.0}, "temperature"),
    ("freq-exp", {"rescale": 0.5}, "rescale"),
    ("freq-exp", {"weight_drop": 1.0}, "weight_drop"),
    ("bmi", {"slope": -1.0}, "slope"),
    ("cbmi", {"clip": [2.0, 1.0]}, "clip: the first bound 2.0 should not be above the second, 1.0"),
    ("cbmi", {"clip": [1.0]}, "clip: should be two numbers, [low, high], not [1.0]"),
    ("freq-exp", {"rescale": "foo"}, "rescale: input should be a valid number, not 'foo'"),
    ("bmi", {"preset": [1]}, "unknown preset '[1]'"),
    ("cbmi.objectives:Weighting", {}, "has no method 'token_weights'"),
    (".foo:Bar", {}, "'.foo' cannot be imported"),
    ("cbmi", {"scale": 0.0}, "scale"),
    ("weights-file", {}, "file: this key is missing"),
    ("ce", {"shuffled": True}, "unknown key 'shuffled'"),
    (
        "bmi",
        {"preset": "wmt14-en-fr"},
        "unknown preset 'wmt14-en-fr' (did you mean 'wmt14-en-de'?)",
    ),
    ("no.such.module:Thing", {}, "'no.such.module' cannot be imported"),
    ("math:sqrt", {}, "'math:sqrt' is not a class that derives from cbmi.objectives.Objective"),
]


@pytest.mark.parametrize(
    ("name", "values", "expected"), REFUSED, ids=[f"{n}-{v}" for n, v, _ in REFUSED]
)
def test_bad_settings_are_refused(name, values, expected):
    with pytest.raises(UserError) as caught:
        objective(name, **values)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("stages.adapt.objective")


@pytest.mark.parametrize("pair", ["wmt14-en-de", "wmt19-zh-en"])
def test_presets_are_the_papers(pair):
    paper = {
        "freq-exp": {"amplitude": (1.0, 1.0), "decay": (1.75, 0.35)},
        "freq-chi2": {"amplitude": (1.0, 1.0), "decay": (2.5, 1.75)},
        "bmi": {"slope": (0.15, 0.1), "base": (0.8, 1.0), "threshold": (0.4, 0.4)},
        "focal": {"alpha": (0.1, 0.1), "gamma": (1.0, 1.0)},
        "anti-focal": {"alpha": (0.1, 0.1), "gamma": (1.0, 1.0)},
        "self-paced": {"samples": (5, 5), "power": (2.0, 2.0)},
        "lm-prior": {"strength": (0.1, 0.1), "temperature": (2.0, 2.0)},
        "cbmi": {"scale_token": (0.1, 0.1), "scale_sentence": (0.3, 0.3)},
        "prior-selection": {"strength": (0.1, 0.1), "thresholds": ((0.0, 8.0), (0.0, 8.0))},
    }
    column = ["wmt14-en-de", "wmt19-zh-en"].index(pair)
    for name, expected in paper.items():
        chosen = objective(name, preset=pair)
        assert {key: getattr(chosen, key) for key in expected} == {
            k: v[column] for k, v in expected.items()
        }
    assert objective("bmi", preset=pair, slope=0.5).slope == 0.5


def test_single_precision_is_close_to_double():
    case = batch()
    for name in ("cbmi", "self-paced", "focal", "freq-exp", "bmi"):
        expected = case.losses(objective(name))[1]
        nmt = torch.log_softmax(case.hidden @ case.weight.T, 1).gather(1, case.gold[:, None])[:, 0]
        scores = case.scores(nmt.float(), nmt.float())
        assert torch.allclose(objective(name).weights(scores).double(), expected, atol=1e-5)
