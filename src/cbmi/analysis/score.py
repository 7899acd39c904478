"""How much each target token of a pair depends on its source: log p_NMT, log p_LM, CBMI, and the weights.

Weights are those the pairs would get in training if the whole file were one mini-batch: token weights come from the
sentence alone, sentence weights from the mean and spread of sentence CBMI over the file (pairs with an empty side
left out).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from cbmi.data.text import count_lines, read_pairs, report_repaired
from cbmi.data.vocabulary import BOS
from cbmi.errors import UserError
from cbmi.model import Packed, pack, shift_right
from cbmi.objectives import build
from cbmi.objectives.cbmi import Cbmi, packed_cbmi_weights
from cbmi.progress import bar
from cbmi.training.trained import Trained

WINDOW = 10_000  # pairs read, sorted by length and scored at a time
TOKENS_AT_A_TIME = {"cpu": 4000, "cuda": 32000}
Advance = Callable[[int], None]


def score_files(model: Trained, files: Sequence[str], output: TextIO, spool: Path) -> int:
    """Score a parallel corpus as a stream, one JSON record a pair, in order; gives the number of pairs.

    Sentence weights need the whole file's statistics, so the records wait in `spool` until it has been read.
    """
    scorer = Scorer(model)
    sentence_cbmi: list[float] = []
    filled: list[bool] = []
    counts: Counter[str] = Counter()
    pairs = read_pairs(files, counts)
    with open(spool, "w", encoding="utf-8") as waiting, bar("Scoring", count_lines(files[0]), "pairs") as progress:
        while window := list(islice(pairs, WINDOW)):
            for record in scorer.score(window, progress.advance):
                sentence_cbmi.append(record["sentence_cbmi"])
                filled.append(_filled(record))
                waiting.write(json.dumps(record, ensure_ascii=False) + "\n")
    model.report_truncated()
    report_repaired(counts)
    if not sentence_cbmi:
        raise UserError(f"{' and '.join(files)}: there is nothing to score.")
    weights = scorer.sentence_weights(sentence_cbmi, filled)
    with open(spool, encoding="utf-8", newline="\n") as waiting:
        for line, weight in zip(waiting, weights, strict=True):
            record = scorer.weigh(json.loads(line), weight)
            output.write(json.dumps(record, ensure_ascii=False) + "\n")
    return len(weights)


def score_pairs(
    model: Trained, pairs: Sequence[tuple[str, str]], advance: Advance = lambda pairs: None
) -> list[dict[str, Any]]:
    """Records of a few pairs, in order; together they are the mini-batch of the sentence weights."""
    scorer = Scorer(model)
    records = list(scorer.score(pairs, advance))
    weights = scorer.sentence_weights([record["sentence_cbmi"] for record in records], list(map(_filled, records)))
    return [scorer.weigh(record, weight) for record, weight in zip(records, weights, strict=True)]


class Scorer:
    """Scores pairs with a run's translator and language model."""

    def __init__(self, model: Trained) -> None:
        self.model, self.language_model = model, model.language_model()
        self.settings = _settings_of(model)

    def score(
        self, pairs: Sequence[tuple[str, str]], advance: Advance = lambda pairs: None
    ) -> Iterator[dict[str, Any]]:
        """Records in order, without what only the whole file decides: `sentence_weight` and `weights`."""
        records: list[dict[str, Any]] = [{} for _ in pairs]
        for batch, target, nmt, lm in self._scores(pairs):
            weights = self._token_weights(nmt - lm, target).numpy()
            means = sentence_means(nmt - lm, target)
            columns = [target.ids.cpu().numpy(), nmt.numpy(), lm.numpy(), weights]
            parts = zip(*(np.split(column, starts(target)[1:]) for column in columns), strict=True)
            for i, part, mean in zip(batch, parts, means, strict=True):
                records[i] = self._record(pairs[i], *(values.tolist() for values in part), float(mean))
            advance(len(batch))
        yield from records

    def sentence_scores(self, pairs: Sequence[tuple[str, str]], advance: Advance = lambda pairs: None) -> np.ndarray:
        """(pairs, 2): what `score` gives as `sentence_cbmi`, and the mean of its `nmt`, without all the rest."""
        result = np.empty((len(pairs), 2))
        for batch, target, nmt, lm in self._scores(pairs):
            result[batch] = np.stack([sentence_means(nmt - lm, target), sentence_means(nmt, target)], axis=1).round(6)
            advance(len(batch))
        return result

    @torch.inference_mode()
    def _scores(
        self, pairs: Sequence[tuple[str, str]]
    ) -> Iterator[tuple[list[int], Packed, torch.Tensor, torch.Tensor]]:
        """Places of pairs, their targets, and the log-probabilities of the tokens, in float64 on the CPU."""
        for batch, source, target in packed_batches(self.model, pairs):
            inputs = shift_right(target, BOS)
            nmt, _, lm = self.model.gold_scores(self.language_model, source, inputs, target.ids)
            yield batch, target, nmt.double().cpu(), lm.double().cpu()

    def _token_weights(self, cbmi: torch.Tensor, target: Packed) -> torch.Tensor:
        layout = target.layout
        everywhere, sentence = torch.ones_like(cbmi, dtype=torch.bool), layout.sentence.cpu()
        longest = layout.longest
        return packed_cbmi_weights(cbmi, everywhere, sentence, layout.sentences, self.settings, longest).token

    def _record(
        self,
        pair: tuple[str, str],
        ids: list[int],
        nmt: list[float],
        lm: list[float],
        weights: list[float],
        sentence_cbmi: float,
    ) -> dict[str, Any]:
        return {
            "source": pair[0],
            "target": pair[1],
            "pieces": self.model.target.pieces(ids),
            "nmt": [_round(value) for value in nmt],
            "lm": [_round(value) for value in lm],
            "cbmi": [_round(a - b) for a, b in zip(nmt, lm, strict=True)],
            "sentence_cbmi": _round(sentence_cbmi),
            "token_weights": weights,
        }

    def weigh(self, record: dict[str, Any], sentence_weight: float) -> dict[str, Any]:
        """Add the sentence's weight w_s and the whole weights w = w_t · w_s, scaled and clipped as in training."""
        weights = torch.tensor(record["token_weights"], dtype=torch.float64) * sentence_weight
        weights = [_round(weight) for weight in self.settings.scaled_and_clipped(weights).tolist()]
        tokens = [_round(weight) for weight in record["token_weights"]]
        return record | {"token_weights": tokens, "sentence_weight": _round(sentence_weight), "weights": weights}

    def sentence_weights(self, sentence_cbmi: Sequence[float], filled: Sequence[bool]) -> list[float]:
        """Pairs with an empty side, which training leaves out, have weight 1 and are no matter to the others'."""
        values, real = torch.tensor(sentence_cbmi, dtype=torch.float64), torch.tensor(filled)
        each = torch.arange(len(values))
        # One "token" a sentence: its own weight is 1, the sentence weights are what is wanted.
        return packed_cbmi_weights(values, real, each, len(values), self.settings, 1).sentence.tolist()


