"""From logits and labels to the token scores that objectives are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cbmi.huggingface.columns import IGNORED

CHUNK = 1 << 26  # logits that are computed with in float32 at a time, twice a quarter of a GiB
SENTENCE_BITS = 40  # of the hash that stands for a sentence
POSITION_BITS = 12  # of a token's position in it; together they fit into a float64


class _GoldScores(torch.autograd.Function):
    """log p of the gold tokens, and the vocabulary's mean log p, without a copy of the logits.

    Neither pass holds more than a chunk of probabilities: the backward pass computes them again.
    Few passes over each chunk, by few kernels: they are most of the loss's time.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        nmt = torch.empty(len(gold), dtype=dtype, device=logits.device)
        mean = torch.empty_like(nmt)
        for rows in _chunks(logits):
            log_p = logits[rows].log_softmax(-1, dtype=dtype)
            nmt[rows] = log_p.gather(-1, gold[rows, None]).squeeze(-1)
            mean[rows] = log_p.mean(-1)
        ctx.save_for_backward(logits, gold)
        ctx.set_materialize_grads(False)
        return nmt, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        logits, gold = ctx.saved_tensors
        of_nmt, of_mean = gradients
        given = [one for one in gradients if one is not None]
        if not given:
            return None, None
        total = torch.stack(given).sum(0)
        gradient = torch.empty_like(logits)
        in_place = gradient.dtype == total.dtype
        for rows in _chunks(logits):
            place = gradient[rows] if in_place else None  # else computed beside it, and rounded
            chunk = torch.softmax(logits[rows], -1, dtype=total.dtype, out=place)
            if of_mean is None:
                chunk.mul_(-total[rows, None])
            else:
                share = (of_mean[rows, None] / logits.shape[-1]).expand_as(chunk)
                torch.addcmul(share, chunk, total[rows, None], value=-1, out=chunk)
            if of_nmt is not None:
                chunk.scatter_add_(-1, gold[rows, None], of_nmt[rows, None])
            if not in_place:
                gradient[rows] = chunk
        return gradient, None


def _chunks(logits: Tensor) -> list[slice]:
    size = max(1, CHUNK // logits.shape[-1])
    return [slice(start, start + size) for start in range(0, len(logits), size)]


def gold_scores(logits: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """logits (rows, vocabulary), gold (rows,) → log p(gold) and mean log p, each (rows,)."""
    nmt, mean = _GoldScores.apply(logits, gold)  # type: ignore[no-untyped-call]
    return nmt, mean


def place_hashes(ids: list[Tensor], is_predicted: Tensor) -> Tensor:
    """(sentences, length): a number for each label that depends on its pair and position alone.

    `ids`: (sentences, any length) each, what the pair consists of, -100 where there is nothing.
    """
    together = torch.cat(ids, dim=1)
    is_there = together != IGNORED
    positions = is_there.cumsum(1)  # whichever side is padded
    mixed = (together + 1) * -7046029254386353131 + positions * 2654435761
    mixed = (mixed ^ ((mixed >> 29) & ((1 << 35) - 1))) * -4658895280553007687
    sentence = torch.where(is_there, mixed, 0).sum(1)
    sentence = (sentence >> 12) & ((1 << SENTENCE_BITS) - 1)
    position = is_predicted.cumsum(1) & ((1 << POSITION_BITS) - 1)
    return (sentence[:, None] << POSITION_BITS) + position
