"""Which pairs of a scored corpus are kept: by their score, and by rules that need no model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cbmi.data.text import is_copy
from cbmi.errors import UserError

# What becomes of a pair; a name's place is its number.
FATES = ("kept", "score", "copy", "lengths", "duplicate", "empty")
KEPT, SCORE, COPY, LENGTHS, DUPLICATE, EMPTY = range(len(FATES))
RULED_OUT = (COPY, LENGTHS, DUPLICATE, EMPTY)  # whatever the score
IN_WORDS = {
    "score": "for their score",
    "copy": "as copies of the source",
    "lengths": "for their lengths",
    "duplicate": "as repetitions of earlier pairs",
    "empty": "with an empty side",
}


@dataclass(frozen=True)
class Signal:
    """A number of a pair by which it is kept or dropped, in nats per token: the higher, the better."""

    name: str
    long_name: str
    meaning: str
    of: Callable[[dict[str, Any]], float]  # a pair's record


SIGNALS = {  # in the order of the columns of `Scorer.sentence_scores`
    "cbmi": Signal(
        "CBMI",
        "sentence CBMI",
        "Sentence CBMI says how much more likely the source makes the words of a translation, in nats per token. A "
        "translation that has nothing to do with its source is near 0 or below.",
        lambda record: record["sentence_cbmi"],
    ),
    "likelihood": Signal(
        "likelihood",
        "translation likelihood",
        "The mean log-probability that the translator gives to the tokens of a translation, in nats. 0 would be "
        "certainty; what the translator would never say, for lack of sense or of grammar, is far below.",
        lambda record: float(np.mean(record["nmt"])),
    ),
}


@dataclass(frozen=True)
class Table:
    """What is known of the pairs, (pairs,) each."""

    scores: np.ndarray
    empty: np.ndarray  # whether a side is
    copies: np.ndarray  # whether the target is the source again
    lengths: np.ndarray  # the logarithm of the target's length over the source's, in characters
    texts: np.ndarray  # a number for each text of a pair: equal texts have equal ones

    @cached_property
    def repeated(self) -> np.ndarray:
        """(pairs,): whether an earlier pair has the same text."""
        first = np.unique(self.texts, return_index=True)[1]
        repeated = np.ones(len(self.texts), bool)
        repeated[first] = False
        return repeated & ~self.empty


def facts_of(pairs: Sequence[tuple[str, str]]) -> tuple[np.ndarray, ...]:
    """What rules go by: `empty`, `copies`, `lengths` and `texts` of a `Table`."""
    lengths = np.array([[len(side.strip()) for side in pair] for pair in pairs])
    empty = (lengths == 0).any(axis=1)
    copies = np.array([is_copy(pair) for pair in pairs]) & ~empty
    texts = np.array([_text_number(pair) for pair in pairs])
    return empty, copies, np.diff(np.log(np.maximum(lengths, 1)))[:, 0], texts


def _text_number(pair: tuple[str, str]) -> float:
    """A whole number of 53 bits, as a float has them; spaces make no difference."""
    text = "\t".join(" ".join(side.split()) for side in pair)
    return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 11)


@dataclass(frozen=True)
class Choice:
    """What to keep: a share of the pairs or those of at least a score, after those that a rule drops."""

    keep: float | None = None
    minimum: float | None = None
    by: str = "cbmi"
    drop_copies: bool = False
    max_ratio: float | None = None
    drop_duplicates: bool = False

    def __post_init__(self) -> None:
        if self.by not in SIGNALS:
            raise UserError(f"--by: '{self.by}' should be {' or '.join(SIGNALS)}.")
        if self.keep is not None and self.minimum is not None:
            raise UserError("filter: say either --keep SHARE or --min SCORE, not both.")
        if self.minimum is not None and not math.isfinite(self.minimum):
            raise UserError(f"--min: {self.minimum} should be a number, such as 0.5.")
        if self.by == "likelihood" and self.minimum is not None and self.minimum > 0:
            raise UserError(f"--min: {self.minimum:g} is above 0, and no likelihood is; say a number such as -1.")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise UserError(f"--keep: {self.keep:g} should be a share above 0 and at most 1, such as 0.9.")
        if self.max_ratio is not None and not (self.max_ratio > 1 and math.isfinite(self.max_ratio)):
            raise UserError(f"--max-ratio: {self.max_ratio:g} should be a number above 1, such as 2.")

    @property
    def by_score(self) -> bool:
        return self.keep is not None or self.minimum is not None

    @property
    def made(self) -> bool:
        """Otherwise the corpus is only looked at."""
        return self.by_score or self.drop_copies or self.drop_duplicates or self.max_ratio is not None

    def fates(self, table: Table) -> np.ndarray:
        """(pairs,) what becomes of each. `keep` is a share of those that no rule drops; of equal scores the first
        are kept."""
        fates = np.full(len(table.scores), KEPT, np.int8)
        if self.drop_duplicates:
            fates[table.repeated] = DUPLICATE
        if self.max_ratio is not None:
            usual = np.median(table.lengths[~table.empty])
            fates[np.abs(table.lengths - usual) > math.log(self.max_ratio)] = LENGTHS
        if self.drop_copies:
            fates[table.copies] = COPY
        fates[table.empty] = EMPTY
        if self.by_score:
            fit = fates == KEPT
            fates[fit & ~self._good_enough(table.scores, fit)] = SCORE
        return fates

    def _good_enough(self, scores: np.ndarray, fit: np.ndarray) -> np.ndarray:
        if self.minimum is not None:
            return scores >= self.minimum
        candidates = scores[fit]
        count = round(self.keep * len(candidates))
        if not count:
            return np.zeros(len(scores), bool)
        lowest = np.partition(candidates, len(candidates) - count)[len(candidates) - count]
        good = fit & (scores > lowest)
        equal = np.flatnonzero(fit & (scores == lowest))
        good[equal[: count - int(good.sum())]] = True
        return good

    def threshold(self, scores: np.ndarray, fates: np.ndarray) -> float | None:
        """The score that kept pairs have at least, where it is the score that decides."""
        if self.minimum is not None or not self.by_score:
            return self.minimum
        kept = scores[fates == KEPT]
        return float(kept.min()) if len(kept) else None


def outcome(choice: Choice, fates: np.ndarray, threshold: float | None) -> str:
    """What was kept, what was dropped and why, in a sentence or two."""
    counts = dict(zip(FATES, np.bincount(fates, minlength=len(FATES)).tolist(), strict=True))
    kept = counts.pop("kept")
    text = f"Kept {kept:,} of {count_text(len(fates))}"
    if threshold is not None:
        number = score_text(threshold) if choice.minimum is None else f"{threshold:g}"
        text += f", with a {SIGNALS[choice.by].name} of at least {number}"
    reasons = [f"{count:,} {IN_WORDS[name]}" for name, count in counts.items() if count]
    return f"{text}. Dropped {len(fates) - kept:,}{': ' + ', '.join(reasons) if reasons else ''}."


def score_text(score: float) -> str:
    """Three digits, rounded down: as --min, it keeps no less."""
    return f"{math.floor(round(1000 * score, 3)) / 1000:.3f}"  # scores have six digits


def count_text(count: int) -> str:
    return "1 pair" if count == 1 else f"{count:,} pairs"
