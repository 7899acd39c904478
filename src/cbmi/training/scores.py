"""From a micro-batch to what an objective receives."""

from __future__ import annotations

import torch
from torch import Tensor

from cbmi.model import Translator
from cbmi.objectives import TokenScores
from cbmi.objectives.ranks import SINGLE_RANK, Ranks
from cbmi.training.batching.micro_batch import MicroBatch


def token_scores(
    micro_batch: MicroBatch,
    *,
    nmt: Tensor,
    mean: Tensor,
    lm: Tensor | None,
    frequency: Tensor | None = None,
    boundaries: Tensor | None = None,
    samples: Tensor | None = None,
    ranks: Ranks = SINGLE_RANK,
) -> TokenScores:
    """The scores of a micro-batch's target tokens, with all else that an objective may need."""
    layout = micro_batch.target.layout
    return TokenScores(
        nmt=nmt,
        mean=mean,
        lm=lm,
        mask=micro_batch.mask,
        sentence=layout.sentence,
        sentences=layout.sentences,
        longest=micro_batch.longest,
        group=micro_batch.group,
        gold=micro_batch.target.ids,
        corpus_index=micro_batch.corpus_index,
        ranks=ranks,
        seed=micro_batch.objective_seed,
        samples=samples,
        frequency=frequency,
        boundaries=boundaries,
        bmi=micro_batch.token_values.get("bmi"),
        given=micro_batch.token_values.get("given"),
    )


@torch.no_grad()
def dropout_samples(translator: Translator, micro_batch: MicroBatch, count: int) -> Tensor:
    """(count, tokens): log p of the gold tokens under different dropout masks."""
    samples = []
    translator.runtime.seed = micro_batch.dropout_seed
    for number in range(1, count + 1):
        translator.runtime.sample = number
        output = translator(micro_batch.source, micro_batch.inputs, micro_batch.target.ids)
        samples.append(output.log_p)
    translator.runtime.sample = 0
    return torch.stack(samples)
