"""An HTML page that shows, word by word, what a translation owes to its source: CBMI as colour."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbmi.analysis.pages import render_page
from cbmi.analysis.words import Word, means, sums, words
from cbmi.errors import UserError
from cbmi.files import write_atomically

# A word changes colour where the source makes it this many times as likely, or as unlikely.
FACTORS = (2, 10, 100, 1000)
LISTS = ("nmt", "lm", "cbmi")
REQUIRED = ("source", "pieces", "sentence_cbmi", *LISTS)


def write_page(records: Sequence[dict], path: Path, title: str, introduction: str = "") -> None:
    """Write the self-contained page of `records` (lines of `cbmi score`) to `path`.

    A record may lack "weights" and "sentence_weight"; its optional "note" is shown as a badge.
    `introduction` is plain text above the sentences.
    """
    sentences = [_sentence(record, number) for number, record in enumerate(records, start=1)]
    view = {
        "title": title,
        "introduction": introduction,
        "sentences": sentences,
        "factors": FACTORS,
        "weighted": any(sentence["weight"] is not None for sentence in sentences),
    }
    write_atomically(path, render_page("cbmi.analysis", "heatmap.html.jinja", view, number=_number))


def _sentence(record: dict, number: int) -> dict[str, Any]:
    """What the template shows of one record; `number` counts from 1."""
    _check(record, number)
    joined = words(record["pieces"])
    columns = [sums(joined, record[key]) for key in LISTS]
    columns.append(means(joined, record["weights"]) if "weights" in record else [None] * len(joined))
    return {
        "number": number,
        "source": record["source"],
        "note": record.get("note"),
        "cbmi": record["sentence_cbmi"],
        "sort": _sortable(record["sentence_cbmi"]),
        "weight": record.get("sentence_weight"),
        "words": [_cell(*cell) for cell in zip(joined, *columns, strict=True)],
    }


def _cell(word: Word, nmt: float, lm: float, cbmi: float, weight: float | None) -> dict[str, Any]:
    """What the template shows of one word; `figures` is what the page's script puts into the tooltip."""
    figures = [_probability(nmt), _probability(lm), f"{_number(cbmi)} ({_factor(cbmi)})"]
    if weight is not None:
        figures.append(_number(weight))
    return {
        "text": "end" if word.control else word.text or "␣",
        "space": word.space or word.control,
        "control": word.control,
        "level": _level(cbmi),
        "figures": "|".join(figures),
    }


def _level(cbmi: float) -> str:
    """The colour class: "p1" to "p4" with the source more likely, "n1" to "n4" less, "z" about the same."""
    step = sum(abs(cbmi) >= math.log(factor) for factor in FACTORS)
    if not step:
        return "z"
    return f"{'p' if cbmi > 0 else 'n'}{step}"


def _number(value: float) -> str:
    """`value` with two decimals and a true minus sign; "–" for what is not a number."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")  # adding 0 turns −0 into 0


def _probability(logarithm: float) -> str:
    """The probability with this natural logarithm: a percentage, or "1 in …" where that has only zeros."""
    if math.isnan(logarithm):
        return "–"
    probability = math.exp(min(logarithm, 0.0))
    if probability >= 0.1:
        return f"{probability:.0%}"
    if probability >= 0.001:
        return f"{probability:.1%}"
    return f"1 in {float(f'{1 / probability:.2g}'):,.0f}" if probability > 1e-9 else "below 1 in a billion"


def _factor(cbmi: float) -> str:
    """`cbmi` as a factor between probabilities: "×20" for about 3, "÷20" for about −3."""
    if math.isnan(cbmi):
        return "–"
    size = math.exp(min(abs(cbmi), math.log(1e6)))
    digits = f"{size:.1f}" if size < 9.95 else f"{float(f'{size:.2g}'):,.0f}"
    more = "> " if size >= 999_999 else ""
    return f"{more}{'×' if cbmi >= 0 else '÷'}{digits}"


def _sortable(value: float) -> float:
    """`value` as the page's script can sort by it: what is not a number goes last, infinities to the ends."""
    return max(-1e9, min(1e9, -1e9 if math.isnan(value) else value))


def _check(record: dict, number: int) -> None:
    """Refuse a record that lacks a key, or whose lists differ in length."""
    for key in REQUIRED:
        if key not in record:
            raise UserError(f"Record {number} has no {key!r}; give lines written by `cbmi score`.")
    length = len(record["pieces"])
    for key in (*LISTS, "weights"):
        if key in record and len(record[key]) != length:
            raise UserError(
                f"Record {number} has {length} pieces but {len(record[key])} values in {key!r}; "
                "give lines written by `cbmi score`."
            )
