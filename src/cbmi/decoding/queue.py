"""Sentences waiting for slots: encoded, put into free slots, taken out when finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from cbmi.decoding.candidates import Hypothesis, SearchSettings, hypotheses
from cbmi.decoding.slots import Room, Slots
from cbmi.model import Translator, pack_sentences

MOST_SLOTS = 1024
CACHE_BYTES = 4 << 30  # of keys and values of the translations
STEPS_BETWEEN_CHECKS = 4  # of which sentences are finished
SHARE_TO_REFILL = 8  # refill when one slot in this many is free
EMPTY = -1  # a slot without a sentence

Sentences = Sequence[Sequence[int]]
Advance = Callable[[int], None]


class Queue:
    """Translates sentences, longest first, in as many slots as memory allows."""

    def __init__(
        self, model: Translator, settings: SearchSettings, graphs: bool | None = None
    ) -> None:
        """`graphs`: whether a step is recorded as a CUDA graph; by default, on a GPU."""
        self.model = model
        self.settings = settings
        self.device = model.output_weight.device
        self.graphs = self.device.type == "cuda" if graphs is None else graphs

    @torch.inference_mode()
    def translate(
        self, sentences: Sentences, limits: Tensor, numbers: Tensor, advance: Advance
    ) -> list[list[Hypothesis]]:
        """`limits`: the most tokens of each translation; `numbers`: what samples depend on.

        Both are (sentences,).
        """
        results = []
        start = 0
        # Sentences with limits of similar size share their slots.
        sizes = [_next_power_of_two(int(limit)) for limit in limits]
        for longest, members in groupby(sizes):
            end = start + len(list(members))
            slots = self._slots(sentences[start:end], longest)
            service = _Service(
                slots,
                sentences[start:end],
                limits[start:end].to(self.device),
                numbers[start:end].to(self.device),
                self.graphs,
                advance,
            )
            results += service.translate()
            start = end
        return results

    def _slots(self, sentences: Sentences, longest: int) -> Slots:
        shape = self.model.shape
        layers = shape.decoder_layers * (2 if self.settings.fusion else 1)
        row_bytes = longest * 2 * layers * shape.width * self.model.output_weight.element_size()
        fitting = CACHE_BYTES // (self.settings.beam * row_bytes)
        fitting = max(1, min(MOST_SLOTS, fitting))
        wanted = -(-len(sentences) // 8) * 8
        room = Room(slots=min(fitting, wanted), length=longest, source=len(sentences[0]))
        return Slots(self.model, self.settings, room)


@dataclass(frozen=True)
class _Finished:
    sentences: list[int]
    scores: Tensor
    tokens: Tensor


class _Service:
    """Keeps slots busy until all sentences are finished."""

    def __init__(
        self,
        slots: Slots,
        sentences: Sentences,
        limits: Tensor,
        numbers: Tensor,
        graphs: bool,
        advance: Advance,
    ) -> None:
        self.slots = slots
        self.sentences = sentences
        self.limits = limits
        self.numbers = numbers
        self.advance = advance
        self.device = slots.device
        self.sentence_in = [EMPTY] * slots.room.slots
        self.waiting = 0  # the first sentence that is not yet in a slot
        self.finished: list[_Finished] = []
        self.graph = self._record() if graphs else None
        on_gpu = self.device.type == "cuda"
        self.flags = torch.empty(slots.room.slots, dtype=torch.bool, pin_memory=on_gpu)
        self.flags_copied = torch.cuda.Event() if on_gpu else None

    def _record(self) -> torch.cuda.CUDAGraph:
        """A step as a CUDA graph. The slots are still empty, so trying it out changes nothing."""
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.slots.step()  # kernels are compiled
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.slots.step()
        torch.cuda.current_stream().wait_stream(stream)
        return graph

    def translate(self) -> list[list[Hypothesis]]:
        self._refill(list(range(len(self.sentence_in))))
        while any(sentence != EMPTY for sentence in self.sentence_in):
            self._request_flags()
            for _ in range(STEPS_BETWEEN_CHECKS):
                if self.graph:
                    self.graph.replay()
                else:
                    self.slots.step()
            self._check_flags()
        return self._results()

    def _request_flags(self) -> None:
        """Have the flags copied to the host while the next steps are computed."""
        self.flags.copy_(self.slots.active, non_blocking=True)
        if self.flags_copied:
            self.flags_copied.record()

    def _check_flags(self) -> None:
        """Take out finished sentences and put in new ones, once enough slots are free."""
        if self.flags_copied:
            self.flags_copied.synchronize()
        busy = self.flags.tolist()
        free = []
        done = []
        for slot, sentence in enumerate(self.sentence_in):
            if sentence == EMPTY or not busy[slot]:
                free.append(slot)
                if sentence != EMPTY:
                    done.append(slot)
        more = self.waiting < len(self.sentences)
        few_are_free = len(free) * SHARE_TO_REFILL < len(self.sentence_in)
        if not done or (more and few_are_free):
            return
        index = torch.tensor(done, device=self.device)
        sentences = [self.sentence_in[slot] for slot in done]
        scores = self.slots.best_scores[index]
        self.finished.append(_Finished(sentences, scores, self.slots.best_tokens[index]))
        for slot in done:
            self.sentence_in[slot] = EMPTY
        self.advance(len(done))
        self._refill(free)

    def _refill(self, free: list[int]) -> None:
        count = min(len(free), len(self.sentences) - self.waiting)
        if not count:
            return
        chosen = range(self.waiting, self.waiting + count)
        self.waiting += count
        model = self.slots.model
        source = pack_sentences([self.sentences[i] for i in chosen], self.device)
        memories = model.memories(model.encode(source))
        slots = torch.tensor(free[:count], device=self.device)
        limits = self.limits[chosen.start : chosen.stop]
        numbers = self.numbers[chosen.start : chosen.stop]
        self.slots.put(slots, source, memories, limits, numbers)
        for slot, sentence in zip(free[:count], chosen, strict=True):
            self.sentence_in[slot] = sentence

    def _results(self) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in self.sentences]
        for finished in self.finished:
            found = hypotheses(finished.scores, finished.tokens, self.slots.settings)
            for sentence, best in zip(finished.sentences, found, strict=True):
                results[sentence] = best
        return results


def _next_power_of_two(number: int, least: int = 32) -> int:
    return max(least, 1 << (number - 1).bit_length())
