"""An HTML page that shows, word by word, what a translation owes to its source: CBMI as colour."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbmi.analysis.pages import render_page
from cbmi.analysis.words import Word, means, repeats, sums, words
from cbmi.errors import UserError
from cbmi.files import write_atomically

# A word changes colour where the source makes it this many times as likely, or as unlikely.
FACTORS = (2, 10, 100, 1000)
REPEATED = math.log(10)  # between two occurrences of a word that are shown as different
LISTS = ("nmt", "lm", "cbmi")
REQUIRED = ("source", "pieces", "sentence_cbmi", *LISTS)


def write_page(
    records: Sequence[dict], path: Path, title: str, introduction: str = "", models: Sequence[str] = ("",)
) -> None:
    """Write the self-contained page of `records` (lines of `cbmi score`) to `path`.

    A record may lack the weights; its optional "note" is shown as a badge, and its "other", the record of a second
    model for the same pair, beside it (`models`: the names of the two). `introduction` is plain text above.
    """
    sentences = [_sentence(record, number) for number, record in enumerate(records, start=1)]
    view = {
        "title": title,
        "introduction": introduction,
        "sentences": sentences,
        "models": models,
        "factors": FACTORS,
        "repeated": REPEATED,
        "weighted": any(sentence["views"][0]["weight"] is not None for sentence in sentences),
    }
    write_atomically(path, render_page("cbmi.analysis", "heatmap.html.jinja", view, number=number_text))


def _sentence(record: dict, number: int) -> dict[str, Any]:
    """What the template shows of one record; `number` counts from 1."""
    views = [_view(one, number) for one in (record, record.get("other")) if one is not None]
    sorts = [view["sort"] for view in views]
    return {
        "number": number,
        "source": record["source"],
        "note": record.get("note"),
        "views": views,
        "repeat": max(view["repeat"] for view in views),
        "difference": abs(sorts[0] - sorts[-1]),
    }


def _view(record: dict, number: int) -> dict[str, Any]:
    """What the template shows of one model's figures."""
    _check(record, number)
    shown, repeat = cells(record)
    return {
        "cbmi": record["sentence_cbmi"],
        "sort": _sortable(record["sentence_cbmi"]),
        "weight": record.get("sentence_weight"),
        "words": shown,
        "repeat": repeat,
    }


def cells(record: dict) -> tuple[list[dict[str, Any]], float]:
    """What pages show of a record's words, and the largest difference of CBMI between occurrences of one word."""
    joined = words(record["pieces"])
    columns = [sums(joined, record[key]) for key in LISTS]
    weights = record.get("token_weights", record.get("weights"))
    columns.append(means(joined, weights) if weights is not None else [None] * len(joined))
    found = repeats(joined, columns[LISTS.index("cbmi")])
    marked = {place for difference, places in found if difference >= REPEATED for place in places}
    shown = [_cell(*cell, repeated=place in marked) for place, cell in enumerate(zip(joined, *columns, strict=True))]
    return shown, found[0][0] if found else 0.0


def _cell(word: Word, nmt: float, lm: float, cbmi: float, weight: float | None, repeated: bool) -> dict[str, Any]:
    """What the template shows of one word; `figures` is what the page's script puts into the tooltip."""
    figures = [_probability(nmt), _probability(lm), f"{number_text(cbmi)} ({_factor(cbmi)})"]
    if weight is not None:
        figures.append(number_text(weight))
    return {
        "text": "end" if word.control else word.text or "␣",
        "space": word.space or word.control,
        "control": word.control,
        "repeated": repeated,
        "nmt": nmt,
        "lm": lm,
        "cbmi": cbmi,
        "level": level(cbmi),
        "figures": "|".join(figures),
    }


def level(cbmi: float) -> str:
    """The colour class: "p1" to "p4" with the source more likely, "n1" to "n4" less, "z" about the same."""
    step = sum(abs(cbmi) >= math.log(factor) for factor in FACTORS)
    if not step:
        return "z"
    return f"{'p' if cbmi > 0 else 'n'}{step}"


def number_text(value: float) -> str:
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
    for key in (*LISTS, "weights", "token_weights"):
        if key in record and len(record[key]) != length:
            raise UserError(
                f"Record {number} has {length} pieces but {len(record[key])} values in {key!r}; "
                "give lines written by `cbmi score`."
            )
