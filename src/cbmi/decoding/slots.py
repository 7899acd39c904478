"""Beam search in slots: shapes never change, and a slot whose sentence is done takes the next one.

The search is that of `cbmi.decoding.beam`, sentence by sentence. All its state lies in tensors of a fixed size, so a
step can be recorded once as a CUDA graph and replayed; the host looks every few steps which sentences are done,
without waiting for it. Keys and values stay where they were written: hypotheses remember which row of their sentence
holds each of their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cbmi.decoding.beam import Fusion
from cbmi.decoding.candidates import Special, best_continuations
from cbmi.model import Packed, Translator, kernels
from cbmi.model.fusion import fuse
from cbmi.model.head import output_logits


@dataclass(frozen=True)
class Room:
    """How much the slots hold."""

    slots: int
    length: int  # tokens of a translation, end of sentence included
    source: int  # tokens of a source sentence


class Slots:
    """The state of a search over `room.slots` sentences at a time."""

    def __init__(
        self,
        model: Translator,
        special: Special,
        room: Room,
        beam: int,
        length_penalty: float,
        nbest: int,
        fusion: Fusion | None,
    ) -> None:
        self.model, self.special, self.room = model, special, room
        self.beam, self.penalty, self.nbest, self.fusion = beam, length_penalty, nbest, fusion
        for embedding in (model.target_embedding, *([fusion.language_model.embedding] if fusion else [])):
            embedding.reach(room.length)
        weight = model.output_weight
        self.device = device = weight.device
        shape = (room.slots, beam, room.length)
        self.active = torch.zeros(room.slots, dtype=torch.bool, device=device)
        self.length = torch.zeros(room.slots, dtype=torch.long, device=device)  # tokens generated so far
        self.limits = torch.ones(room.slots, dtype=torch.long, device=device)
        self.ended = torch.zeros(room.slots, dtype=torch.long, device=device)  # hypotheses that have ended
        self.tokens = torch.full(shape, special.pad, device=device)
        self.holders = torch.zeros(shape, dtype=torch.int32, device=device)  # rows that hold the tokens' keys
        self.scores = torch.full(shape[:2], -torch.inf, device=device)
        self.best_scores = torch.full(shape[:2], -torch.inf, device=device)
        self.best_tokens = torch.full(shape, special.pad, device=device)
        heads = (model.shape.heads, model.shape.width // model.shape.heads)
        self.source_lengths = torch.zeros(room.slots, dtype=torch.long, device=device)
        self.memories = [weight.new_zeros(room.slots, room.source, 2, *heads) for _ in model.decoder]
        layers = len(model.decoder) + (len(fusion.language_model.layers) if fusion else 0)
        self.past = [weight.new_zeros(room.slots * beam, room.length, 2, *heads) for _ in range(layers)]
        self.beams = torch.arange(beam, device=device)

    def put(self, slots: Tensor, source: Packed, memories: list[Tensor], limits: Tensor) -> None:
        """Begin new sentences in some slots; `memories`: each layer's keys and values of their packed sources."""
        self.active[slots], self.length[slots], self.ended[slots] = True, 0, 0
        self.limits[slots], self.source_lengths[slots] = limits, source.layout.lengths
        self.scores[slots], self.best_scores[slots] = -torch.inf, -torch.inf
        self.scores[slots, 0] = 0.0
        self.tokens[slots], self.best_tokens[slots] = self.special.pad, self.special.pad
        place = slots[source.layout.sentence] * self.room.source + source.layout.position
        for kept, memory in zip(self.memories, memories, strict=True):
            kept.flatten(0, 1)[place] = memory

    def step(self) -> None:
        """Every growing hypothesis of every slot gets one more token."""
        last = self.tokens.gather(2, self._at((self.length - 1).clamp(min=0)))[:, :, 0]
        last = torch.where(self.length[:, None] == 0, self.special.begin, last)
        self.holders.scatter_(2, self._at(self.length), self.beams.int()[None, :, None].expand(len(last), -1, 1))
        scores, parents, words = self._candidates(last.flatten())
        length = self.length + 1
        power = (length.double() ** self.penalty).float()
        self._end(scores, parents, words, power)
        self._grow(scores, parents, words)
        self._leave(length, power)

    def _at(self, place: Tensor) -> Tensor:
        """(slots,) → (slots, beam, 1), an index into the third dimension of the tokens."""
        return place[:, None, None].expand(-1, self.beam, 1)

    def _candidates(self, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The 2 · beam best continuations of each slot's hypotheses: their scores, hypotheses and tokens."""
        position = self.length.repeat_interleave(self.beam)
        longest = self.room.length
        hidden = self.model.decode(last, position, longest, self._attend_past, self._attend_source)
        at_limit = self.limits <= self.length + 1
        logits = output_logits(hidden, self.model.output_weight)
        if self.fusion is not None:
            other = self.fusion.language_model
            hidden = other.decode(last, position, longest, self._attend_language_model_past)
            logits = fuse(logits, output_logits(hidden, other.output_weight), self.fusion.kind)
        normal = self.fusion is not None
        return best_continuations(logits, self.scores, at_limit, self.special, normal)

    def _attend_past(self, qkv: Tensor, layer: int) -> Tensor:
        """Attention of one new token a row to those before it."""
        past = self.past[layer]
        rows = torch.arange(len(past), device=self.device)
        past[rows, self.length.repeat_interleave(self.beam)] = qkv[:, 1:]
        return attend_cache(qkv[:, 0], past, self.length + 1, self.beam, self.holders.flatten(0, 1))

    def _attend_language_model_past(self, qkv: Tensor, layer: int) -> Tensor:
        return self._attend_past(qkv, len(self.model.decoder) + layer)

    def _attend_source(self, query: Tensor, layer: int) -> Tensor:
        return attend_cache(query, self.memories[layer], self.source_lengths, self.beam, None)

    def _end(self, scores: Tensor, parents: Tensor, words: Tensor, power: Tensor) -> None:
        """Put hypotheses that end within the beam among the best that have ended."""
        scores, parents, words = scores[:, : self.beam], parents[:, : self.beam], words[:, : self.beam]
        ends = (words == self.special.end) & (scores > -torch.inf) & self.active[:, None]
        self.ended += ends.sum(1)
        new = torch.where(ends, scores / power[:, None], -torch.inf)
        tokens = self._of_parents(self.tokens, parents)
        tokens.scatter_(2, self._at(self.length), self.special.end)
        pool = torch.cat([self.best_scores, new], dim=1)
        best, chosen = pool.topk(self.beam, dim=1)
        self.best_scores.copy_(best)
        self.best_tokens.copy_(self._of_parents(torch.cat([self.best_tokens, tokens], dim=1), chosen))

    def _of_parents(self, values: Tensor, parents: Tensor) -> Tensor:
        return values.gather(1, parents[:, :, None].expand(-1, -1, self.room.length))

    def _grow(self, scores: Tensor, parents: Tensor, words: Tensor) -> None:
        """Keep the `beam` best candidates that do not end."""
        growing = scores.masked_fill(words == self.special.end, -torch.inf)
        best, chosen = growing.topk(self.beam, dim=1)
        parents, words = parents.gather(1, chosen), words.gather(1, chosen)
        self.scores.copy_(best)
        tokens = self._of_parents(self.tokens, parents)
        self.tokens.copy_(tokens.scatter_(2, self._at(self.length), words[:, :, None]))
        self.holders.copy_(self._of_parents(self.holders, parents))

    def _leave(self, length: Tensor, power: Tensor) -> None:
        """Sentences that are done grow no further."""
        found = self.best_scores[:, self.nbest - 1]
        beaten = found >= self.scores[:, 0] / self.limits.double() ** self.penalty  # whatever comes
        behind = found >= self.scores[:, 0] / power
        self.active &= ~(beaten | (behind & (self.ended >= self.beam)) | (self.limits <= length))
        self.length.copy_(torch.where(self.active, length, self.length))


def attend_cache(query: Tensor, cache: Tensor, lengths: Tensor, rows: int, holders: Tensor | None) -> Tensor:
    """Attention of one token a hypothesis to what is kept: query (hypotheses, heads, size) → the same.

    cache (holders, longest, 2, heads, size); lengths (groups,): what each group of `rows` hypotheses sees of it;
    holders (hypotheses, longest): which row of its group holds each place; None where there is one holder a group.
    """
    if kernels.fused(query):
        from cbmi.model.kernels.decode import attend_cache as fused_attend

        return fused_attend(query, cache, lengths, rows, holders)
    longest = torch.arange(cache.shape[1], device=query.device)
    group = torch.arange(len(query), device=query.device)[:, None] // rows
    keys, values = cache[group if holders is None else group * rows + holders, longest].unbind(2)
    scores = torch.einsum("rhd,rlhd->rhl", query, keys) * query.shape[-1] ** -0.5
    seen = (longest < lengths.clamp(min=1).repeat_interleave(rows)[:, None])[:, None]
    return torch.einsum("rhl,rlhd->rhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), values)
