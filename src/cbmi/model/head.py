"""The output head: log-probabilities of the gold tokens, without all the logits in float32 at once.

Training needs two values per token: the gold token's log-probability and, for label smoothing, the
mean log-probability of the vocabulary. Where the network runs in half precision, the logits are
kept in it, and their gradient takes their memory. Elsewhere both passes go through the tokens in
chunks, and the backward pass computes the logits again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from cbmi.model import kernels

CPU_COLUMNS = 2048  # logits of a row that are computed at a time
# Logits in float32 that are held at a time: 64 MiB, 1 GiB.
CHUNK_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 28}


class HeadOutput(NamedTuple):
    """What a head makes of the hidden states, each (tokens,) and differentiable."""

    log_p: Tensor  # log p(gold)
    mean_log_p: Tensor  # mean over v of log p(v)
    term: Tensor | None = None  # an objective's extra loss, where it has one


class Head(Protocol):
    """(hidden (tokens, width), output matrix (vocabulary, width), gold (tokens,)) → its result.

    `fused`: whether the network allows fused kernels.
    """

    def __call__(self, hidden: Tensor, weight: Tensor, gold: Tensor, *, fused: bool) -> Any: ...


def token_log_probabilities(
    hidden: Tensor, weight: Tensor, gold: Tensor, chunk: int | None = None, *, fused: bool = True
) -> HeadOutput:
    """log p(gold) and mean over v of log p(v), both (tokens,) in float32 and differentiable.

    hidden (tokens, width); weight (vocabulary, width); gold (tokens,). `chunk`: tokens whose logits
    are held at a time, and computed again in the backward pass. By default all logits are kept if
    they are in half precision; otherwise as many as fit in `CHUNK_ELEMENTS`, at most those of a
    quarter of the tokens.
    """
    hidden, weight = to_autocast(hidden, weight)
    fused = fused and kernels.usable(hidden)
    keep_logits = chunk is None and hidden.dtype in (torch.float16, torch.bfloat16)
    if chunk is None:
        all_at_once = keep_logits and fused
        chunk = max(1, len(hidden)) if all_at_once else fitting_chunk(hidden, weight)
    log_p, mean_log_p = _GoldAndMean.apply(hidden, weight, gold, chunk, keep_logits, fused)  # type: ignore[no-untyped-call]
    return HeadOutput(log_p, mean_log_p)


def to_autocast(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the precision that matrix products are to be computed in."""
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        return hidden.to(dtype), weight.to(dtype)
    return hidden, weight


def fitting_chunk(hidden: Tensor, weight: Tensor, matrices: int = 1) -> int:
    """Tokens at a time, if that many (tokens, vocabulary) matrices in float32 are held.

    Together they fit in `CHUNK_ELEMENTS`, and they are smaller than one matrix of all tokens.
    """
    fitting = CHUNK_ELEMENTS.get(hidden.device.type, 1 << 24) // (len(weight) * matrices)
    # In at least 4 chunks, and in a third more chunks than matrices are held.
    chunks = max(4, matrices + matrices // 3)
    return max(1, min(fitting, -(-len(hidden) // chunks)))


def upcast(logits: Tensor) -> Tensor:
    """Logits in the precision that sums are taken in: float32, or float64 if they already are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def output_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """(rows, width) → (rows, vocabulary): for the few rows of a decoding step.

    On a CPU it goes column block by column block, which suits the caches.
    """
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
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        gold: Tensor,
        chunk: int,
        keep_logits: bool,
        fused: bool,
    ) -> tuple[Tensor, Tensor]:
        keep_logits = keep_logits and any(ctx.needs_input_grad)
        gold_chunks = []
        mean_chunks = []
        lse_chunks = []
        kept_logits = []
        for states, labels in zip(hidden.split(chunk), gold.split(chunk), strict=True):
            logits = states @ weight.T
            log_p, mean_log_p, lse = _row_sums(logits, labels, fused)
            gold_chunks.append(log_p)
            mean_chunks.append(mean_log_p)
            lse_chunks.append(lse)
            if keep_logits:
                kept_logits.append(logits)
        ctx.save_for_backward(hidden, weight, gold, _joined(lse_chunks))
        ctx.chunk = chunk
        ctx.kept_logits = kept_logits
        ctx.fused = fused
        return _joined(gold_chunks), _joined(mean_chunks)

    @staticmethod
    def backward(
        ctx: Any, grad_gold: Tensor, grad_mean: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden, weight, gold, lse = ctx.saved_tensors
        kept_logits = ctx.kept_logits
        ctx.kept_logits = None  # a second backward pass would find gradients in their place
        starts = range(0, len(hidden), ctx.chunk)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = None
        for number, start in enumerate(starts):
            rows = slice(start, start + ctx.chunk)
            logits = kept_logits[number] if kept_logits else hidden[rows] @ weight.T
            grad_logits = _grad_of_logits(
                logits, gold[rows], lse[rows], grad_gold[rows], grad_mean[rows], ctx.fused
            )
            torch.mm(grad_logits, weight, out=grad_hidden[rows])
            grad_of_chunk = grad_logits.T @ hidden[rows]
            if len(starts) > 1:
                grad_of_chunk = upcast(grad_of_chunk)  # sums over chunks lose no digits
            grad_weight = grad_of_chunk if grad_weight is None else grad_weight.add_(grad_of_chunk)
        if grad_weight is None:
            grad_weight = torch.zeros_like(weight)
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None


def _joined(chunks: list[Tensor]) -> Tensor:
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def _row_sums(logits: Tensor, gold: Tensor, fused: bool) -> tuple[Tensor, Tensor, Tensor]:
    """log p(gold), mean over v of log p(v), and the log-sum-exp of each row."""
    if fused:
        from cbmi.model.kernels.head import row_sums

        return row_sums(logits, gold)
    values = upcast(logits)
    lse = values.logsumexp(1)
    of_gold = values.gather(1, gold[:, None])[:, 0]
    return of_gold - lse, values.mean(1) - lse, lse


def _grad_of_logits(
    logits: Tensor, gold: Tensor, lse: Tensor, grad_gold: Tensor, grad_mean: Tensor, fused: bool
) -> Tensor:
    """d log p(gold)/d logit_v = [v = gold] - p_v, and 1/V - p_v for the mean."""
    if fused:
        from cbmi.model.kernels.head import grads_in_place

        return grads_in_place(logits, gold, lse, grad_gold, grad_mean)
    p = (upcast(logits) - lse[:, None]).exp_()
    grad = p.mul_(-(grad_gold + grad_mean)[:, None])
    grad = grad.add_(grad_mean[:, None] / logits.shape[1])
    return grad.scatter_add_(1, gold[:, None], grad_gold[:, None]).to(logits.dtype)
