"""The page on which one chooses a threshold: a histogram of scores, what shares keep, samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cbmi.data.text import read_corpora
from cbmi.filtering.rules import (
    IN_WORDS,
    RULED_OUT,
    SIGNALS,
    FilterSettings,
    PairTable,
    Signal,
    Verdict,
    lowest_of_best,
    score_text,
)
from cbmi.inference.base import Model
from cbmi.inference.scoring import PairScorer, ScoredPair
from cbmi.progress import counted
from cbmi.reporting.cells import FACTORS, WordCell, number_text, word_cells
from cbmi.reporting.drawing import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    Picture,
    data_address,
    drawn,
    plotting,
)
from cbmi.reporting.pages import render_page
from cbmi.reporting.tables import csv_text

# Where samples are taken: names of quantiles of the scores.
QUANTILES = {
    "The lowest": 0.0,
    "At 0.5%": 0.005,
    "At 1%": 0.01,
    "At 2%": 0.02,
    "At 5%": 0.05,
    "At 10%": 0.1,
    "At 20%": 0.2,
    "At 30%": 0.3,
    "At 50%": 0.5,
    "At 75%": 0.75,
    "The highest": 1.0,
}
SAMPLES = 6  # pairs shown at each quantile, and of what each rule drops
SHARES = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)  # of the table
BINS = 80
OUTSIDE = 0.0005  # share of the scores at either end that the first and the last bin take in
# What is longer in a sample is cut.
LONGEST_SOURCE = 1000  # characters
MOST_WORDS = 200


class Histogram(NamedTuple):
    counts: np.ndarray  # (bins,)
    edges: np.ndarray  # (bins + 1,)


@dataclass(frozen=True)
class _SamplePlaces:
    """Where the samples of a group stand in the corpus."""

    name: str
    detail: str
    places: np.ndarray  # from 0


@dataclass(frozen=True)
class _ShownPair:
    """What the template shows of a pair."""

    line: int  # from 1
    source: str
    words: list[WordCell]
    more: bool  # whether there are more words
    score: float
    dropped: bool


@dataclass(frozen=True)
class _SampleGroup:
    name: str
    detail: str
    pairs: list[_ShownPair]


class _ShareRow(NamedTuple):
    """What keeping a share of the pairs means."""

    share: float
    pairs: int
    score: float  # the lowest that is kept


def filter_page(
    path: Path,
    model: Model,
    shards: Sequence[Sequence[str]],
    settings: FilterSettings,
    table: PairTable,
    verdicts: np.ndarray,
    notes: Sequence[str],
) -> dict[Path, str | bytes]:
    """The page at PATH, and its histogram beside it as CSV, SVG and PNG: contents by file.

    The histogram and the table are of the pairs that no rule drops. `notes` are sentences for the
    top of the page.
    """
    signal = SIGNALS[settings.by]
    scores = table.scores[~np.isin(verdicts, RULED_OUT)]
    bars = histogram(scores)
    picture = _histogram_figure(bars, signal, settings.threshold(table.scores, verdicts))
    view = {
        "signal": signal,
        "notes": notes,
        "pairs": len(scores),
        "others": len(verdicts) - len(scores),
        "histogram": data_address(picture.svg),
        "table": _share_rows(scores),
        "groups": _sample_groups(model, shards, signal, table, verdicts),
        "factors": FACTORS,
    }
    stem = path.with_suffix("")
    return {
        Path(f"{stem}.histogram.csv"): _histogram_csv(bars),
        Path(f"{stem}.histogram.svg"): picture.svg,
        Path(f"{stem}.histogram.png"): picture.png,
        path: render_page("cbmi.filtering", "filter.html.jinja", view, number=_shown_score),
    }


def _shown_score(score: float) -> str:
    return score_text(score).replace("-", "−")


def histogram(scores: np.ndarray) -> Histogram:
    """Counts and edges of the bins; what lies far outside is in the first and the last."""
    low, high = np.quantile(scores, [OUTSIDE, 1 - OUTSIDE])
    if not high > low:
        low -= 0.5
        high += 0.5
    edges = np.linspace(low, high, BINS + 1)
    counts, _ = np.histogram(np.clip(scores, low, high), edges)
    edges[0] = min(edges[0], scores.min())
    edges[-1] = max(edges[-1], scores.max())
    return Histogram(counts, edges)


def _histogram_csv(bars: Histogram) -> str:
    rows = [["from", "to", "pairs"]]
    for place, count in enumerate(bars.counts):
        rows.append([f"{bars.edges[place]:.6f}", f"{bars.edges[place + 1]:.6f}", str(count)])
    return csv_text(rows)


def _histogram_figure(bars: Histogram, signal: Signal, threshold: float | None) -> Picture:
    """Bars of equal width, the outermost too, in the colour of what becomes of their pairs."""
    edges = bars.edges.copy()
    width = edges[2] - edges[1]
    edges[0] = edges[1] - width
    edges[-1] = edges[-2] + width
    colors = np.full(len(bars.counts), BLUE)
    if threshold is not None:
        middles = (edges[:-1] + edges[1:]) / 2
        colors[middles < threshold] = ORANGE
    with plotting() as plotter:
        figure, axis = plotter.subplots(figsize=(8.6, 2.9), layout="constrained")
        axis.bar(edges[:-1], bars.counts, np.diff(edges), align="edge", color=colors, linewidth=0)
        if threshold is not None:
            axis.axvline(threshold, color=INK, linewidth=1)
            axis.annotate(
                number_text(threshold),
                (threshold, 1),
                (0, 2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
        # Linear up to 10 pairs, so that empty bins and single pairs have their place.
        axis.set_yscale("symlog", linthresh=10)
        axis.set_ylim(bottom=0)
        axis.set_yticks(_log_ticks(int(bars.counts.max())))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.minorticks_off()
        axis.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
        axis.set(xlabel=f"{signal.long_name}, nats per token", ylabel="pairs (logarithmic)")
        return drawn(figure)


def _log_ticks(most: int) -> list[int]:
    """0, 10, 30, 100, 300, … up to the highest bar."""
    if most < 10:
        return [tick for tick in (0, 2, 5) if tick <= most] or [0]
    ticks = [0]
    for power in range(1, 12):
        ticks += [10**power, 3 * 10**power]
    return [tick for tick in ticks if tick <= most]


def _share_rows(scores: np.ndarray) -> list[_ShareRow]:
    rows = []
    for share in SHARES:
        count = round(share * len(scores))
        if count:
            rows.append(_ShareRow(share, count, lowest_of_best(scores, count)))
    return rows


def _sample_groups(
    model: Model,
    shards: Sequence[Sequence[str]],
    signal: Signal,
    table: PairTable,
    verdicts: np.ndarray,
) -> list[_SampleGroup]:
    """Pairs by their score, apart from those that a rule drops, which follow."""
    chosen = _places_at_quantiles(signal, table, verdicts) + _places_of_ruled_out(verdicts)
    places: set[int] = set()
    for group in chosen:
        places.update(group.places.tolist())
    scored = _score_some(model, shards, places)
    groups = []
    for group in chosen:
        samples = []
        for place in group.places.tolist():
            is_dropped = bool(verdicts[place] != Verdict.KEPT)
            samples.append(_shown_pair(scored[place], place, signal, is_dropped))
        groups.append(_SampleGroup(group.name, group.detail, samples))
    return groups


def _places_at_quantiles(
    signal: Signal, table: PairTable, verdicts: np.ndarray
) -> list[_SamplePlaces]:
    """A few pairs around each quantile of the scores, none of them twice."""
    shown = np.flatnonzero(~np.isin(verdicts, RULED_OUT))
    order = shown[np.argsort(table.scores[shown], kind="stable")]
    chosen = []
    first_free = 0  # of the order: what is before it has been shown
    for name, quantile in QUANTILES.items():
        score = float(np.quantile(table.scores[shown], quantile))
        middle = round(quantile * (len(order) - 1))
        first = max(0, min(middle - SAMPLES // 2, len(order) - SAMPLES))
        places = order[max(first, first_free) : first + SAMPLES]
        first_free = max(first_free, first + SAMPLES)
        if not len(places):
            continue
        chosen.append(_SamplePlaces(name, f"{signal.name} {_shown_score(score)}", places))
    return chosen


def _places_of_ruled_out(verdicts: np.ndarray) -> list[_SamplePlaces]:
    """Of what each rule drops a few pairs, from the first to the last."""
    chosen = []
    for verdict in RULED_OUT:
        dropped = np.flatnonzero(verdicts == verdict)
        if len(dropped):
            spread = np.linspace(0, len(dropped) - 1, min(SAMPLES, len(dropped)))
            places = dropped[spread.round().astype(int)]
            name = f"Dropped {IN_WORDS[verdict]}"
            chosen.append(_SamplePlaces(name, counted(len(dropped), "pair"), places))
    return chosen


def _score_some(
    model: Model, shards: Sequence[Sequence[str]], places: set[int]
) -> dict[int, ScoredPair]:
    """The pairs at some places of the corpus, from 0, word by word."""
    pairs = {}
    for place, pair in enumerate(read_corpora(shards, model.languages, Counter())):
        if place in places:
            pairs[place] = pair
            if len(pairs) == len(places):
                break
    scored = PairScorer(model).score(list(pairs.values()))
    return dict(zip(pairs, scored, strict=True))


def _shown_pair(pair: ScoredPair, place: int, signal: Signal, dropped: bool) -> _ShownPair:
    words = word_cells(pair).words
    source = pair.source
    if len(source) > LONGEST_SOURCE:
        source = source[:LONGEST_SOURCE] + " …"
    return _ShownPair(
        line=place + 1,
        source=source,
        words=words[:MOST_WORDS],
        more=len(words) > MOST_WORDS,
        score=signal.of(pair),
        dropped=dropped,
    )
