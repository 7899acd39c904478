"""Many sentences through the search, put back in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from cbmi.decoding.beam import beam_search
from cbmi.decoding.candidates import Hypothesis, SearchSettings, default_limits
from cbmi.decoding.queue import Advance, Queue, Sentences
from cbmi.model import Translator, pack_sentences

TOKENS_AT_A_TIME = {"cpu": 4000, "cuda": 16000}  # source pieces in a batch


def ignore_progress(sentences: int) -> None:
    """An `Advance` for callers that show no progress."""


def translate_ids(
    model: Translator,
    sentences: Sentences,
    settings: SearchSettings,
    *,
    limit: int | None = None,
    numbers: Sequence[int] | None = None,
    advance: Advance = ignore_progress,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each sentence, in the given order.

    A sentence is a list of ids with its end of sentence. `limit`: the most tokens of a translation;
    by default it depends on the sentence's length. With `settings.sampling` there are `nbest`
    samples of each sentence, in the order drawn. They depend on the sentence's number; `numbers`
    are 0, 1, … by default.
    """
    if numbers is None:
        numbers = range(len(sentences))
    if settings.sampling is None:
        return _search(model, sentences, settings, limit, numbers, advance)
    # A sample is a search of its own, under a number of its own.
    samples = settings.nbest
    repeated = []
    sample_numbers = []
    for sentence, number in zip(sentences, numbers, strict=True):
        for sample in range(samples):
            repeated.append(sentence)
            sample_numbers.append(number * samples + sample)
    one = replace(settings, nbest=1)
    progress = _advance_by(samples, advance)
    found = _search(model, repeated, one, limit, sample_numbers, progress)
    results = []
    for start in range(0, len(found), samples):
        results.append(list(chain.from_iterable(found[start : start + samples])))
    return results


def _advance_by(samples: int, advance: Advance) -> Advance:
    """Counts samples, and advances by one sentence for every so many of them."""
    finished = 0

    def advance_samples(count: int) -> None:
        nonlocal finished
        before = finished // samples
        finished += count
        advance(finished // samples - before)

    return advance_samples


def _search(
    model: Translator,
    sentences: Sentences,
    settings: SearchSettings,
    limit: int | None,
    numbers: Sequence[int],
    advance: Advance,
) -> list[list[Hypothesis]]:
    longest_first = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    ordered = [sentences[i] for i in longest_first]
    ordered_numbers = torch.tensor([numbers[i] for i in longest_first], dtype=torch.long)
    lengths = torch.tensor([len(sentence) for sentence in ordered], dtype=torch.long)
    limits = default_limits(lengths) if limit is None else torch.full_like(lengths, limit)
    if in_slots(model):
        found = Queue(model, settings).translate(ordered, limits, ordered_numbers, advance)
    else:
        found = _in_batches(model, ordered, settings, limits, ordered_numbers, advance)
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for i, best in zip(longest_first, found, strict=True):
        results[i] = best
    return results


def in_slots(model: Translator) -> bool:
    """Whether to search in slots: where the search can be a CUDA graph of fused kernels."""
    return model.runtime.fused(model.output_weight)


def _in_batches(
    model: Translator,
    sentences: Sentences,
    settings: SearchSettings,
    limits: Tensor,
    numbers: Tensor,
    advance: Advance,
) -> list[list[Hypothesis]]:
    device = model.output_weight.device
    results = []
    for batch in _batches(sentences, TOKENS_AT_A_TIME.get(device.type, 4000)):
        source = pack_sentences([sentences[i] for i in batch], device)
        own_limits = limits[batch.start : batch.stop]
        own_numbers = numbers[batch.start : batch.stop]
        results += beam_search(model, source, settings, own_limits, own_numbers)
        advance(len(batch))
    return results


def _batches(sentences: Sequence[Sequence[int]], tokens: int) -> Iterator[range]:
    """Consecutive sentences, longest first, of at most `tokens` pieces including their padding."""
    start = 0
    for i in range(len(sentences)):
        if i > start and (i + 1 - start) * len(sentences[start]) > tokens:
            yield range(start, i)
            start = i
    if start < len(sentences):
        yield range(start, len(sentences))
