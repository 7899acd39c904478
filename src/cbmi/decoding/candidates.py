"""What both forms of the search share: its settings, the next tokens, the stopping rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.decoding.sampling import Sampling, sample_tokens
from cbmi.model import LanguageModel
from cbmi.model.fusion import FusionKind

CHUNK = 64  # logits that are searched together for the best
CPU_ROWS = 8  # hypotheses whose logits fit into a CPU's caches


@dataclass(frozen=True)
class SpecialIds:
    """Ids that mean something to the search; `pad` and `begin` are below `CHUNK`."""

    pad: int
    begin: int
    end: int
    unknown: int | None = None  # never sampled

    def __post_init__(self) -> None:
        # `best_continuations` relies on it: both lie in one chunk of the vocabulary.
        assert max(self.pad, self.begin) < CHUNK


@dataclass(frozen=True)
class Fusion:
    """A language model that takes part in the search."""

    language_model: LanguageModel
    kind: FusionKind


@dataclass(frozen=True)
class SearchSettings:
    """How to search: for the best translations, or, with `sampling`, for samples."""

    special: SpecialIds
    beam: int = 4
    length_penalty: float = 0.6
    nbest: int = 1
    fusion: Fusion | None = None
    sampling: Sampling | None = None  # the beam is then 1

    def __post_init__(self) -> None:
        assert self.sampling is None or self.beam == 1


@dataclass(frozen=True)
class Hypothesis:
    ids: list[int]  # without the end of sentence
    score: float  # log-probability / length^length_penalty
    log_probability: float


class Continuations(NamedTuple):
    """Continuations of each sentence, best first: (sentences, 2 · beam) each."""

    scores: Tensor
    parents: Tensor  # which hypothesis each one continues
    tokens: Tensor

    def first(self, count: int) -> Continuations:
        return Continuations(
            self.scores[:, :count], self.parents[:, :count], self.tokens[:, :count]
        )


def continuations(
    logits: Tensor,
    scores: Tensor,
    numbers: Tensor,
    length: int | Tensor,
    limits: Tensor,
    settings: SearchSettings,
    *,
    fused: bool = False,
) -> Continuations:
    """How the hypotheses of each sentence continue: with the best tokens, or with a sampled one.

    logits (sentences × beam, vocabulary), or the scores of a fusion; scores (sentences, beam);
    numbers (sentences,): which sentences these are; length: tokens, the next one included;
    limits (sentences,): at most.
    """
    normalised = settings.fusion is not None
    fused = fused and not normalised  # the scores of a fusion are in float32
    at_limit = limits <= length
    special = settings.special
    if settings.sampling is None:
        return best_continuations(
            logits, scores, at_limit, special, normalised=normalised, fused=fused
        )
    positions = torch.zeros_like(numbers) + (length - 1)
    rows = _rows_at_a_time(logits)
    excluded = [special.pad, special.begin]
    if special.unknown is not None:
        excluded.append(special.unknown)
    drawn = []
    for block in zip(logits.split(rows), numbers.split(rows), positions.split(rows), strict=True):
        drawn.append(sample_tokens(*block, settings.sampling, tuple(excluded)))
    tokens = torch.where(at_limit, special.end, torch.cat(drawn))
    return sampled_continuations(logits, scores, tokens, normalised=normalised, fused=fused)


def sampled_continuations(
    logits: Tensor, scores: Tensor, tokens: Tensor, *, normalised: bool = False, fused: bool = False
) -> Continuations:
    """The sampled tokens (sentences,) as continuations; the second of each sentence is impossible.

    Temperature and top-k decide what is drawn, not how it scores: logits (sentences, vocabulary)
    and scores (sentences, 1) as in `best_continuations`.
    """
    log_p = logits.gather(1, tokens[:, None]).float()
    if not normalised:
        lse, _ = survey(logits, fused)
        log_p = log_p - lse[:, None]
    sampled = scores + log_p
    impossible = torch.full_like(sampled, -torch.inf)
    pairs = tokens[:, None].repeat(1, 2)
    return Continuations(torch.cat([sampled, impossible], 1), torch.zeros_like(pairs), pairs)


def best_continuations(
    logits: Tensor,
    scores: Tensor,
    at_limit: Tensor,
    special: SpecialIds,
    *,
    normalised: bool = False,
    fused: bool = False,
) -> Continuations:
    """The 2 · beam best of score + log p among all continuations of each sentence's hypotheses.

    logits (sentences × beam, vocabulary), `normalised` if they are log-probabilities already;
    scores (sentences, beam); at_limit (sentences,): where only the end of sentence may follow.
    Sorting the whole vocabulary would be slow. The best tokens of a row lie in the chunks of
    columns with its highest logits, and one pass over the logits finds those chunks.
    """
    sentences, beam = scores.shape
    vocabulary = logits.shape[1]
    count = 2 * beam
    lse, chunk_maxima = survey(logits, fused)
    # One more chunk than candidates: the chunk of padding and begin may stand out by those alone.
    chunks = chunk_maxima.topk(min(count + 1, chunk_maxima.shape[1]), dim=1).indices
    row_at_limit = at_limit.repeat_interleave(beam)[:, None]
    chunks = torch.where(row_at_limit, special.end // CHUNK, chunks)

    # The tokens of the chosen chunks, and their scores.
    tokens = (chunks[:, :, None] * CHUNK + torch.arange(CHUNK, device=chunks.device)).flatten(1)
    inside = tokens.clamp(max=vocabulary - 1)
    values = logits.gather(1, inside).float()
    if not normalised:
        values = values - lse[:, None]

    # At the limit every chosen chunk is the same one: only its first copy counts.
    first_chunk = torch.arange(chunks.shape[1], device=chunks.device) == 0
    only_end = (tokens == special.end) & first_chunk.repeat_interleave(CHUNK)
    ordinary = (tokens < vocabulary) & (tokens != special.pad) & (tokens != special.begin)
    allowed = torch.where(row_at_limit, only_end, ordinary)
    values = (values + scores.view(-1, 1)).masked_fill(~allowed, -torch.inf)

    best, place = values.view(sentences, -1).topk(count, dim=1)
    parents = place // tokens.shape[1]
    return Continuations(best, parents, inside.view(sentences, -1).gather(1, place))


def survey(logits: Tensor, fused: bool = False) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of each row (rows,), and the maximum of each chunk of columns (rows, chunks)."""
    if fused:
        from cbmi.model.kernels.decode import fused_survey

        return fused_survey(logits, CHUNK)
    lses = []
    maxima = []
    for block in logits.split(_rows_at_a_time(logits)):
        lse, block_maxima = _survey(block)
        lses.append(lse)
        maxima.append(block_maxima)
    return torch.cat(lses), torch.cat(maxima)


