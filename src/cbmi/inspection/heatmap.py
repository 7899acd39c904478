"""An HTML page that shows, word by word, what a translation owes to its source: CBMI as colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbmi.files import write_atomically
from cbmi.inference.scoring import ScoredPair
from cbmi.reporting.cells import FACTORS, REPEATED, WordCell, number_text, word_cells
from cbmi.reporting.pages import render_page

FARTHEST = 1e9  # stands for infinity where the page's script sorts


@dataclass(frozen=True)
class HeatmapEntry:
    """A pair of the page."""

    pair: ScoredPair
    note: str | None = None  # shown as a badge
    other: ScoredPair | None = None  # the same pair by a second model, shown beside the first


@dataclass(frozen=True)
class _ModelView:
    """What the template shows of one model's figures."""

    name: str  # of the sentence's score: "CBMI", or "log p" without a language model
    score: float
    sort: float
    weight: float | None
    words: list[WordCell]
    repeat: float


@dataclass(frozen=True)
class _SentenceView:
    """What the template shows of one entry."""

    number: int  # from 1
    source: str
    note: str | None
    views: list[_ModelView]
    repeat: float  # the largest difference of CBMI between occurrences of one word
    difference: float  # of the sentence's score between the models


def write_heatmap(
    entries: Sequence[HeatmapEntry],
    path: Path,
    title: str,
    introduction: str = "",
    models: Sequence[str] = ("",),
) -> None:
    """Write a page that needs no other file.

    Pairs may lack weights and, without a language model, CBMI. `introduction` is plain text.
    `models` names the models: one, or two if the entries have an `other`.
    """
    sentences = [_sentence_view(entry, number) for number, entry in enumerate(entries, start=1)]
    view = {
        "title": title,
        "introduction": introduction,
        "sentences": sentences,
        "models": models,
        "factors": FACTORS,
        "repeated": REPEATED,
        "coloured": any(_has_cbmi(entry) for entry in entries),
        "weighted": any(sentence.views[0].weight is not None for sentence in sentences),
    }
    page = render_page("cbmi.inspection", "heatmap.html.jinja", view, number=number_text)
    write_atomically(path, page)


def _has_cbmi(entry: HeatmapEntry) -> bool:
    pairs = [entry.pair] if entry.other is None else [entry.pair, entry.other]
    return any(pair.log_p_lm is not None for pair in pairs)


def _sentence_view(entry: HeatmapEntry, number: int) -> _SentenceView:
    pairs = [entry.pair] if entry.other is None else [entry.pair, entry.other]
    # Only like is compared with like.
    by_cbmi = all(pair.log_p_lm is not None for pair in pairs)
    views = [_model_view(pair, by_cbmi) for pair in pairs]
    return _SentenceView(
        number=number,
        source=entry.pair.source,
        note=entry.note,
        views=views,
        repeat=max(view.repeat for view in views),
        difference=abs(views[0].sort - views[-1].sort),
    )


def _model_view(pair: ScoredPair, by_cbmi: bool) -> _ModelView:
    cells = word_cells(pair)
    score = pair.sentence_cbmi if by_cbmi else pair.likelihood
    return _ModelView(
        name="CBMI" if by_cbmi else "log p",
        score=score,
        sort=_sortable(score),
        weight=pair.sentence_weight,
        words=cells.words,
        repeat=cells.largest_repeat,
    )


def _sortable(value: float) -> float:
    """`value` as the page's script can sort by it: NaN goes last, infinities to the ends."""
    if math.isnan(value):
        return -FARTHEST
    return max(-FARTHEST, min(FARTHEST, value))
