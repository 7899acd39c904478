"""Beam search with a key/value cache.

A hypothesis of n tokens (end of sentence included) scores log p / n^length_penalty. A sentence is done when none that
still grows could overtake the best found, or when as many hypotheses have ended as the beam is wide and none that
grows is ahead of them as it stands. All bookkeeping is in tensors (sentences, beam, ...): no loop over sentences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.decoding.candidates import Special, best_continuations
from cbmi.model import LanguageModel, Packed, Translator
from cbmi.model.attention import to_rows
from cbmi.model.fusion import fuse
from cbmi.model.head import output_logits


@dataclass(frozen=True)
class Hypothesis:
    ids: list[int]  # without the end of sentence
    score: float  # log-probability / length^length_penalty
    log_probability: float


@dataclass(frozen=True)
class Fusion:
    """A language model that takes part in the search."""

    language_model: LanguageModel
    kind: str  # "prenorm" or "postnorm", see `cbmi.model.fusion`


@torch.inference_mode()
def beam_search(
    model: Translator,
    source: Packed,
    special: Special,
    *,
    beam: int = 4,
    length_penalty: float = 0.6,
    nbest: int = 1,
    limits: Tensor | None = None,
    fusion: Fusion | None = None,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each packed source sentence, best first.

    limits (sentences,): the most tokens a translation may have, end of sentence included; by default twice the
    source's length plus ten. With `fusion`, the fused scores take the place of the translator's log-probabilities.
    """
    if limits is None:
        limits = default_limits(source.layout.lengths)
    search = _Search(_Cache(model, source, beam, fusion), source, special, beam, length_penalty, nbest, limits)
    while not search.finished():
        search.step()
    return search.results()


def default_limits(lengths: Tensor) -> Tensor:
    """The most tokens that the translations of sentences of these lengths may have, end of sentence included."""
    return 2 * lengths + 10


class _Search:
    """The state of a search over the sentences that are still growing (`alive`) and the results of all."""

    def __init__(self, cache, source, special, beam, length_penalty, nbest, limits) -> None:
        self.cache, self.special = cache, special
        self.beam, self.penalty, self.nbest = beam, length_penalty, nbest
        device = source.ids.device
        sentences, most = source.layout.sentences, int(limits.max())
        self.length = 0  # tokens generated so far
        self.alive = torch.arange(sentences, device=device)  # which sentence each row of the state is
        self.limits = limits.to(device)
        self.tokens = torch.full((sentences, beam, most), special.pad, device=device)
        self.scores = torch.full((sentences, beam), -torch.inf, device=device)
        self.scores[:, 0] = 0.0
        self.ended = torch.zeros(sentences, dtype=torch.long, device=device)  # hypotheses that have ended
        # The best that have ended, for all sentences; rows of `alive` index into them.
        self.best_scores = torch.full((sentences, beam), -torch.inf, device=device)
        self.best_tokens = self.tokens.clone()

    def finished(self) -> bool:
        return len(self.alive) == 0

    def step(self) -> None:
        """Every growing hypothesis gets one more token."""
        last = self.tokens[:, :, self.length - 1] if self.length else self.tokens[:, :, 0] * 0 + self.special.begin
        logits = self.cache.advance(last.reshape(-1), self.length)
        self.length += 1
        normal = self.cache.fusion is not None
        best = best_continuations(logits, self.scores, self.limits <= self.length, self.special, normal)
        self._end(*best)
        self._grow(*best)
        self._leave()

    def _end(self, scores: Tensor, parents: Tensor, words: Tensor) -> None:
        """Put hypotheses that end within the beam among the best that have ended."""
        scores, parents, words = scores[:, : self.beam], parents[:, : self.beam], words[:, : self.beam]
        ends = (words == self.special.end) & (scores > -torch.inf)
        self.ended += ends.sum(1)
        new = torch.where(ends, scores / self.length**self.penalty, -torch.inf)
        rows = torch.arange(len(self.alive), device=new.device)[:, None]
        tokens = self.tokens[rows, parents].clone()
        tokens[:, :, self.length - 1] = self.special.end
        pool = torch.cat([self.best_scores[self.alive], new], dim=1)
        pool_tokens = torch.cat([self.best_tokens[self.alive], tokens], dim=1)
        best, chosen = pool.topk(self.beam, dim=1)
        self.best_scores[self.alive] = best
        self.best_tokens[self.alive] = pool_tokens[rows, chosen]

    def _grow(self, scores: Tensor, parents: Tensor, words: Tensor) -> None:
        """Keep the `beam` best candidates that do not end."""
        growing = scores.masked_fill(words == self.special.end, -torch.inf)
        self.scores, chosen = growing.topk(self.beam, dim=1)
        parents, words = parents.gather(1, chosen), words.gather(1, chosen)
        rows = torch.arange(len(self.alive), device=scores.device)[:, None]
        self.tokens = self.tokens[rows, parents]
        self.tokens[:, :, self.length - 1] = words
        self.cache.reorder((rows * self.beam + parents).view(-1))

    def _leave(self) -> None:
        """Sentences that are done leave the batch, so they cost nothing more."""
        found = self.best_scores[self.alive, self.nbest - 1]
        beaten = found >= self.scores[:, 0] / self.limits.double() ** self.penalty  # whatever comes
        behind = found >= self.scores[:, 0] / self.length**self.penalty
        done = beaten | (behind & (self.ended >= self.beam)) | (self.limits <= self.length)
        if not bool(done.any()):
            return
        stay = (~done).nonzero()[:, 0]
        self.alive, self.limits, self.ended = self.alive[stay], self.limits[stay], self.ended[stay]
        self.tokens, self.scores = self.tokens[stay], self.scores[stay]
        self.cache.keep(stay)

    def results(self) -> list[list[Hypothesis]]:
        return hypotheses(self.best_scores, self.best_tokens, self.special.end, self.penalty, self.nbest)


