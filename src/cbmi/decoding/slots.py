"""Beam search in slots: shapes never change, and a slot whose sentence is finished takes the next
one.

The search is that of `cbmi.decoding.beam`, sentence by sentence. All its state lies in tensors of a
fixed size, so a step can be recorded once as a CUDA graph and replayed. Every few steps the host
checks which sentences are finished, without waiting for the GPU. Keys and values stay where they
were written: hypotheses remember which row of their sentence holds each of their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cbmi.decoding.candidates import (
    Continuations,
    SearchSettings,
    continuations,
    is_finished,
    length_power,
)
from cbmi.model import Packed, Translator
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

    def __init__(self, model: Translator, settings: SearchSettings, room: Room) -> None:
        self.model = model
        self.settings = settings
        self.room = room
        weight = model.output_weight
        device = weight.device
        self.device = device
        self.fused = model.runtime.fused(weight)
        model.target_embedding.reserve_positions(room.length)
        layers = len(model.decoder)
        if settings.fusion:
            settings.fusion.language_model.embedding.reserve_positions(room.length)
            layers += len(settings.fusion.language_model.layers)

        slots = room.slots
        beam = settings.beam
        shape = (slots, beam, room.length)
        self.active = torch.zeros(slots, dtype=torch.bool, device=device)
        self.length = torch.zeros(slots, dtype=torch.long, device=device)  # tokens so far
        self.limits = torch.ones(slots, dtype=torch.long, device=device)
        self.numbers = torch.zeros(slots, dtype=torch.long, device=device)  # of the sentences
        self.ended = torch.zeros(slots, dtype=torch.long, device=device)  # hypotheses
        self.tokens = torch.full(shape, settings.special.pad, device=device)
        # The row of the sentence that holds each token's keys and values.
        self.holders = torch.zeros(shape, dtype=torch.int32, device=device)
        self.scores = torch.full((slots, beam), -torch.inf, device=device)
        self.best_scores = torch.full((slots, beam), -torch.inf, device=device)
        self.best_tokens = torch.full(shape, settings.special.pad, device=device)

        heads = model.shape.heads
        size = model.shape.width // heads
        self.source_lengths = torch.zeros(slots, dtype=torch.long, device=device)
        self.memories = [
            weight.new_zeros(slots, room.source, 2, heads, size) for _ in model.decoder
        ]
        self.past = [
            weight.new_zeros(slots * beam, room.length, 2, heads, size) for _ in range(layers)
        ]
        self.beams = torch.arange(beam, device=device)

    def put(
        self,
        slots: Tensor,
        source: Packed,
        memories: list[Tensor],
        limits: Tensor,
        numbers: Tensor,
    ) -> None:
        """Start new sentences in some slots.

        `memories`: each layer's keys and values of their packed sources.
        """
        pad = self.settings.special.pad
        self.active[slots] = True
        self.length[slots] = 0
        self.ended[slots] = 0
        self.limits[slots] = limits
        self.numbers[slots] = numbers
        self.source_lengths[slots] = source.layout.lengths
        self.scores[slots] = -torch.inf
        self.scores[slots, 0] = 0.0
        self.best_scores[slots] = -torch.inf
        self.tokens[slots] = pad
        self.best_tokens[slots] = pad
        place = slots[source.layout.sentence] * self.room.source + source.layout.position
        for kept, memory in zip(self.memories, memories, strict=True):
            kept.flatten(0, 1)[place] = memory

    def step(self) -> None:
        """Every growing hypothesis of every slot gets one more token."""
        last = self.tokens.gather(2, self._at((self.length - 1).clamp(min=0)))[:, :, 0]
        last = torch.where(self.length[:, None] == 0, self.settings.special.begin, last)
        own_rows = self.beams.int()[None, :, None].expand(self.room.slots, -1, 1)
        self.holders.scatter_(2, self._at(self.length), own_rows)
        best = self._continuations(last.flatten())
        length = self.length + 1
        self._collect_ended(best.first(self.settings.beam), length)
        self._grow(best)
        self._retire(length)

    def _at(self, place: Tensor) -> Tensor:
        """(slots,) → (slots, beam, 1), an index into the third dimension of the tokens."""
        return place[:, None, None].expand(-1, self.settings.beam, 1)

    def _continuations(self, last: Tensor) -> Continuations:
        position = self.length.repeat_interleave(self.settings.beam)
        longest = self.room.length
        hidden = self.model.decode(last, position, longest, self._attend_past, self._attend_source)
        logits = output_logits(hidden, self.model.output_weight)
        fusion = self.settings.fusion
        if fusion is not None:
            language_model = fusion.language_model
            hidden = language_model.decode(
                last, position, longest, self._attend_language_model_past
            )
            lm_logits = output_logits(hidden, language_model.output_weight)
            logits = fuse(logits, lm_logits, fusion.kind)
        return continuations(
            logits,
            self.scores,
            self.numbers,
            self.length + 1,
            self.limits,
            self.settings,
            fused=self.fused,
        )

    def _attend_past(self, qkv: Tensor, layer: int) -> Tensor:
        """Attention of one new token per row to those before it."""
        past = self.past[layer]
        rows = torch.arange(len(past), device=self.device)
        past[rows, self.length.repeat_interleave(self.settings.beam)] = qkv[:, 1:]
        return attend_cache(
            qkv[:, 0],
            past,
            self.length + 1,
            self.settings.beam,
            self.holders.flatten(0, 1),
            self.fused,
        )

    def _attend_language_model_past(self, qkv: Tensor, layer: int) -> Tensor:
        return self._attend_past(qkv, len(self.model.decoder) + layer)

    def _attend_source(self, query: Tensor, layer: int) -> Tensor:
        memory = self.memories[layer]
        return attend_cache(
            query, memory, self.source_lengths, self.settings.beam, None, self.fused
        )

    def _collect_ended(self, best: Continuations, length: Tensor) -> None:
        """Put hypotheses that end within the beam among the best that have ended."""
        end = self.settings.special.end
        ends = (best.tokens == end) & (best.scores > -torch.inf) & self.active[:, None]
        self.ended += ends.sum(1)
        power = length_power(length, self.settings.length_penalty)
        assert isinstance(power, Tensor)
        new_scores = torch.where(ends, best.scores / power[:, None], -torch.inf)
        new_tokens = self._of_parents(self.tokens, best.parents)
        new_tokens.scatter_(2, self._at(self.length), end)
        pool_scores = torch.cat([self.best_scores, new_scores], dim=1)
        pool_tokens = torch.cat([self.best_tokens, new_tokens], dim=1)
        best_scores, chosen = pool_scores.topk(self.settings.beam, dim=1)
        self.best_scores.copy_(best_scores)
        self.best_tokens.copy_(self._of_parents(pool_tokens, chosen))

    def _of_parents(self, values: Tensor, parents: Tensor) -> Tensor:
        return values.gather(1, parents[:, :, None].expand(-1, -1, self.room.length))

    def _grow(self, best: Continuations) -> None:
        """Keep the `beam` best candidates that do not end."""
        growing = best.scores.masked_fill(best.tokens == self.settings.special.end, -torch.inf)
        scores, chosen = growing.topk(self.settings.beam, dim=1)
        parents = best.parents.gather(1, chosen)
        new_tokens = best.tokens.gather(1, chosen)[:, :, None]
        self.scores.copy_(scores)
        tokens = self._of_parents(self.tokens, parents)
        self.tokens.copy_(tokens.scatter_(2, self._at(self.length), new_tokens))
        self.holders.copy_(self._of_parents(self.holders, parents))

    def _retire(self, length: Tensor) -> None:
        """Finished sentences grow no further."""
        finished = is_finished(
            found=self.best_scores[:, self.settings.nbest - 1],
            growing=self.scores[:, 0],
            ended=self.ended,
            length=length,
            limits=self.limits,
            settings=self.settings,
        )
        self.active &= ~finished
        self.length.copy_(torch.where(self.active, length, self.length))


def attend_cache(
    query: Tensor,
    cache: Tensor,
    lengths: Tensor,
    rows: int,
    holders: Tensor | None,
    fused: bool = False,
) -> Tensor:
    """Attention of one token per hypothesis to the cache: query (hypotheses, heads, size) → same.

    cache (holders, longest, 2, heads, size); lengths (groups,): how much of it each group of `rows`
    hypotheses sees; holders (hypotheses, longest): which row of its group holds each place, or None
    where there is one holder per group.
    """
    if fused:
        from cbmi.model.kernels.decode import fused_attend_cache

        return fused_attend_cache(query, cache, lengths, rows, holders)
    places = torch.arange(cache.shape[1], device=query.device)
    group = torch.arange(len(query), device=query.device)[:, None] // rows
    holder = group if holders is None else group * rows + holders
    keys, values = cache[holder, places].unbind(2)
    scores = torch.einsum("rhd,rlhd->rhl", query, keys) * query.shape[-1] ** -0.5
    seen = places < lengths.clamp(min=1).repeat_interleave(rows)[:, None]
    probabilities = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    return torch.einsum("rhl,rlhd->rhd", probabilities, values)
