"""Which pairs of a scored corpus are kept: by their score, and by rules that need no model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cbmi.data.text import Pair, is_copy
from cbmi.errors import UserError
from cbmi.inference.scoring import ScoredPair
from cbmi.progress import counted


class Verdict(IntEnum):
    """What becomes of a pair: it is kept, or what it is dropped for."""

    KEPT = 0
    SCORE = 1
    COPY = 2
    LENGTHS = 3
    DUPLICATE = 4
    EMPTY = 5

    @property
    def label(self) -> str:
        """As PREFIX.dropped.reasons says it."""
        return self.name.lower()


RULED_OUT = (Verdict.COPY, Verdict.LENGTHS, Verdict.DUPLICATE, Verdict.EMPTY)  # whatever the score
IN_WORDS = {
    Verdict.SCORE: "for their score",
    Verdict.COPY: "as copies of the source",
    Verdict.LENGTHS: "for their lengths",
    Verdict.DUPLICATE: "as repetitions of earlier pairs",
    Verdict.EMPTY: "with an empty side",
}


@dataclass(frozen=True)
class Signal:
    """A number by which a pair is kept or dropped, in nats per token: the higher, the better."""

    name: str
    long_name: str
    meaning: str
    of: Callable[[ScoredPair], float]


def _sentence_cbmi(pair: ScoredPair) -> float:
    return pair.sentence_cbmi


def _likelihood(pair: ScoredPair) -> float:
    return pair.likelihood


# In the order of the columns of `PairScorer.sentence_scores`.
SIGNALS = {
    "cbmi": Signal(
        name="CBMI",
        long_name="sentence CBMI",
        meaning="Sentence CBMI says how much more likely the source makes the words of a "
        "translation, in nats per token. A translation that has nothing to do with its source is "
        "near 0 or below.",
        of=_sentence_cbmi,
    ),
    "likelihood": Signal(
        name="likelihood",
        long_name="translation likelihood",
        meaning="The mean log-probability that the translator gives to the tokens of a "
        "translation, in nats. 0 would be certainty; what the translator would never say, for "
        "lack of sense or of grammar, is far below.",
        of=_likelihood,
    ),
}


class PairFeatures(NamedTuple):
    """What rules go by, (pairs,) each."""

    empty: np.ndarray  # whether a side has no text
    copies: np.ndarray  # whether the target equals the source, except for spaces
    log_length_ratio: np.ndarray  # log of the target's length over the source's, in characters
    text_hash: np.ndarray  # a number for the text of the pair: equal texts have equal numbers


@dataclass(frozen=True)
class PairTable:
    """What is known of the pairs, (pairs,) each: a score, and the features that rules go by."""

    scores: np.ndarray
    features: PairFeatures

    @cached_property
    def repeated(self) -> np.ndarray:
        """(pairs,) whether an earlier pair has the same text."""
        hashes = self.features.text_hash
        _, first = np.unique(hashes, return_index=True)
        repeated = np.ones(len(hashes), dtype=bool)
        repeated[first] = False
        repeated[self.features.empty] = False
        return repeated


def pair_features(pairs: Sequence[Pair]) -> PairFeatures:
    """The features of pairs, from their text alone."""
    source_lengths = np.array([len(source.strip()) for source, _ in pairs])
    target_lengths = np.array([len(target.strip()) for _, target in pairs])
    empty = (source_lengths == 0) | (target_lengths == 0)
    copies = np.array([is_copy(pair) for pair in pairs]) & ~empty
    # At least 1: the logarithm of an empty side would be infinite.
    ratios = np.log(np.maximum(target_lengths, 1)) - np.log(np.maximum(source_lengths, 1))
    hashes = np.array([_text_hash(pair) for pair in pairs])
    return PairFeatures(empty, copies, ratios, hashes)


def _text_hash(pair: Pair) -> float:
    """A hash of the text, the same whatever the spaces: 53 bits, which a float holds exactly."""
    source = " ".join(pair[0].split())
    target = " ".join(pair[1].split())
    digest = hashlib.blake2b(f"{source}\t{target}".encode(), digest_size=8).digest()
    return float(int.from_bytes(digest) >> 11)


@dataclass(frozen=True)
class FilterSettings:
    """What to keep: a share of the pairs, or pairs of at least a score, after rules drop theirs."""

    keep: float | None = None  # a share of the pairs that no rule drops
    minimum: float | None = None  # a score
    by: str = "cbmi"  # a name in SIGNALS
    drop_copies: bool = False
    max_ratio: float | None = None  # between the sides' lengths, as a multiple of the usual one
    drop_duplicates: bool = False

    def __post_init__(self) -> None:
        if self.by not in SIGNALS:
            raise UserError(f"by: '{self.by}' is not one of {', '.join(SIGNALS)}.")
        if self.keep is not None and self.minimum is not None:
            raise UserError("give keep (--keep, a share) or minimum (--min, a score), not both.")
        if self.minimum is not None and not math.isfinite(self.minimum):
            raise UserError(f"minimum: {self.minimum} should be a number, such as 0.5.")
        if self.by == "likelihood" and self.minimum is not None and self.minimum > 0:
            raise UserError(
                f"minimum: {self.minimum:g} is above 0, but a log-likelihood never is; use a "
                "number such as -1."
            )
        if self.keep is not None and not 0 < self.keep <= 1:
            raise UserError(
                f"keep: {self.keep:g} should be a share above 0 and at most 1, such as 0.9."
            )
        if self.max_ratio is not None and not 1 < self.max_ratio < math.inf:
            raise UserError(f"max_ratio: {self.max_ratio:g} should be a number above 1, such as 2.")

    @property
    def by_score(self) -> bool:
        """Whether pairs are dropped for their score."""
        return self.keep is not None or self.minimum is not None

    @property
    def drops_pairs(self) -> bool:
        """Whether anything is to be dropped; otherwise the corpus is only scored."""
        by_rule = self.drop_copies or self.drop_duplicates or self.max_ratio is not None
        return self.by_score or by_rule

    def verdicts(self, table: PairTable) -> np.ndarray:
        """(pairs,) the `Verdict` on each pair.

        `keep` is a share of the pairs that no rule drops; of equal scores, the first are kept.
        """
        features = table.features
        verdicts = np.full(len(table.scores), Verdict.KEPT, np.int8)
        # A later rule overrides an earlier one.
        if self.drop_duplicates:
            verdicts[table.repeated] = Verdict.DUPLICATE
        if self.max_ratio is not None:
            usual = np.median(features.log_length_ratio[~features.empty])
            odd = np.abs(features.log_length_ratio - usual) > math.log(self.max_ratio)
            verdicts[odd] = Verdict.LENGTHS
        if self.drop_copies:
            verdicts[features.copies] = Verdict.COPY
        verdicts[features.empty] = Verdict.EMPTY
        left = verdicts == Verdict.KEPT
        if self.minimum is not None:
            verdicts[left & (table.scores < self.minimum)] = Verdict.SCORE
        elif self.keep is not None:
            best = _best(table.scores, left, round(self.keep * int(left.sum())))
            verdicts[left & ~best] = Verdict.SCORE
        return verdicts

    def threshold(self, scores: np.ndarray, verdicts: np.ndarray) -> float | None:
        """The score that every kept pair reaches; None if pairs are not dropped for their score."""
        if self.minimum is not None:
            return self.minimum
        kept = scores[verdicts == Verdict.KEPT]
        if self.keep is None or len(kept) == 0:
            return None
        return float(kept.min())


def _best(scores: np.ndarray, candidates: np.ndarray, count: int) -> np.ndarray:
    """(pairs,) whether each is among the `count` candidates of the highest scores.

    Of equal scores, the first are taken.
    """
    if count == 0:
        return np.zeros(len(scores), dtype=bool)
    lowest = lowest_of_best(scores[candidates], count)
    best: np.ndarray = candidates & (scores > lowest)
    equal = np.flatnonzero(candidates & (scores == lowest))
    best[equal[: count - int(best.sum())]] = True
    return best


def lowest_of_best(scores: np.ndarray, count: int) -> float:
    """The lowest of the `count` highest scores; `count` is at least 1."""
    place = len(scores) - count
    return float(np.partition(scores, place)[place])


def outcome(settings: FilterSettings, verdicts: np.ndarray, threshold: float | None) -> str:
    """What was kept, what was dropped and why, in a sentence or two."""
    counts = np.bincount(verdicts, minlength=len(Verdict)).tolist()
    kept = counts[Verdict.KEPT]
    text = f"Kept {kept:,} of {counted(len(verdicts), 'pair')}"
    scored = counts[Verdict.KEPT] + counts[Verdict.SCORE]
    if settings.keep is not None and scored < len(verdicts):
        text += f", {settings.keep:.0%} of the {scored:,} that no rule drops"
    if threshold is not None:
        # A score that the user gave is repeated as it was given.
        number = score_text(threshold) if settings.minimum is None else f"{threshold:g}"
        text += f", with a {SIGNALS[settings.by].name} of at least {number}"
    text += f". Dropped {len(verdicts) - kept:,}"
    reasons = []
    for verdict, words in IN_WORDS.items():
        if counts[verdict]:
            reasons.append(f"{counts[verdict]:,} {words}")
    if reasons:
        text += f": {', '.join(reasons)}"
    return f"{text}."


def score_text(score: float) -> str:
    """Three digits, rounded down: as --min, it keeps no less."""
    thousandths = round(1000 * score, 3)  # scores have six digits; the rest is rounding error
    return f"{math.floor(thousandths) / 1000:.3f}"