def hypotheses(scores: Tensor, tokens: Tensor, end: int, penalty: float, nbest: int) -> list[list[Hypothesis]]:
    """What was found: scores (sentences, beam), -inf where there is nothing; tokens (sentences, beam, length)."""

    def one(score: float, ids: list[int]) -> Hypothesis:
        length = ids.index(end) + 1
        return Hypothesis(ids[: length - 1], score, score * length**penalty)

    return [
        [one(*pair) for pair in zip(*sentence, strict=True) if pair[0] > -torch.inf][:nbest]
        for sentence in zip(scores.tolist(), tokens.tolist(), strict=True)
    ]


class _Cache:
    """Keys and values: of the source, padded, once a sentence; of the translation so far, once a hypothesis."""

    def __init__(self, model: Translator, source: Packed, beam: int, fusion: Fusion | None) -> None:
        self.model, self.beam, self.fusion = model, beam, fusion
        layout = source.layout
        self.filled = layout.filled[:, None, None, :]  # (sentences, 1, 1, source length)
        states = model.encode(source)
        memories = model.memories(states)
        self.source = [
            torch.stack([to_rows(part, layout) for part in memory.unbind(1)], 1) for memory in memories
        ]  # (sentences, 2, heads, source length, size)
        self.past, self.language_model_past = _Past(), _Past()

    def advance(self, ids: Tensor, position: int) -> Tensor:
        """Read one token a hypothesis: ids (rows × beam,) → logits, or fused scores (rows × beam, vocabulary)."""
        positions = torch.full_like(ids, position)
        self.past.length = self.language_model_past.length = position
        hidden = self.model.decode(ids, positions, position + 1, self.past.attend, self._attend_source)
        logits = output_logits(hidden, self.model.output_weight)
        if self.fusion is None:
            return logits
        other = self.fusion.language_model
        hidden = other.decode(ids, positions, position + 1, self.language_model_past.attend)
        return fuse(logits, output_logits(hidden, other.output_weight), self.fusion.kind)

    def _attend_source(self, query: Tensor, layer: int) -> Tensor:
        """The hypotheses of a sentence share its source: they are the queries of one attention."""
        grouped = query.unflatten(0, (-1, self.beam)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(grouped, *self.source[layer].unbind(1), attn_mask=self.filled)
        return mixed.transpose(1, 2).flatten(0, 1)

    def reorder(self, rows: Tensor) -> None:
        self.past.reorder(rows)
        self.language_model_past.reorder(rows)

    def keep(self, sentences: Tensor) -> None:
        self.filled = self.filled[sentences]
        self.source = [memory[sentences] for memory in self.source]
        rows = (sentences[:, None] * self.beam + torch.arange(self.beam, device=sentences.device)).view(-1)
        self.reorder(rows)


class _Past:
    """Keys and values that each layer of a network has seen, with room for more to come: a token's are written in
    place, and what a step moves is copied once, from one buffer into the other."""

    def __init__(self) -> None:
        self.length = 0  # tokens before the one that is being read
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}  # a layer: used, spare; (rows, room, 2, heads, size)

    def attend(self, qkv: Tensor, layer: int) -> Tensor:
        """Attention of one new token a row to all so far; qkv (rows, 3, heads, size)."""
        self._make_room(qkv, layer)
        buffer, _ = self.buffers[layer]
        buffer[:, self.length] = qkv[:, 1:]
        key, value = buffer[:, : self.length + 1].transpose(1, 3).unbind(2)  # (rows, heads, tokens, size)
        return F.scaled_dot_product_attention(qkv[:, 0, :, None], key, value)[:, :, 0]

    def _make_room(self, qkv: Tensor, layer: int) -> None:
        before = self.buffers[layer][0] if layer in self.buffers else qkv[:, None, 1:][:, :0]
        if before.shape[1] > self.length:
            return
        room = before.new_empty(2, len(before), max(16, 2 * self.length), *before.shape[2:])
        room[0, :, : self.length] = before
        self.buffers[layer] = (room[0], room[1])

    def reorder(self, rows: Tensor) -> None:
        """Each row becomes a copy of another; there may be fewer than before."""
        tokens = self.length + 1
        for layer, (buffer, spare) in self.buffers.items():
            moved = spare[: len(rows)]
            torch.index_select(buffer[:, :tokens], 0, rows, out=moved[:, :tokens])
            self.buffers[layer] = (moved, buffer[: len(rows)])
