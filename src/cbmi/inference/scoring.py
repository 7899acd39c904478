"""How much each target token of a pair depends on its source: log p_NMT, log p_LM, CBMI, weights.

Weights are those that the pairs would get in training if the whole file were one mini-batch. Token
weights come from the sentence alone. Sentence weights come from the mean and spread of sentence
CBMI over the file, without pairs that have an empty side. They are always those of `std:
population`, never shuffled, and `compare: groups` is taken for `lengths`: a file has no groups.

A run without a language model gives log p_NMT alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np
import torch
from torch import Tensor

from cbmi.data.text import Pair, count_pairs, read_pairs, report_counts
from cbmi.data.words import Word, words
from cbmi.decoding.queue import Advance
from cbmi.decoding.translate import ignore_progress
from cbmi.errors import UserError
from cbmi.inference.base import Model
from cbmi.model import Packed, pack_sentences
from cbmi.objectives import build
from cbmi.objectives.base import words_of_tokens
from cbmi.objectives.cbmi import Cbmi, normalised_by_length, packed_cbmi_weights
from cbmi.objectives.ranks import SINGLE_RANK
from cbmi.progress import bar, say
from cbmi.training.stage_inputs import boundaries_of_words

WINDOW = 10_000  # pairs read, sorted by length and scored at a time
TOKENS_AT_A_TIME = {"cpu": 4000, "cuda": 32000}
DIGITS = 6  # of the values in files


@dataclass(frozen=True, eq=False)
class ScoredPair:
    """A pair, token by token. Arrays are (tokens,), the end of sentence included."""

    source: str
    target: str
    tokens: tuple[str, ...]  # sentencepiece pieces
    log_p_nmt: np.ndarray
    log_p_lm: np.ndarray | None  # None: the run has no language model
    sentence_cbmi: float  # the mean of `cbmi`, rounded to six digits as in files
    token_weights: np.ndarray | None = None  # w_t
    sentence_weight: float | None = None  # w_s; known once the whole mini-batch is
    weights: np.ndarray | None = None  # w = w_t · w_s, scaled and clipped as in training

    @property
    def cbmi(self) -> np.ndarray:
        """c = log p_NMT - log p_LM, in nats; NaN without a language model."""
        if self.log_p_lm is None:
            return np.full(len(self.log_p_nmt), np.nan)
        return self.log_p_nmt - self.log_p_lm

    @property
    def likelihood(self) -> float:
        """The mean of log p_NMT over the tokens."""
        return float(self.log_p_nmt.mean())

    @property
    def words(self) -> list[Word]:
        """The words that the tokens spell; each says which tokens are its own."""
        return words(self.tokens)

    @property
    def filled(self) -> bool:
        """Whether both sides have text."""
        return bool(self.source.strip() and self.target.strip())

    def to_json(self) -> dict[str, Any]:
        """A line of `cbmi score`."""
        record: dict[str, Any] = {
            "source": self.source,
            "target": self.target,
            "pieces": list(self.tokens),
            "nmt": _rounded(self.log_p_nmt),
        }
        if self.log_p_lm is not None:
            record["lm"] = _rounded(self.log_p_lm)
            record["cbmi"] = _rounded(self.cbmi)
            record["sentence_cbmi"] = self.sentence_cbmi
        if self.token_weights is not None:
            record["token_weights"] = _rounded(self.token_weights)
        if self.sentence_weight is not None:
            record["sentence_weight"] = round(self.sentence_weight, DIGITS)
        if self.weights is not None:
            record["weights"] = _rounded(self.weights)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any], where: str = "record") -> ScoredPair:
        """The pair that a line of `cbmi score` describes; `where` is for errors."""
        keys = ["source", "target", "pieces", "nmt"]
        if "lm" in record or "sentence_cbmi" in record:
            keys += ["lm", "sentence_cbmi"]
        for key in keys:
            if key not in record:
                raise UserError(f"{where} has no {key!r}; give lines written by `cbmi score`.")
        length = len(record["pieces"])
        arrays: dict[str, np.ndarray | None] = {}
        for key in ("nmt", "lm", "token_weights", "weights"):
            if record.get(key) is None:
                arrays[key] = None
                continue
            if len(record[key]) != length:
                raise UserError(
                    f"{where} has {length} pieces but {len(record[key])} values in {key!r}; give "
                    "lines written by `cbmi score`."
                )
            arrays[key] = np.array(record[key], dtype=np.float64)
        return cls(
            source=record["source"],
            target=record["target"],
            tokens=tuple(record["pieces"]),
            log_p_nmt=cast(np.ndarray, arrays["nmt"]),
            log_p_lm=arrays["lm"],
            sentence_cbmi=float(record.get("sentence_cbmi", np.nan)),
            token_weights=arrays["token_weights"],
            sentence_weight=record.get("sentence_weight"),
            weights=arrays["weights"],
        )


def _rounded(values: np.ndarray) -> list[float]:
    return [round(value, DIGITS) for value in values.tolist()]


def score_files(model: Model, files: Sequence[str], output: TextIO, spool: Path) -> int:
    """Score a parallel corpus as a stream: one JSON record per pair, in order.

    Gives the number of pairs. Sentence weights need the whole file's statistics, so the records
    wait in the file `spool` until it has been read.
    """
    scorer = PairScorer(model)
    if not model.has_language_model:
        say(without_cbmi(model))
    sentence_cbmi: list[float] = []
    lengths: list[int] = []
    filled: list[bool] = []
    counts: Counter[str] = Counter()
    pairs = read_pairs(files, model.languages, counts)
    with (
        open(spool, "w", encoding="utf-8") as waiting,
        bar("Scoring", count_pairs(files, model.languages), "pairs") as progress,
    ):
        while window := list(islice(pairs, WINDOW)):
            for pair in scorer.score(window, progress.advance):
                sentence_cbmi.append(pair.sentence_cbmi)
                lengths.append(len(pair.tokens))
                filled.append(pair.filled)
                waiting.write(json.dumps(_unrounded(pair), ensure_ascii=False) + "\n")
    model.report_truncated()
    report_counts(counts)
    if not sentence_cbmi:
        raise UserError(f"{' and '.join(files)}: there is nothing to score.")
    sentence_weights = scorer.sentence_weights(sentence_cbmi, lengths, filled)
    with open(spool, encoding="utf-8", newline="\n") as waiting:
        for line, weight in zip(waiting, sentence_weights, strict=True):
            scored = scorer.with_weights(ScoredPair.from_json(json.loads(line)), weight)
            output.write(json.dumps(scored.to_json(), ensure_ascii=False) + "\n")
    return len(sentence_weights)


def without_cbmi(model: Model) -> str:
    """What to say of scores that a run without a language model gives."""
    return (
        f"{model.path} has no language model, so there are neither CBMI nor weights, only "
        f"log p_NMT; {model.language_model_remedy}."
    )


def _unrounded(pair: ScoredPair) -> dict[str, Any]:
    """As JSON with every digit: what is computed from it later is rounded once."""
    record = pair.to_json()
    arrays = {"nmt": pair.log_p_nmt, "lm": pair.log_p_lm, "token_weights": pair.token_weights}
    for key, values in arrays.items():
        if values is not None:
            record[key] = values.tolist()
    return record


def score_pairs(
    model: Model, pairs: Sequence[Pair], advance: Advance = ignore_progress
) -> list[ScoredPair]:
    """A few pairs, in order; together they are the mini-batch of the sentence weights."""
    scorer = PairScorer(model)
    scored = list(scorer.score(pairs, advance))
    sentence_cbmi = [pair.sentence_cbmi for pair in scored]
    lengths = [len(pair.tokens) for pair in scored]
    filled = [pair.filled for pair in scored]
    weights = scorer.sentence_weights(sentence_cbmi, lengths, filled)
    return [scorer.with_weights(pair, weight) for pair, weight in zip(scored, weights, strict=True)]


class _BatchScores(NamedTuple):
    """Scores of a batch's target tokens, in float64 on the CPU."""

    pairs: list[int]  # indices of its pairs
    target: Packed
    nmt: Tensor
    lm: Tensor | None


