"""Contrasts: sums and differences of scores, seed by seed, such as a difference of differences.

    ms/cbmi - ms/ce - small/cbmi + small/ce

They compare what the tables do not: systems of different tasks, or how much more one system gains
than another. A contrast is computed for each seed that all its terms have. Over the seeds, a
two-sided t-test asks whether it is 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

DIGITS = 9
SIGNS = {"+": 1, "-": -1, "−": -1}

Measure = Literal[
    "failed", "length_ratio", "repeating", "unseen_recall", "rare_recall", "words_recall"
]
WORDS_RECALL = "words_recall"
# Of `cbmi.evaluation.robustness`; shown in per cent.
MEASURE_NAMES: dict[str, str] = {
    "failed": "chrF < 15, %",
    "length_ratio": "length ratio, %",
    "repeating": "repeating, %",
    "unseen_recall": "recall of unseen words, %",
    "rare_recall": "recall of rare words, %",
    "words_recall": "recall of the words, %",
}


class Term(NamedTuple):
    """A system's score, added or subtracted."""

    sign: int
    task: str
    system: str


# Scores of a system's runs on one test set by one measure: seed → score.
BySeed = Mapping[int, float]


def parse_contrast(text: str, tasks: Sequence[str]) -> list[Term]:
    """`a/cbmi - a/ce` as terms; with one task, its name may be left out.

    Raises ValueError, in words for the user, for what is not a contrast.
    """
    words = text.split()
    if words and words[0] not in SIGNS:
        words.insert(0, "+")
    is_sum = bool(words) and len(words) % 2 == 0 and all(sign in SIGNS for sign in words[::2])
    if not is_sum or any(name[0] in "+-−(*" for name in words[1::2]):
        raise ValueError(
            f"'{text}' should be like TASK/SYSTEM - TASK/SYSTEM: names with + or - between spaces, "
            "without brackets or factors"
        )
    terms = []
    for sign, name in zip(words[::2], words[1::2], strict=True):
        task, slash, system = name.partition("/")
        if not slash:
            if len(tasks) > 1:
                raise ValueError(f"'{name}' should name its task: TASK/{name}")
            task, system = tasks[0], name
        terms.append(Term(SIGNS[sign], task, system))
    if sum(term.sign for term in terms):
        raise ValueError(
            f"'{text}' adds and subtracts different numbers of scores, so it is not a difference "
            "(put + and - between spaces)"
        )
    counts: Counter[tuple[str, str]] = Counter()
    for term in terms:
        counts[term.task, term.system] += term.sign
    if not all(counts.values()):
        raise ValueError(f"'{text}' subtracts a score from itself")
    return terms


def contrast_by_seed(terms: Sequence[Term], scores: Mapping[tuple[str, str], BySeed]) -> BySeed:
    """The value for each seed that all terms have; scores: by (task, system)."""
    known = [scores.get((term.task, term.system), {}) for term in terms]
    values = {}
    for seed in known[0]:
        if all(seed in one for one in known):
            parts = zip(terms, known, strict=True)
            total = math.fsum(term.sign * one[seed] for term, one in parts)
            values[seed] = round(total, DIGITS)  # without what is rounding alone
    return values
