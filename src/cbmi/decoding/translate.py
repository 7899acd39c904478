"""Many sentences through the beam search: sorted by length, cut into batches, put back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cbmi.decoding.beam import Fusion, Hypothesis, Special, beam_search
from cbmi.model import Translator, pack

TOKENS_AT_A_TIME = {"cpu": 1000, "cuda": 16000}  # source pieces in a batch


def translate_ids(
    model: Translator,
    sentences: Sequence[Sequence[int]],
    special: Special,
    *,
    beam: int,
    length_penalty: float,
    nbest: int = 1,
    fusion: Fusion | None = None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each sentence (ids with their end of sentence), in the given order."""
    device = next(model.parameters()).device
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for batch in _batches(sentences, TOKENS_AT_A_TIME.get(device.type, 1000)):
        ids = np.concatenate([np.asarray(sentences[i], dtype=np.int64) for i in batch])
        source = pack(ids, np.array([len(sentences[i]) for i in batch]), device)
        settings = {"beam": beam, "length_penalty": length_penalty, "nbest": nbest, "fusion": fusion}
        found = beam_search(model, source, special, **settings)
        for i, hypotheses in zip(batch, found, strict=True):
            results[i] = hypotheses
        advance(len(batch))
    return results


def _batches(sentences: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Indices of sentences of like length, at most `tokens` pieces together, longest first."""
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * len(sentences[batch[0]]) > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
