"""R-Drop against its formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cbmi.model import pack
from cbmi.model.distribution import distribution_terms
from cbmi.model.packed import twice
from cbmi.model.r_drop import pair_scores, r_drop_head

TOKENS = 13
VOCABULARY = 29


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2 * TOKENS, 8, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, 8, generator=generator, dtype=dtype).requires_grad_()
    gold = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    return hidden, weight, gold


def reference(hidden, weight, gold):
    """log p(gold), mean log p, and KL in both directions, all written out."""
    log_p, log_q = (hidden @ weight.T).log_softmax(1).chunk(2)
    of_gold = [log.gather(1, gold[:, None])[:, 0] for log in (log_p, log_q)]
    forwards = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)
    backwards = F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(1)
    mean = (log_p.mean(1) + log_q.mean(1)) / 2
    return torch.stack([(of_gold[0] + of_gold[1]) / 2, mean, forwards + backwards])


@pytest.mark.parametrize("chunk", [None, 5, 100])
def test_values_and_gradients(chunk):
    hidden, weight, gold = inputs()
    ours = torch.stack(pair_scores(hidden, weight, gold, chunk))
    theirs = reference(hidden, weight, gold)
    assert torch.allclose(ours, theirs, atol=1e-12)
    grad = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1)).double()
    for one, other in zip(
        torch.autograd.grad(ours, (hidden, weight), grad),
        torch.autograd.grad(theirs, (hidden, weight), grad),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-12)


def test_gradients_are_those_of_finite_differences():
    hidden, weight, gold = inputs()
    assert torch.autograd.gradcheck(lambda h, w: pair_scores(h, w, gold, 4), (hidden, weight))


def test_equal_passes_do_not_diverge():
    hidden, weight, gold = inputs()
    same = torch.cat([hidden[:TOKENS], hidden[:TOKENS]])
    assert torch.allclose(pair_scores(same, weight, gold).divergence, torch.zeros(TOKENS).double())


def test_half_precision_follows():
    hidden, weight, gold = (x.bfloat16() if x.is_floating_point() else x for x in inputs())
    exact = reference(hidden.double(), weight.double(), gold)
    ours = torch.stack(pair_scores(hidden, weight, gold)).double()
    assert torch.allclose(ours, exact, rtol=0.05, atol=0.1)


def test_the_head_averages_scores_and_weighs_the_divergence():
    hidden, weight, gold = inputs()
    output = r_drop_head(hidden, weight, gold, strength=3.0)
    log_p, mean, divergence = reference(hidden, weight, gold)
    assert torch.allclose(output.log_p, log_p)
    assert torch.allclose(output.mean_log_p, mean)
    assert torch.allclose(output.term, 0.75 * divergence)


def test_an_objectives_own_term_is_averaged():
    hidden, weight, gold = inputs()

    def entropy(chunk):
        return -(chunk.log_p.exp() * chunk.log_p).sum(1)

    def head(states, matrix, labels, *, fused):
        return distribution_terms(states, matrix, labels, term=entropy, smoothing=0.1)

    output = r_drop_head(hidden, weight, gold, strength=3.0, head=head)
    log_p = (hidden @ weight.T).log_softmax(1)
    entropies = -(log_p.exp() * log_p).sum(1)
    divergence = reference(hidden, weight, gold)[2]
    expected = 0.75 * divergence + (entropies[:TOKENS] + entropies[TOKENS:]) / 2
    assert torch.allclose(output.term, expected)


def test_twice():
    packed = twice(pack(torch.tensor([5, 6, 7]), torch.tensor([2, 1])))
    once = pack(torch.tensor([5, 6, 7, 5, 6, 7]), torch.tensor([2, 1, 2, 1]))
    assert torch.equal(packed.ids, once.ids)
    for name in ("lengths", "starts", "sentence", "position"):
        assert torch.equal(getattr(packed.layout, name), getattr(once.layout, name))
    assert packed.layout.sizes.tolist() == once.layout.sizes.tolist()
