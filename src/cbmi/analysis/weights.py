"""The weight that an objective gives to every training token, as text: to look at, or to train with elsewhere.

A line per line of the training text, on it a number for every target piece, the end of sentence included. The
translator is the run's best, without dropout; mini-batches are those of the run's first epoch. A line that
preparation left out of the corpus has the single number 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from cbmi.data.corpus import Corpus, new_array
from cbmi.data.plan import EpochPlan, share
from cbmi.data.prepare import open_corpus
from cbmi.data.statistics import Statistics
from cbmi.errors import UserError
from cbmi.objectives import NEEDS, Objective, build
from cbmi.objectives.base import join
from cbmi.progress import bar, say
from cbmi.training import checkpoint as store
from cbmi.training.networks import seed_for
from cbmi.training.part import Facts, Part, dropout_samples, make_part, token_scores
from cbmi.training.supply import Supply, frequency_of_pieces, numbers_of_tokens
from cbmi.training.trained import Trained


def write_weights(model: Trained, choice: dict[str, Any], output: TextIO, spool: Path) -> int:
    """Weigh the whole training corpus of a run; gives the number of tokens. Weights wait in the file `spool`."""
    objective = build(choice, f"objective '{choice['name']}'")
    if type(objective).weights is Objective.weights:
        raise UserError(f"objective '{choice['name']}' has no weights to write: its w is 1 for every token.")
    for need in objective.needs & {"teacher", "distribution"}:
        raise UserError(f"objective '{choice['name']}' needs {NEEDS[need]}, which there is only in training.")
    with model.run.lock():
        corpus = open_corpus(model.run.path, "train")
        statistics = Statistics(corpus, (len(model.source), len(model.target)))
        numbers = numbers_of_tokens(objective, statistics)
        frequency = frequency_of_pieces(objective, statistics, model.device)
    language_model = model.language_model() if "lm" in objective.needs else None
    supply = Supply(language_model, None, frequency, numbers)
    weights = new_array(spool, np.dtype(np.float32), len(corpus.target.ids), 1.0)
    with bar("Weighing", len(weights), "tokens") as progress:
        for number, shares in enumerate(mini_batches(model, corpus)):
            longest = int(corpus.target.lengths[np.concatenate(shares)].max())
            draw = seed_for(model.config.seed, "weights", number) >> 2
            seeds = [seed_for(model.config.seed, "weights", number, place) for place in range(len(shares))]
            facts = [Facts(longest, seed=seed, draw=draw) for seed in seeds]
            parts = (make_part(corpus, *one, numbers, model.device) for one in zip(shares, facts, strict=True))
            places, values = _weigh(model, objective, supply, parts)
            weights[places.cpu().numpy()] = values.float().cpu().numpy()
            progress.advance(len(places))
    _write(weights, corpus, output)
    mean = weights.mean(dtype=float)
    say(f"Weighed {len(weights):,} target tokens of {len(corpus):,} pairs; mean weight {mean:.3f}")
    return len(weights)


def mini_batches(model: Trained, corpus: Corpus) -> Iterator[list[np.ndarray]]:
    """The mini-batches of the run's first epoch, each in parts that are scored at a time."""
    step_tokens = store.read_state(model.folder).step_tokens
    parts = -(-step_tokens // model.config.batch.tokens)
    plan = EpochPlan(corpus.lengths(), step_tokens, model.config.seed, 0)
    for number in range(len(plan)):
        yield [pairs for pairs in share(plan[number], corpus.target.lengths, parts) if len(pairs)]


@torch.inference_mode()
def _weigh(model: Trained, objective: Objective, supply: Supply, parts: Iterable[Part]) -> tuple[Tensor, Tensor]:
    """Score the parts of a mini-batch as training does, but for dropout, and let the objective weigh its tokens;
    gives places in the corpus and weights."""
    scores = []
    for part in parts:
        nmt, mean, lm = model.gold_scores(supply.frozen, part.source, part.inputs, part.target.ids)
        samples = None
        if "samples" in objective.needs:
            samples = dropout_samples(model.translator.train(), part, objective.samples)
            model.translator.eval()
        scores.append(token_scores(part, supply, nmt, mean, lm, samples=samples))
    together = join(scores)
    return together.place, objective.weights(together)


def _write(weights: np.ndarray, corpus: Corpus, output: TextIO) -> None:
    offsets, pair = corpus.target.offsets, 0
    for line in range(corpus.text_lines):
        if pair < len(corpus) and corpus.lines[pair] == line:
            output.write(" ".join(f"{weight:.6g}" for weight in weights[offsets[pair] : offsets[pair + 1]]) + "\n")
            pair += 1
        else:
            output.write("1\n")
