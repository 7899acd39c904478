"""The output head against the plain computation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from cbmi.model.head import token_log_probabilities


def plain(hidden, weight, gold):
    log_p = torch.log_softmax(hidden @ weight.T, dim=1)
    return log_p.gather(1, gold[:, None])[:, 0], log_p.mean(1)


def problem(tokens, width, vocabulary, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, dtype=dtype, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=dtype, generator=generator, requires_grad=True)
    gold = torch.randint(vocabulary, (tokens,), generator=generator)
    factors = torch.randn(2, tokens, dtype=dtype, generator=generator)
    return hidden, weight, gold, factors


def results(function, hidden, weight, gold, factors):
    of_gold, of_mean, *_ = function(hidden, weight, gold)
    loss = (of_gold * factors[0] + of_mean * factors[1]).sum()
    return of_gold, of_mean, *torch.autograd.grad(loss, (hidden, weight))


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(2, 60),
    st.integers(1, 50),
    st.integers(0, 99),
)
def test_scores_and_gradients_equal_the_plain_computation(tokens, width, vocabulary, chunk, seed):
    case = problem(tokens, width, vocabulary, seed=seed)
    found = results(lambda *a: token_log_probabilities(*a, chunk=chunk), *case)
    for ours, theirs in zip(found, results(plain, *case), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-10)


def test_float32_and_bfloat16_are_close_to_float64():
    case = problem(300, 64, 500)
    expected = results(plain, *case)
    single = [
        x.float().detach().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for x in case
    ]
    for ours, theirs in zip(results(token_log_probabilities, *single), expected, strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 1e-5
    with torch.autocast("cpu", torch.bfloat16):
        half = results(token_log_probabilities, *single)
    assert half[0].dtype == torch.float32
    for ours, theirs in zip(half, expected, strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 2e-2


class Largest(TorchDispatchMode):
    """Remembers the size of the largest float32 tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("tokens", [64, 1000])
def test_no_float32_logits_of_the_whole_batch(tokens):
    hidden, weight, gold, factors = problem(tokens, 8, 300, torch.float32)
    with Largest() as largest:
        of_gold, of_mean, _ = token_log_probabilities(hidden, weight, gold)
        ((of_gold + of_mean) * factors[0]).sum().backward()
    assert largest.elements <= tokens * 300 / 3
