"""Which continuations of a sentence's hypotheses are the best."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.model import kernels

CHUNK = 64  # logits that are looked at together when the best are sought
CPU_ROWS = 8  # hypotheses whose logits fit into a CPU's caches


@dataclass(frozen=True)
class Special:
    """Ids that mean something to the search."""

    pad: int
    begin: int
    end: int


def best_continuations(
    logits: Tensor, scores: Tensor, at_limit: Tensor, special: Special, normal: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The 2 · beam best of score + log p among all continuations of each slot's hypotheses, best first.

    logits (slots × beam, vocabulary), `normal` where they are log-probabilities already; scores (slots, beam);
    at_limit (slots,): where only the end of sentence may follow. Gives scores, hypotheses and tokens, each
    (slots, 2 · beam). The best tokens of a row are in the chunks with its highest logits: one pass finds those.
    """
    slots, beam = scores.shape
    size, count = logits.shape[1], 2 * beam
    total, maxima = survey(logits)
    chunk = maxima.topk(min(count + 1, maxima.shape[1]), dim=1).indices  # one may stand out by a token that is barred
    first = torch.arange(chunk.shape[1], device=chunk.device) == 0
    at_limit = at_limit.repeat_interleave(beam)[:, None]
    chunk = torch.where(at_limit, special.end // CHUNK, chunk)
    words = (chunk[:, :, None] * CHUNK + torch.arange(CHUNK, device=chunk.device)).flatten(1)
    inside = words.clamp(max=size - 1)
    values = logits.gather(1, inside).float()
    if not normal:
        values = values - total[:, None]
    only_end = (words == special.end) & first.repeat_interleave(CHUNK)
    allowed = torch.where(at_limit, only_end, (words < size) & (words != special.pad) & (words != special.begin))
    values = (values + scores.view(-1, 1)).masked_fill(~allowed, -torch.inf)
    best, place = values.view(slots, -1).topk(count, dim=1)
    return best, place // words.shape[1], inside.view(slots, -1).gather(1, place)


def survey(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of each row (rows,), and the highest logit of each chunk of its columns (rows, chunks)."""
    if kernels.fused(logits):
        from cbmi.model.kernels.decode import survey as fused_survey

        return fused_survey(logits, CHUNK)
    rows = CPU_ROWS if logits.device.type == "cpu" else len(logits)
    totals, maxima = zip(*map(_survey, logits.split(max(rows, 1))), strict=True)
    return torch.cat(totals), torch.cat(maxima)


def _survey(logits: Tensor) -> tuple[Tensor, Tensor]:
    values = logits.float()
    missing = -values.shape[1] % CHUNK
    padded = F.pad(values, (0, missing), value=-torch.inf) if missing else values
    maxima = padded.view(len(values), -1, CHUNK).amax(2)
    highest = maxima.amax(1, keepdim=True)
    return (values - highest).exp_().sum(1).log_() + highest[:, 0], maxima