class PairScorer:
    """Scores pairs with a run's translator and, if it has one, language model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.settings = _cbmi_settings(model)
        self.boundaries: Tensor | None = None  # (vocabulary,) where token weights are of words
        if self.settings.unit == "word":
            self.boundaries = boundaries_of_words(model.target, torch.device("cpu"))

    def score(
        self, pairs: Sequence[Pair], advance: Advance = ignore_progress
    ) -> Iterator[ScoredPair]:
        """Pairs in order, without what only the whole mini-batch decides: the sentence weights."""
        scored: dict[int, ScoredPair] = {}
        for batch in self._scores(pairs):
            cbmi = _cbmi(batch)
            token_weights = None
            if batch.lm is not None:
                token_weights = self._token_weights(cbmi, batch.target).numpy()
            sentence_cbmi = sentence_means(cbmi, batch.target)
            ids = batch.target.ids.cpu().numpy()
            begin = 0
            for place, index in enumerate(batch.pairs):
                end = begin + int(batch.target.layout.sizes[place])
                source, target = pairs[index]
                scored[index] = ScoredPair(
                    source=source,
                    target=target,
                    tokens=tuple(self.model.target.pieces(ids[begin:end])),
                    log_p_nmt=batch.nmt.numpy()[begin:end],
                    log_p_lm=None if batch.lm is None else batch.lm.numpy()[begin:end],
                    sentence_cbmi=round(float(sentence_cbmi[place]), DIGITS),
                    token_weights=None if token_weights is None else token_weights[begin:end],
                )
                begin = end
            advance(len(batch.pairs))
        for index in range(len(pairs)):
            yield scored[index]

    def sentence_scores(
        self, pairs: Sequence[Pair], advance: Advance = ignore_progress
    ) -> np.ndarray:
        """(pairs, 2): sentence CBMI, and the mean of log p_NMT over the tokens; nothing else.

        Without a language model, CBMI is NaN.
        """
        result = np.empty((len(pairs), 2))
        for batch in self._scores(pairs):
            cbmi = sentence_means(_cbmi(batch), batch.target)
            likelihood = sentence_means(batch.nmt, batch.target)
            result[batch.pairs] = np.stack([cbmi, likelihood], axis=1).round(DIGITS)
            advance(len(batch.pairs))
        return result

    @torch.inference_mode()
    def _scores(self, pairs: Sequence[Pair]) -> Iterator[_BatchScores]:
        for batch, source, target in packed_batches(self.model, pairs):
            scores = self.model.token_scores(source, target)
            lm = None if scores.lm is None else scores.lm.double().cpu()
            yield _BatchScores(batch, target, scores.nmt.double().cpu(), lm)

    def _token_weights(self, cbmi: Tensor, target: Packed) -> Tensor:
        layout = target.layout
        weights = packed_cbmi_weights(
            cbmi,
            torch.ones_like(cbmi, dtype=torch.bool),
            layout.sentence.cpu(),
            layout.sentences,
            self.settings,
            layout.longest,
            word=self._words(target),
        )
        return weights.token

    def _words(self, target: Packed) -> Tensor | None:
        """(tokens,) each token's word, if token weights are those of words."""
        if self.boundaries is None:
            return None
        return words_of_tokens(self.boundaries[target.ids.cpu()], target.layout.sentence.cpu())

    def with_weights(self, pair: ScoredPair, sentence_weight: float) -> ScoredPair:
        """Add the sentence's weight w_s, and w = w_t · w_s, scaled and clipped as in training.

        A pair without token weights stays as it is.
        """
        if pair.token_weights is None:
            return pair
        token_weights = torch.from_numpy(pair.token_weights)
        weights = self.settings.adjusted(token_weights * sentence_weight)
        return replace(pair, sentence_weight=sentence_weight, weights=weights.numpy())

    def sentence_weights(
        self, sentence_cbmi: Sequence[float], lengths: Sequence[int], filled: Sequence[bool]
    ) -> list[float]:
        """`lengths`: target tokens of each pair.

        Pairs with an empty side get 1 and do not affect the others: training leaves them out.
        """
        values = torch.tensor(sentence_cbmi, dtype=torch.float64)
        if self.settings.compare == "lengths":
            counts = torch.tensor(lengths, dtype=torch.float64) * torch.tensor(filled)
            normalised = normalised_by_length(values, values**2, counts, SINGLE_RANK)
            compared: list[float] = (
                (normalised * self.settings.scale_sentence + 1).clamp(0).tolist()
            )
            return compared
        each = torch.arange(len(values))
        # One "token" per sentence: its token weight is 1, the sentence weights are what is wanted.
        weights = packed_cbmi_weights(
            values, torch.tensor(filled, dtype=torch.bool), each, len(values), self.settings, 1
        )
        result: list[float] = weights.sentence.tolist()
        return result