def _rows_at_a_time(logits: Tensor) -> int:
    return CPU_ROWS if logits.device.type == "cpu" else max(len(logits), 1)


def _survey(logits: Tensor) -> tuple[Tensor, Tensor]:
    values = logits.float()
    missing = -values.shape[1] % CHUNK
    padded = F.pad(values, (0, missing), value=-torch.inf) if missing else values
    maxima = padded.view(len(values), -1, CHUNK).amax(2)
    highest = maxima.amax(1, keepdim=True)
    lse = (values - highest).exp_().sum(1).log_() + highest[:, 0]
    return lse, maxima


def is_finished(
    found: Tensor,
    growing: Tensor,
    ended: Tensor,
    length: int | Tensor,
    limits: Tensor,
    settings: SearchSettings,
) -> Tensor:
    """The stopping rule: (sentences,) true where the search is over.

    found: the n-th best score of hypotheses that have ended; growing: the best log-probability of
    those that still grow; ended: how many have ended; length: tokens so far; limits: at most.
    """
    penalty = settings.length_penalty
    # Whatever tokens follow, a growing hypothesis can at best keep its log-probability up to the
    # limit.
    cannot_be_beaten = found >= growing / limits.double() ** penalty
    ahead_now = found >= growing / length_power(length, penalty)
    enough_ended = ended >= settings.beam
    return cannot_be_beaten | (ahead_now & enough_ended) | (limits <= length)


def length_power(length: int | Tensor, penalty: float) -> float | Tensor:
    """length^penalty: what the log-probability of a hypothesis of this length is divided by."""
    if isinstance(length, Tensor):
        return (length.double() ** penalty).float()
    return float(length**penalty)


def hypotheses(scores: Tensor, tokens: Tensor, settings: SearchSettings) -> list[list[Hypothesis]]:
    """What was found, best first.

    scores (sentences, beam), -inf where there is nothing; tokens (sentences, beam, length).
    """
    results = []
    for row_scores, row_tokens in zip(scores.tolist(), tokens.tolist(), strict=True):
        found: list[Hypothesis] = []
        for score, ids in zip(row_scores, row_tokens, strict=True):
            if score > -torch.inf and len(found) < settings.nbest:
                length = ids.index(settings.special.end) + 1
                log_probability = score * length**settings.length_penalty
                found.append(Hypothesis(ids[: length - 1], score, log_probability))
        results.append(found)
    return results


def default_limits(lengths: Tensor) -> Tensor:
    """The most tokens that translations of sentences of these lengths may have, end included."""
    return 2 * lengths + 10
