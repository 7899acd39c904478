"""R-Drop: two passes over the same sentences under different dropout should agree.

hidden (2 · tokens, width) holds the states of the first pass, then those of the second. For each
token this gives the mean of both passes' scores, and how far their distributions p and q differ:

    KL(p‖q) + KL(q‖p) = sum over v of (p_v - q_v)·(z_v - z'_v)

where z and z' are the logits: the constants of the two softmaxes cancel out. Logits in half
precision are kept for the backward pass; in float32, a chunk of tokens is computed at a time, and
again in the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbmi.model import kernels
from cbmi.model.head import Head, HeadOutput, fitting_chunk, to_autocast, upcast

MATRICES = 8  # (tokens, vocabulary) that a chunk and its gradient hold at a time, roughly


class PairScores(NamedTuple):
    """Scores of both passes, each (tokens,) and differentiable."""

    log_p: Tensor  # log p(gold), mean of both passes
    mean_log_p: Tensor  # mean over v of log p(v), mean of both passes
    divergence: Tensor  # KL(p‖q) + KL(q‖p)


class PairSums(NamedTuple):
    """What the backward pass needs of each row, (2, tokens) each: first pass, second pass."""

    log_p: Tensor
    mean_log_p: Tensor
    lse: Tensor  # log-sum-exp of the logits
    expected: Tensor  # the pass's expectation of z - z'


def pair_scores(
    hidden: Tensor, weight: Tensor, gold: Tensor, chunk: int | None = None, *, fused: bool = True
) -> PairScores:
    """hidden (2 · tokens, width); weight (vocabulary, width); gold (tokens,).

    `chunk`: tokens at a time, as for `token_log_probabilities`.
    """
    hidden, weight = to_autocast(hidden, weight)
    fused = fused and kernels.usable(hidden)
    keep_logits = chunk is None and hidden.dtype in (torch.float16, torch.bfloat16)
    if chunk is None:
        all_at_once = keep_logits and fused
        most = max(1, len(gold))
        chunk = most if all_at_once else fitting_chunk(hidden, weight, MATRICES)
    values = _Pair.apply(hidden, weight, gold, chunk, keep_logits, fused)  # type: ignore[no-untyped-call]
    return PairScores(*values)


def r_drop_head(
    hidden: Tensor,
    weight: Tensor,
    gold: Tensor,
    *,
    strength: float,
    head: Head | None = None,
    chunk: int | None = None,
    fused: bool = True,
) -> HeadOutput:
    """The mean of both passes' scores; the term is strength/4 times the divergence.

    `head`: what scores each pass, if it is not the plain softmax; its term is averaged, too.
    """
    pair = pair_scores(hidden, weight, gold, chunk, fused=fused)
    term = strength / 4 * pair.divergence
    if head is None:
        return HeadOutput(pair.log_p, pair.mean_log_p, term)
    first_states, second_states = hidden.chunk(2)
    first: HeadOutput = head(first_states, weight, gold, fused=fused)
    second: HeadOutput = head(second_states, weight, gold, fused=fused)
    if first.term is not None and second.term is not None:
        term = term + (first.term + second.term) / 2
    return HeadOutput(
        (first.log_p + second.log_p) / 2, (first.mean_log_p + second.mean_log_p) / 2, term
    )


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        gold: Tensor,
        chunk: int,
        keep_logits: bool,
        fused: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        keep_logits = keep_logits and any(ctx.needs_input_grad)
        passes = hidden.view(2, len(gold), hidden.shape[1])
        sums_of_chunks = []
        kept_logits = []
        for start in range(0, len(gold), chunk):
            rows = slice(start, start + chunk)
            logits = passes[:, rows] @ weight.T
            sums_of_chunks.append(_pair_sums(logits, gold[rows], fused))
            if keep_logits:
                kept_logits.append(logits)
        if not sums_of_chunks:
            sums_of_chunks.append(_pair_sums(passes @ weight.T, gold, fused=False))
        sums = PairSums(*(torch.cat(values, 1) for values in zip(*sums_of_chunks, strict=True)))
        ctx.save_for_backward(hidden, weight, gold, sums.lse, sums.expected)
        ctx.chunk = chunk
        ctx.kept_logits = kept_logits
        ctx.fused = fused
        divergence = sums.expected[0] - sums.expected[1]
        return sums.log_p.mean(0), sums.mean_log_p.mean(0), divergence

    @staticmethod
    def backward(
        ctx: Any, grad_gold: Tensor, grad_mean: Tensor, grad_divergence: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden, weight, gold, lse, expected = ctx.saved_tensors
        kept_logits = ctx.kept_logits
        ctx.kept_logits = None  # a second backward pass would find gradients in their place
        passes = hidden.view(2, len(gold), hidden.shape[1])
        grad_hidden = torch.empty_like(passes)
        grad_weight = torch.zeros_like(weight, dtype=grad_gold.dtype)
        # Each pass has half of the mean's gradient.
        grads = torch.stack([grad_gold / 2, grad_mean / 2, grad_divergence])
        for number, start in enumerate(range(0, len(gold), ctx.chunk)):
            rows = slice(start, start + ctx.chunk)
            states = passes[:, rows]
            logits = kept_logits[number] if kept_logits else states @ weight.T
            grad_logits = _pair_grads(
                logits, gold[rows], lse[:, rows], expected[:, rows], grads[:, rows], ctx.fused
            )
            grad_hidden[:, rows] = grad_logits @ weight
            grad_weight += grad_logits.flatten(0, 1).T @ states.flatten(0, 1)
        return grad_hidden.view_as(hidden), grad_weight.to(weight.dtype), None, None, None, None


def _pair_sums(logits: Tensor, gold: Tensor, fused: bool) -> PairSums:
    """logits (2, tokens, vocabulary); gold (tokens,)."""
    if fused:
        from cbmi.model.kernels.r_drop import pair_sums

        return PairSums(*pair_sums(logits, gold))
    values = upcast(logits)
    lse = values.logsumexp(2)
    of_gold = values.gather(2, gold.expand(2, -1)[:, :, None])[:, :, 0]
    difference = values[0] - values[1]
    expected = ((values - lse[:, :, None]).exp_() * difference).sum(2)
    return PairSums(of_gold - lse, values.mean(2) - lse, lse, expected)


def _pair_grads(
    logits: Tensor, gold: Tensor, lse: Tensor, expected: Tensor, grads: Tensor, fused: bool
) -> Tensor:
    """The gradient of the logits (2, tokens, vocabulary).

    grads (3, tokens): of each pass's log p(gold), of its mean log p, and of the divergence, whose
    derivative by z_v is p_v·(d_v - E_p[d]) + p_v - q_v with d = z - z'; by z'_v it is
    -q_v·(d_v - E_q[d]) - p_v + q_v.
    """
    if fused:
        from cbmi.model.kernels.r_drop import pair_grads_in_place

        return pair_grads_in_place(logits, gold, lse, expected, grads)
    of_gold, of_mean, of_divergence = grads[:, :, None]
    values = upcast(logits)
    p = (values - lse[:, :, None]).exp_()
    difference = values[0] - values[1]
    from_divergence = p * (difference - expected[:, :, None])
    from_divergence += p[0] - p[1]
    from_divergence[1] *= -1
    # The second row: -(q·(d - E_q) + p - q), as above.
    grad = of_mean / logits.shape[2] - (of_gold + of_mean) * p + of_divergence * from_divergence
    places = gold.expand(2, -1)[:, :, None]
    return grad.scatter_add_(2, places, of_gold.expand(2, -1, -1)).to(logits.dtype)
