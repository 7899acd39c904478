"""The words of a scored pair as pages show them: coloured by CBMI, with figures for the tooltip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cbmi.data.words import Word, means, repeats, sums

if TYPE_CHECKING:  # at run time it would import PyTorch, for pages that need only the colours
    from cbmi.inference.scoring import ScoredPair

# A word changes colour where the source makes it this many times as likely, or as unlikely.
FACTORS = (2, 10, 100, 1000)
# Two occurrences of a word whose CBMI differs by at least this, in nats, are shown as different.
REPEATED = math.log(10)


@dataclass(frozen=True)
class WordCell:
    """What pages show of one word."""

    text: str
    space: bool  # whether a space precedes it
    control: bool  # the end of the sentence, not text
    repeated: bool  # occurs again with a CBMI that differs by `REPEATED` or more
    nmt: float  # log p_NMT, the sum over its pieces
    lm: float  # log p_LM
    cbmi: float
    level: str  # the colour class
    figures: str  # what the page's script puts into the tooltip, separated by "|"


@dataclass(frozen=True)
class WordCells:
    """The words of a pair's target, in order."""

    words: list[WordCell]
    largest_repeat: float  # the largest difference of CBMI between occurrences of one word, or 0


def word_cells(pair: ScoredPair) -> WordCells:
    """What pages show of a pair's target: a cell per word, the end of sentence among them."""
    words = pair.words
    nmt = sums(words, pair.log_p_nmt.tolist())
    lm = sums(words, pair.log_p_lm.tolist())
    cbmi = sums(words, pair.cbmi.tolist())
    weights = _weights_of_words(pair, words)
    differences = repeats(words, cbmi)
    marked: set[int] = set()
    for difference, places in differences:
        if difference >= REPEATED:
            marked.update(places)
    cells = []
    for place, word in enumerate(words):
        cells.append(
            WordCell(
                text="end" if word.control else word.text or "␣",
                space=word.space or word.control,
                control=word.control,
                repeated=place in marked,
                nmt=nmt[place],
                lm=lm[place],
                cbmi=cbmi[place],
                level=level(cbmi[place]),
                figures=_figures(nmt[place], lm[place], cbmi[place], weights[place]),
            )
        )
    largest = differences[0][0] if differences else 0.0
    return WordCells(cells, largest)


def _weights_of_words(pair: ScoredPair, words: list[Word]) -> list[float] | list[None]:
    """The mean weight of each word's pieces; None for each if the pair has no weights."""
    weights = pair.weights if pair.token_weights is None else pair.token_weights
    if weights is None:
        return [None] * len(words)
    return means(words, weights.tolist())


def _figures(nmt: float, lm: float, cbmi: float, weight: float | None) -> str:
    """p_NMT, p_LM, CBMI with its factor and, if there is one, the weight, separated by "|"."""
    figures = [_probability(nmt), _probability(lm), f"{number_text(cbmi)} ({_factor(cbmi)})"]
    if weight is not None:
        figures.append(number_text(weight))
    return "|".join(figures)


def level(cbmi: float) -> str:
    """The colour class.

    "p1" to "p4" if the source makes a word more likely, "n1" to "n4" if less, "z" if neither.
    """
    step = 0
    for factor in FACTORS:
        if abs(cbmi) >= math.log(factor):
            step += 1
    if step == 0:
        return "z"
    return f"p{step}" if cbmi > 0 else f"n{step}"


def number_text(value: float) -> str:
    """`value` with two decimals and a true minus sign; "–" for NaN."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    rounded = round(value, 2) + 0.0  # adding 0 turns −0 into 0
    return f"{rounded:.2f}".replace("-", "−")


def _probability(logarithm: float) -> str:
    """The probability with this natural logarithm.

    A percentage, or "1 in …" if the percentage would have only zeros.
    """
    if math.isnan(logarithm):
        return "–"
    probability = math.exp(min(logarithm, 0.0))
    if probability >= 0.1:
        return f"{probability:.0%}"
    if probability >= 0.001:
        return f"{probability:.1%}"
    if probability <= 1e-9:
        return "below 1 in a billion"
    return f"1 in {_two_digits(1 / probability)}"


def _factor(cbmi: float) -> str:
    """`cbmi` as a factor between probabilities: "×20" for about 3, "÷20" for about −3."""
    if math.isnan(cbmi):
        return "–"
    size = math.exp(min(abs(cbmi), math.log(1e6)))
    digits = f"{size:.1f}" if size < 9.95 else _two_digits(size)
    sign = "×" if cbmi >= 0 else "÷"
    more = "> " if size >= 999_999 else ""
    return f"{more}{sign}{digits}"


def _two_digits(value: float) -> str:
    """Rounded to two significant digits, such as "1,200"."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}"
