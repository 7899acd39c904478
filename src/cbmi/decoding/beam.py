"""Beam search with a key/value cache.

A hypothesis of n tokens (end of sentence included) scores log p / n^length_penalty. A sentence is
finished when none that still grows could overtake the best found, or when as many hypotheses have
ended as the beam is wide and none that grows is ahead of them as it stands. All bookkeeping is in
tensors (sentences, beam, ...): there is no loop over sentences.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.decoding.candidates import (
    Continuations,
    Fusion,
    Hypothesis,
    SearchSettings,
    continuations,
    default_limits,
    hypotheses,
    is_finished,
    length_power,
)
from cbmi.model import Packed, Translator
from cbmi.model.attention import to_rows
from cbmi.model.fusion import fuse
from cbmi.model.head import output_logits


@torch.inference_mode()
def beam_search(
    model: Translator,
    source: Packed,
    settings: SearchSettings,
    limits: Tensor | None = None,
    numbers: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each packed source sentence, best first.

    limits (sentences,): the most tokens a translation may have, end of sentence included; by
    default twice the source's length plus ten. With `settings.fusion`, the fused scores take the
    place of the translator's log-probabilities. With `settings.sampling`, `nbest` is 1: a sample,
    which depends on the sentence's number; numbers (sentences,) are 0, 1, … by default.
    """
    if limits is None:
        limits = default_limits(source.layout.lengths)
    if numbers is None:
        numbers = torch.arange(source.layout.sentences)
    search = _Search(model, source, settings, limits, numbers)
    while not search.finished():
        search.step()
    return hypotheses(search.best_scores, search.best_tokens, settings)


class _Search:
    """The state of a search: the sentences that still grow (`alive`), and the results of all."""

    def __init__(
        self,
        model: Translator,
        source: Packed,
        settings: SearchSettings,
        limits: Tensor,
        numbers: Tensor,
    ) -> None:
        self.cache = _Cache(model, source, settings.beam, settings.fusion)
        self.fused = model.runtime.fused(model.output_weight)
        self.settings = settings
        device = source.ids.device
        sentences = source.layout.sentences
        shape = (sentences, settings.beam, int(limits.max()))
        self.length = 0  # tokens generated so far
        self.alive = torch.arange(
            sentences, device=device
        )  # which sentence each row of the state is
        self.limits = limits.to(device)
        self.numbers = numbers.to(device)
        self.tokens = torch.full(shape, settings.special.pad, device=device)
        self.scores = torch.full(shape[:2], -torch.inf, device=device)
        self.scores[:, 0] = 0.0  # one hypothesis at first: the empty one
        self.ended = torch.zeros(sentences, dtype=torch.long, device=device)
        # The best that have ended, for all sentences; rows of `alive` index into them.
        self.best_scores = torch.full(shape[:2], -torch.inf, device=device)
        self.best_tokens = self.tokens.clone()

    def finished(self) -> bool:
        return len(self.alive) == 0

    def step(self) -> None:
        """Every growing hypothesis gets one more token."""
        if self.length:
            last = self.tokens[:, :, self.length - 1]
        else:
            last = torch.full_like(self.tokens[:, :, 0], self.settings.special.begin)
        logits = self.cache.advance(last.reshape(-1), self.length)
        self.length += 1
        best = continuations(
            logits,
            self.scores,
            self.numbers,
            self.length,
            self.limits,
            self.settings,
            fused=self.fused,
        )
        self._collect_ended(best.first(self.settings.beam))
        self._grow(best)
        self._remove_finished()

    def _collect_ended(self, best: Continuations) -> None:
        """Put hypotheses that end within the beam among the best that have ended."""
        ends = (best.tokens == self.settings.special.end) & (best.scores > -torch.inf)
        self.ended += ends.sum(1)
        power = length_power(self.length, self.settings.length_penalty)
        new_scores = torch.where(ends, best.scores / power, -torch.inf)
        new_tokens = self.tokens[self._rows(), best.parents].clone()
        new_tokens[:, :, self.length - 1] = self.settings.special.end
        pool_scores = torch.cat([self.best_scores[self.alive], new_scores], dim=1)
        pool_tokens = torch.cat([self.best_tokens[self.alive], new_tokens], dim=1)
        best_scores, chosen = pool_scores.topk(self.settings.beam, dim=1)
        self.best_scores[self.alive] = best_scores
        self.best_tokens[self.alive] = pool_tokens[self._rows(), chosen]

    def _grow(self, best: Continuations) -> None:
        """Keep the `beam` best candidates that do not end."""
        growing = best.scores.masked_fill(best.tokens == self.settings.special.end, -torch.inf)
        self.scores, chosen = growing.topk(self.settings.beam, dim=1)
        parents = best.parents.gather(1, chosen)
        self.tokens = self.tokens[self._rows(), parents]
        self.tokens[:, :, self.length - 1] = best.tokens.gather(1, chosen)
        self.cache.reorder((self._rows() * self.settings.beam + parents).view(-1))

    def _remove_finished(self) -> None:
        """Finished sentences leave the batch, so they cost nothing more."""
        finished = is_finished(
            found=self.best_scores[self.alive, self.settings.nbest - 1],
            growing=self.scores[:, 0],
            ended=self.ended,
            length=self.length,
            limits=self.limits,
            settings=self.settings,
        )
        if not bool(finished.any()):
            return
        stay = (~finished).nonzero()[:, 0]
        self.alive = self.alive[stay]
        self.limits = self.limits[stay]
        self.numbers = self.numbers[stay]
        self.ended = self.ended[stay]
        self.tokens = self.tokens[stay]
        self.scores = self.scores[stay]
        self.cache.keep(stay)

    def _rows(self) -> Tensor:
        """(rows, 1): an index into the first dimension of the state."""
        return torch.arange(len(self.alive), device=self.alive.device)[:, None]


