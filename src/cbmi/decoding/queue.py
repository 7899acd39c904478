"""Sentences waiting for slots: encoded some at a time, put where a sentence is done, taken out when they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from cbmi.decoding.beam import Fusion, Hypothesis, hypotheses
from cbmi.decoding.candidates import Special
from cbmi.decoding.slots import Room, Slots
from cbmi.model import Packed, Translator, pack

MOST_SLOTS = 1024
CACHE_BYTES = 4 << 30  # of keys and values of the translations
STEPS_BETWEEN_LOOKS = 4  # at which sentences are done
SHARE_TO_REFILL = 8  # new sentences are put in when one slot of so many is free


class Queue:
    """Translates sentences, longest first, in as many slots as memory allows."""

    def __init__(
        self,
        model: Translator,
        special: Special,
        *,
        beam: int,
        length_penalty: float,
        nbest: int,
        fusion: Fusion | None,
        graphs: bool | None = None,
    ) -> None:
        self.model, self.special = model, special
        self.beam, self.penalty, self.nbest, self.fusion = beam, length_penalty, nbest, fusion
        self.device = model.output_weight.device
        self.graphs = self.device.type == "cuda" if graphs is None else graphs

    @torch.inference_mode()
    def translate(
        self, sentences: Sequence[Sequence[int]], limits: Tensor, advance: Callable[[int], None]
    ) -> list[list[Hypothesis]]:
        """`limits` (sentences,): the most tokens of each translation. Sentences of like length share their slots."""
        results = []
        classes = [_next_power_of_two(int(limit)) for limit in limits]
        start = 0
        for longest, members in groupby(classes):
            end = start + len(list(members))
            results += self._translate(sentences[start:end], limits[start:end], longest, advance)
            start = end
        return results

    def _translate(
        self, sentences: Sequence[Sequence[int]], limits: Tensor, longest: int, advance: Callable[[int], None]
    ) -> list[list[Hypothesis]]:
        shape = self.model.shape
        layers = shape.decoder_layers * (2 if self.fusion else 1)
        row_bytes = longest * 2 * layers * shape.width * self.model.output_weight.element_size()
        fitting = max(1, min(MOST_SLOTS, CACHE_BYTES // (self.beam * row_bytes)))
        room = Room(min(fitting, -(-len(sentences) // 8) * 8), longest, len(sentences[0]))
        slots = Slots(self.model, self.special, room, self.beam, self.penalty, self.nbest, self.fusion)
        return _Service(slots, sentences, limits.to(self.device), self.graphs, advance).run()


class _Service:
    """Keeps slots busy until all sentences are done."""

    def __init__(self, slots: Slots, sentences, limits: Tensor, graphs: bool, advance) -> None:
        self.slots, self.sentences, self.limits, self.advance = slots, sentences, limits, advance
        self.device = slots.device
        self.holds = [-1] * slots.room.slots  # the sentence in each slot
        self.waiting = 0  # the first sentence that is not yet in a slot
        self.taken: list[tuple[list[int], Tensor, Tensor]] = []  # sentences, scores, tokens
        self.graph = self._record() if graphs else None
        pinned = self.device.type == "cuda"
        self.flags = torch.empty(slots.room.slots, dtype=torch.bool, pin_memory=pinned)
        self.copied = torch.cuda.Event() if pinned else None

    def _record(self) -> torch.cuda.CUDAGraph:
        """A step as a CUDA graph; the slots are still empty, so that trying it changes nothing."""
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.slots.step()  # kernels are compiled
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.slots.step()
        torch.cuda.current_stream().wait_stream(stream)
        return graph

    def run(self) -> list[list[Hypothesis]]:
        self._refill(list(range(len(self.holds))))
        while any(sentence >= 0 for sentence in self.holds):
            self._ask()
            for _ in range(STEPS_BETWEEN_LOOKS):
                if self.graph:
                    self.graph.replay()
                else:
                    self.slots.step()
            self._look()
        return self._results()

    def _ask(self) -> None:
        """Have the flags copied while the next steps go on."""
        self.flags.copy_(self.slots.active, non_blocking=True)
        if self.copied:
            self.copied.record()

    def _look(self) -> None:
        if self.copied:
            self.copied.synchronize()
        busy = self.flags.tolist()
        free = [slot for slot, sentence in enumerate(self.holds) if not busy[slot] or sentence < 0]
        done = [slot for slot in free if self.holds[slot] >= 0]
        more = self.waiting < len(self.sentences)
        if not done or (more and len(free) * SHARE_TO_REFILL < len(self.holds)):
            return
        index = torch.tensor(done, device=self.device)
        self.taken.append((
            [self.holds[slot] for slot in done], self.slots.best_scores[index], self.slots.best_tokens[index]
        ))  # fmt: skip
        for slot in done:
            self.holds[slot] = -1
        self.advance(len(done))
        self._refill(free)

    def _refill(self, free: list[int]) -> None:
        count = min(len(free), len(self.sentences) - self.waiting)
        if not count:
            return
        chosen = range(self.waiting, self.waiting + count)
        self.waiting += count
        source = self._pack(chosen)
        memories = self.slots.model.memories(self.slots.model.encode(source))
        slots = torch.tensor(free[:count], device=self.device)
        self.slots.put(slots, source, memories, self.limits[chosen.start : chosen.stop])
        for slot, sentence in zip(free, chosen, strict=False):
            self.holds[slot] = sentence

    def _pack(self, chosen: range) -> Packed:
        texts = [self.sentences[i] for i in chosen]
        ids = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
        return pack(ids, np.array([len(text) for text in texts]), self.device)

    def _results(self) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in self.sentences]
        slots = self.slots
        for sentences, scores, tokens in self.taken:
            found = hypotheses(scores, tokens, slots.special.end, slots.penalty, slots.nbest)
            for sentence, best in zip(sentences, found, strict=True):
                results[sentence] = best
        return results


def _next_power_of_two(number: int, least: int = 32) -> int:
    return max(least, 1 << (number - 1).bit_length())
