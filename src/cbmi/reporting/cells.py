"""The words of a scored pair as pages show them: coloured by CBMI, with values for the tooltip."""

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
    lm: float | None  # log p_LM; None without a language model
    cbmi: float | None
    weight: float | None  # the mean of its pieces' token weights
    level: str  # the colour class
    values: str  # what the page's script reads: nmt, lm, cbmi and weight, separated by "|"


@dataclass(frozen=True)
class WordCells:
    """The words of a pair's target, in order."""

    words: list[WordCell]
    largest_repeat: float  # the largest difference of CBMI between occurrences of one word, or 0


def word_cells(pair: ScoredPair) -> WordCells:
    """What pages show of a pair's target: a cell per word, the end of sentence among them."""
    words = pair.words
    nmt = sums(words, pair.log_p_nmt.tolist())
    lm: list[float] | list[None] = [None] * len(words)
    cbmi: list[float] | list[None] = [None] * len(words)
    differences: list[tuple[float, list[int]]] = []
    if pair.log_p_lm is not None:
        lm = sums(words, pair.log_p_lm.tolist())
        cbmi = sums(words, pair.cbmi.tolist())
        differences = repeats(words, cbmi)
    weights = _weights_of_words(pair, words)
    marked: set[int] = set()
    for difference, places in differences:
        if difference >= REPEATED:
            marked.update(places)
    cells = []
    for place, word in enumerate(words):
        values = (nmt[place], lm[place], cbmi[place], weights[place])
        cells.append(
            WordCell(
                text="end" if word.control else word.text or "␣",
                space=word.space or word.control,
                control=word.control,
                repeated=place in marked,
                nmt=nmt[place],
                lm=lm[place],
                cbmi=cbmi[place],
                weight=weights[place],
                level=level(cbmi[place]),
                values="|".join(_number_for_script(value) for value in values),
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


def _number_for_script(value: float | None) -> str:
    """A number as JavaScript reads it; nothing if there is none."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return f"{value:.4f}"


def level(cbmi: float | None) -> str:
    """The colour class.

    "p1" to "p4" if the source makes a word more likely, "n1" to "n4" if less, "z" if neither.
    """
    if cbmi is None:
        return "z"
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