def _filled(record: dict[str, Any]) -> bool:
    return bool(record["source"].strip() and record["target"].strip())


def starts(target: Packed) -> np.ndarray:
    """(sentences,): where each begins among the tokens."""
    sizes = target.layout.sizes
    return np.cumsum(sizes) - sizes


def sentence_means(values: torch.Tensor, target: Packed) -> np.ndarray:
    """(tokens,) → (sentences,): means over each sentence's tokens."""
    return np.add.reduceat(values.numpy(), starts(target)) / target.layout.sizes


def _settings_of(model: Trained) -> Cbmi:
    """The scales of the run's last CBMI stage; the paper's where it has none."""
    objective = build(model.config.objective("cbmi"), str(model.run.config_file))
    return objective.model_copy(update={"std": "population"})


def packed_batches(model: Trained, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[int], Packed, Packed]]:
    """Places of pairs of like length, and their sources and targets on the model's device."""
    sides = [
        model.encode(vocabulary, [pair[side] for pair in pairs])
        for side, vocabulary in enumerate((model.source, model.target))
    ]
    order = sorted(range(len(pairs)), key=lambda i: (len(sides[1][i]), len(sides[0][i])))
    longer = [max(len(s), len(t)) for s, t in zip(*sides, strict=True)]
    for batch in _runs(order, longer, TOKENS_AT_A_TIME.get(model.device.type, 4000)):
        yield batch, *(_pack([side[i] for i in batch], model.device) for side in sides)


def _pack(sentences: list[list[int]], device: torch.device) -> Packed:
    lengths = np.array([len(sentence) for sentence in sentences])
    return pack(np.concatenate([np.array(s) for s in sentences]), lengths, device)


def _runs(order: list[int], lengths: list[int], limit: int) -> Iterator[list[int]]:
    """Cut an order into runs of at most `limit` tokens."""
    run: list[int] = []
    total = 0
    for i in order:
        if run and total + lengths[i] > limit:
            yield run
            run, total = [], 0
        run.append(i)
        total += lengths[i]
    if run:
        yield run


def _round(value: float) -> float:
    return round(value, 6)