def _cbmi(batch: _BatchScores) -> Tensor:
    """(tokens,): NaN without a language model."""
    if batch.lm is None:
        return torch.full_like(batch.nmt, torch.nan)
    return batch.nmt - batch.lm


def sentence_means(values: Tensor, target: Packed) -> np.ndarray:
    """(tokens,) → (sentences,): means over each sentence's tokens."""
    sizes = target.layout.sizes
    starts = np.cumsum(sizes) - sizes
    return np.add.reduceat(values.numpy(), starts) / sizes


def _cbmi_settings(model: Model) -> Cbmi:
    """The scales of the run's last CBMI stage; the paper's if it has none."""
    objective = build(model.cbmi_settings(), str(model.path))
    assert isinstance(objective, Cbmi)
    # "official" depends on the padded length of a mini-batch, and a file has none.
    compare = "lengths" if objective.compare == "groups" else objective.compare
    return objective.model_copy(update={"std": "population", "compare": compare})


def packed_batches(
    model: Model, pairs: Sequence[Pair]
) -> Iterator[tuple[list[int], Packed, Packed]]:
    """Indices of pairs of similar length, and their sources and targets on the model's device."""
    sources = model.encode(model.source, [source for source, _ in pairs])
    targets = model.encode(model.target, [target for _, target in pairs])
    by_length = sorted(range(len(pairs)), key=lambda i: (len(targets[i]), len(sources[i])))
    lengths = [max(len(sources[i]), len(targets[i])) for i in range(len(pairs))]
    limit = TOKENS_AT_A_TIME.get(model.device.type, 4000)
    for batch in _cut(by_length, lengths, limit):
        source = pack_sentences([sources[i] for i in batch], model.device)
        target = pack_sentences([targets[i] for i in batch], model.device)
        yield batch, source, target


def _cut(order: Sequence[int], lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Cut an order into batches of at most `limit` tokens."""
    batch: list[int] = []
    total = 0
    for i in order:
        if batch and total + lengths[i] > limit:
            yield batch
            batch = []
            total = 0
        batch.append(i)
        total += lengths[i]
    if batch:
        yield batch
