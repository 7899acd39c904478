"""The output head: log-probabilities of the gold tokens without ever holding all the logits in float32.

Training needs two numbers a token: the gold token's log-probability and, for label smoothing, the mean
log-probability of the vocabulary. Both passes go through the tokens in chunks; the logits are made anew in the
backward pass, or kept in half precision where the network runs in it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# (hidden (tokens, width), output matrix (vocabulary, width), gold (tokens,)) → tensors of (tokens,)
Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]

CHUNK_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 28}  # logits in float32 at a time: 64 MiB, 1 GiB


def token_log_probabilities(
    hidden: Tensor, weight: Tensor, gold: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """log p(gold) and mean over v of log p(v), both (tokens,) in float32 and differentiable.

    hidden (tokens, width); weight (vocabulary, width); gold (tokens,). `chunk`: tokens at a time, by default
    what fits in `CHUNK_ELEMENTS` and at most a quarter of the tokens.
    """
    hidden, weight = to_autocast(hidden, weight)
    return _GoldAndMean.apply(hidden, weight, gold, chunk or fitting_chunk(hidden, weight))


def to_autocast(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the precision that matrix products are to be computed in."""
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        return hidden.to(dtype), weight.to(dtype)
    return hidden, weight


def fitting_chunk(hidden: Tensor, weight: Tensor, matrices: int = 1) -> int:
    """Tokens at a time, where so many (tokens, vocabulary) matrices in float32 are held: together they fit in
    `CHUNK_ELEMENTS`, and they are smaller than one matrix of all tokens."""
    fitting = CHUNK_ELEMENTS.get(hidden.device.type, 1 << 24) // (len(weight) * matrices)
    return max(1, min(fitting, -(-len(hidden) // max(4, matrices + matrices // 3))))


def exact(logits: Tensor) -> Tensor:
    """Logits in the precision that sums are taken in: float32, or float64 where they already are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def output_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """(rows, width) → (rows, vocabulary) in float32: for the few rows of a decoding step."""
    return exact(hidden @ weight.to(hidden.dtype).T)


class _GoldAndMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, gold: Tensor, chunk: int):
        keep = hidden.dtype in (torch.float16, torch.bfloat16) and any(ctx.needs_input_grad)
        parts, kept = [], []
        for states, labels in zip(hidden.split(chunk), gold.split(chunk), strict=True):
            logits = states @ weight.T
            values = exact(logits)
            total = values.logsumexp(1)
            parts.append((values.gather(1, labels[:, None])[:, 0] - total, values.mean(1) - total, total))
            if keep:
                kept.append(logits)
        of_gold, of_mean, total = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, gold, total, *kept)
        ctx.chunk = chunk
        return of_gold, of_mean

    @staticmethod
    def backward(ctx, to_gold: Tensor, to_mean: Tensor):
        """d log p(gold)/d logit_v = [v = gold] - p_v, and 1/V - p_v for the mean."""
        hidden, weight, gold, total, *kept = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=total.dtype)
        for i, start in enumerate(range(0, len(hidden), ctx.chunk)):
            rows = slice(start, start + ctx.chunk)
            values = exact(kept[i] if kept else hidden[rows] @ weight.T)
            share = (to_gold + to_mean)[rows, None]
            slope = (values - total[rows, None]).exp_().mul_(-share).add_(to_mean[rows, None] / len(weight))
            slope.scatter_add_(1, gold[rows, None], to_gold[rows, None])
            slope = slope.to(hidden.dtype)
            torch.mm(slope, weight, out=of_hidden[rows])
            of_weight += slope.T @ hidden[rows]
        return of_hidden, of_weight.to(weight.dtype), None, None
