"""The output head: log-probabilities of the gold tokens without ever holding all the logits in float32.

Training needs two numbers per token: the gold token's log-probability and, for label smoothing, the mean
log-probability of the vocabulary. Where the network runs in half precision, the logits are kept in it, and their
gradient takes their memory; elsewhere both passes go through the tokens in chunks, and the backward pass makes the
logits anew.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cbmi.model import kernels

# (hidden (tokens, width), output matrix (vocabulary, width), gold (tokens,)) → tensors of (tokens,)
Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]

CPU_COLUMNS = 2048  # logits of a row that are made at a time
CHUNK_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 28}  # logits in float32 at a time: 64 MiB, 1 GiB


def token_log_probabilities(
    hidden: Tensor, weight: Tensor, gold: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """log p(gold) and mean over v of log p(v), both (tokens,) in float32 and differentiable.

    hidden (tokens, width); weight (vocabulary, width); gold (tokens,). `chunk`: tokens whose logits are made at a
    time, and made anew in the backward pass. By default they are all kept where that is in half precision; elsewhere
    so many are made as fit in `CHUNK_ELEMENTS`, at most a quarter of the tokens.
    """
    hidden, weight = to_autocast(hidden, weight)
    keep = chunk is None and hidden.dtype in (torch.float16, torch.bfloat16)
    if chunk is None:
        whole = keep and kernels.fused(hidden)
        chunk = max(1, len(hidden)) if whole else fitting_chunk(hidden, weight)
    return _GoldAndMean.apply(hidden, weight, gold, chunk, keep)


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
    """(rows, width) → (rows, vocabulary): for the few rows of a decoding step. A CPU's caches like it in pieces."""
    weight = weight.to(hidden.dtype)
    if hidden.device.type != "cpu":
        return hidden @ weight.T
    logits = hidden.new_empty(len(hidden), len(weight))
    for start in range(0, len(weight), CPU_COLUMNS):
        columns = slice(start, start + CPU_COLUMNS)
        torch.mm(hidden, weight[columns].T, out=logits[:, columns])
    return logits


class _GoldAndMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, gold: Tensor, chunk: int, keep: bool):
        keep, fused = keep and any(ctx.needs_input_grad), kernels.fused(hidden)
        parts, kept = [], []
        for states, labels in zip(hidden.split(chunk), gold.split(chunk), strict=True):
            logits = states @ weight.T
            parts.append(_sums(logits, labels, fused))
            if keep:
                kept.append(logits)
        of_gold, of_mean, total = (_joined(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, gold, total)
        ctx.chunk, ctx.kept, ctx.fused = chunk, kept, fused
        return of_gold, of_mean

    @staticmethod
    def backward(ctx, to_gold: Tensor, to_mean: Tensor):
        hidden, weight, gold, total = ctx.saved_tensors
        kept, ctx.kept = ctx.kept, None  # a second backward pass would find gradients in their place
        starts = range(0, len(hidden), ctx.chunk)
        of_hidden = torch.empty_like(hidden)
        of_weight = None
        for i, start in enumerate(starts):
            rows = slice(start, start + ctx.chunk)
            logits = kept[i] if kept else hidden[rows] @ weight.T
            slope = _slopes(logits, gold[rows], total[rows], to_gold[rows], to_mean[rows], ctx.fused)
            torch.mm(slope, weight, out=of_hidden[rows])
            part = slope.T @ hidden[rows]
            if len(starts) > 1:
                part = exact(part)
            of_weight = part if of_weight is None else of_weight.add_(part)
        return of_hidden, of_weight.to(weight.dtype), None, None, None


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _sums(logits: Tensor, gold: Tensor, fused: bool) -> tuple[Tensor, Tensor, Tensor]:
    """log p(gold), mean over v of log p(v), log-sum-exp of each row."""
    if fused:
        from cbmi.model.kernels.head import row_sums

        return row_sums(logits, gold)
    values = exact(logits)
    total = values.logsumexp(1)
    return values.gather(1, gold[:, None])[:, 0] - total, values.mean(1) - total, total


def _slopes(logits: Tensor, gold: Tensor, total: Tensor, to_gold: Tensor, to_mean: Tensor, fused: bool) -> Tensor:
    """d log p(gold)/d logit_v = [v = gold] - p_v, and 1/V - p_v for the mean."""
    if fused:
        from cbmi.model.kernels.head import slopes_in_place

        return slopes_in_place(logits, gold, total, to_gold, to_mean)
    share = (to_gold + to_mean)[:, None]
    slope = (exact(logits) - total[:, None]).exp_().mul_(-share).add_(to_mean[:, None] / logits.shape[1])
    return slope.scatter_add_(1, gold[:, None], to_gold[:, None]).to(logits.dtype)
