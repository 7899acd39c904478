"""What BLEU and chrF do not show of translations of unfamiliar text.

Averages hide the sentences that fail altogether, outputs that are too short or go round in circles,
and words that the training data hardly have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cbmi.errors import UserError
from cbmi.evaluation.metrics import sacrebleu_metrics, unspaced

FAILED_CHRF = 15.0  # a segment below this has little to do with its reference
NGRAM = 4  # of words that are looked for again
RARE = 9  # a word with at most so many occurrences in the training data

WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Robustness:
    """One output against its references. Shares are between 0 and 1; None: nothing to count."""

    failed: float  # share of segments with chrF < 15
    length_ratio: float  # words of the output / words of the references
    repeating: float  # share of segments that repeat four words more often than their reference
    unseen_recall: float | None  # of the references' words that the training data do not have
    rare_recall: float | None  # of those that they have 1 to 9 times
    words_recall: float | None = None  # of certain words, such as articles


def words_of(line: str, language: str) -> list[str]:
    """Its words without punctuation and case; characters, in languages without spaces."""
    words = WORD.findall(line.lower())
    if unspaced(language):
        return list("".join(words))
    return words


def count_words(lines: Iterable[str], language: str) -> Counter[str]:
    """Of the training data's target side."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(words_of(line, language))
    return counts


def robustness(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    training: Counter[str],
    words: Iterable[str] = (),
) -> Robustness:
    """`training`: how often each word occurs in the training data, from `count_words`.

    words: those whose recall is measured, too.
    """
    named = {word.lower() for word in words}
    if len(hypotheses) != len(references):
        raise UserError(
            f"There are {len(hypotheses)} translations, but {len(references)} references."
        )
    if not references:
        raise UserError("There is nothing to evaluate.")
    chrf = sacrebleu_metrics().CHRF()
    failed = 0
    repeating = 0
    output_words = 0
    reference_words = 0
    unseen = _Recall()
    rare = _Recall()
    of_named = _Recall()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        failed += chrf.sentence_score(hypothesis, [reference]).score < FAILED_CHRF
        own = words_of(hypothesis, language)
        expected = words_of(reference, language)
        output_words += len(own)
        reference_words += len(expected)
        repeating += _most_repeated(own) > max(1, _most_repeated(expected))
        own_counts = Counter(own)
        for word, count in Counter(expected).items():
            seen = training[word]
            if seen <= RARE:
                (unseen if seen == 0 else rare).add(count, min(count, own_counts[word]))
            if word in named:
                of_named.add(count, min(count, own_counts[word]))
    lines = len(references)
    return Robustness(
        failed=failed / lines,
        length_ratio=output_words / max(reference_words, 1),
        repeating=repeating / lines,
        unseen_recall=unseen.share(),
        rare_recall=rare.share(),
        words_recall=of_named.share(),
    )


class _Recall:
    """How many of the words wanted were found."""

    def __init__(self) -> None:
        self.wanted = 0
        self.found = 0

    def add(self, wanted: int, found: int) -> None:
        self.wanted += wanted
        self.found += found

    def share(self) -> float | None:
        return self.found / self.wanted if self.wanted else None


def _most_repeated(words: Sequence[str]) -> int:
    """Occurrences of the most frequent sequence of four words; 0 if there are fewer words."""
    ngrams = Counter(tuple(words[place : place + NGRAM]) for place in range(len(words) - NGRAM + 1))
    return max(ngrams.values(), default=0)
