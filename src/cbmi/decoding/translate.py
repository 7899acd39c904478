"""Many sentences through the beam search, put back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from cbmi.decoding.beam import Fusion, Hypothesis, beam_search, default_limits
from cbmi.decoding.candidates import Special
from cbmi.decoding.queue import Queue
from cbmi.model import Translator, kernels, pack

TOKENS_AT_A_TIME = {"cpu": 4000, "cuda": 16000}  # source pieces in a batch
Advance = Callable[[int], None]


def translate_ids(
    model: Translator,
    sentences: Sequence[Sequence[int]],
    special: Special,
    *,
    beam: int,
    length_penalty: float,
    nbest: int = 1,
    fusion: Fusion | None = None,
    limit: int | None = None,
    advance: Advance = lambda sentences: None,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each sentence (ids with their end of sentence), in the given order.

    `limit`: the most tokens of a translation; by default it depends on the sentence's length.
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    lengths = torch.tensor([len(sentences[i]) for i in order], dtype=torch.long)
    limits = default_limits(lengths) if limit is None else torch.full_like(lengths, limit)
    settings = {"beam": beam, "length_penalty": length_penalty, "nbest": nbest, "fusion": fusion}
    sorted_sentences = [sentences[i] for i in order]
    if in_slots(model):
        found = Queue(model, special, **settings).translate(sorted_sentences, limits, advance)
    else:
        found = _in_batches(model, sorted_sentences, special, limits, settings, advance)
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for i, hypotheses in zip(order, found, strict=True):
        results[i] = hypotheses
    return results


def in_slots(model: Translator) -> bool:
    """Whether the search goes through slots: where it can be recorded as a CUDA graph of fused kernels."""
    return kernels.fused(model.output_weight)


def _in_batches(
    model: Translator,
    sentences: list[Sequence[int]],
    special: Special,
    limits: torch.Tensor,
    settings: dict,
    advance: Advance,
) -> list[list[Hypothesis]]:
    device = model.output_weight.device
    results = []
    for batch in _batches(sentences, TOKENS_AT_A_TIME.get(device.type, 4000)):
        ids = np.concatenate([np.asarray(sentences[i], dtype=np.int64) for i in batch])
        source = pack(ids, np.array([len(sentences[i]) for i in batch]), device)
        results += beam_search(model, source, special, limits=limits[batch.start : batch.stop], **settings)
        advance(len(batch))
    return results


def _batches(sentences: Sequence[Sequence[int]], tokens: int) -> Iterator[range]:
    """Runs of sentences, longest first, at most `tokens` pieces together with their padding."""
    start = 0
    for i in range(len(sentences)):
        if i > start and (i + 1 - start) * len(sentences[start]) > tokens:
            yield range(start, i)
            start = i
    if start < len(sentences):
        yield range(start, len(sentences))