class _Cache:
    """Keys and values: of the source, padded, once a sentence; of the target, once a hypothesis."""

    def __init__(self, model: Translator, source: Packed, beam: int, fusion: Fusion | None) -> None:
        self.model = model
        self.beam = beam
        self.fusion = fusion
        layout = source.layout
        self.filled = layout.filled[:, None, None, :]  # (sentences, 1, 1, source length)
        self.source = []  # per layer: (sentences, 2, heads, source length, size)
        for memory in model.memories(model.encode(source)):
            key, value = memory.unbind(1)
            self.source.append(torch.stack([to_rows(key, layout), to_rows(value, layout)], 1))
        self.past = _Past()
        self.language_model_past = _Past()

    def advance(self, ids: Tensor, position: int) -> Tensor:
        """Read one token per hypothesis: ids (rows × beam,) → (rows × beam, vocabulary).

        Gives logits; with fusion, fused scores.
        """
        positions = torch.full_like(ids, position)
        self.past.length = position
        self.language_model_past.length = position
        hidden = self.model.decode(
            ids, positions, position + 1, self.past.attend, self._attend_source
        )
        logits = output_logits(hidden, self.model.output_weight)
        if self.fusion is None:
            return logits
        language_model = self.fusion.language_model
        hidden = language_model.decode(
            ids, positions, position + 1, self.language_model_past.attend
        )
        lm_logits = output_logits(hidden, language_model.output_weight)
        return fuse(logits, lm_logits, self.fusion.kind)

    def _attend_source(self, query: Tensor, layer: int) -> Tensor:
        """The hypotheses of a sentence share its source: they are the queries of one attention."""
        grouped = query.unflatten(0, (-1, self.beam)).transpose(1, 2)
        key, value = self.source[layer].unbind(1)
        mixed = F.scaled_dot_product_attention(grouped, key, value, attn_mask=self.filled)
        return mixed.transpose(1, 2).flatten(0, 1)

    def reorder(self, rows: Tensor) -> None:
        self.past.reorder(rows)
        self.language_model_past.reorder(rows)

    def keep(self, sentences: Tensor) -> None:
        self.filled = self.filled[sentences]
        self.source = [memory[sentences] for memory in self.source]
        beams = torch.arange(self.beam, device=sentences.device)
        self.reorder((sentences[:, None] * self.beam + beams).view(-1))


class _Past:
    """Keys and values that each layer of a network has seen, with room for more.

    A token's are written in place. What a step reorders is copied once, from one buffer into the
    other.
    """

    def __init__(self) -> None:
        self.length = 0  # tokens before the one that is being read
        # By layer: the buffer in use and the spare one, each (rows, room, 2, heads, size).
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, qkv: Tensor, layer: int) -> Tensor:
        """Attention of one new token per row to all so far; qkv (rows, 3, heads, size)."""
        self._make_room(qkv, layer)
        buffer, _ = self.buffers[layer]
        buffer[:, self.length] = qkv[:, 1:]
        # (rows, heads, tokens, size) each
        key, value = buffer[:, : self.length + 1].transpose(1, 3).unbind(2)
        return F.scaled_dot_product_attention(qkv[:, 0, :, None], key, value)[:, :, 0]

    def _make_room(self, qkv: Tensor, layer: int) -> None:
        if layer in self.buffers:
            before = self.buffers[layer][0]
        else:
            before = qkv[:, None, 1:][:, :0]  # no tokens yet, but the right shape
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
