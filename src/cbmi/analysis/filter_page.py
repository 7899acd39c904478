"""The page on which one chooses a threshold: a histogram of the scores, what each share keeps, and samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbmi.analysis.drawing import BLUE, GREY, ORANGE, data_address, drawn, plotting
from cbmi.analysis.filter_rules import Signal, score_text
from cbmi.analysis.heatmap import FACTORS, cells
from cbmi.analysis.pages import render_page
from cbmi.files import write_atomically

_BETWEEN = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
QUANTILES = {"The lowest": 0.0} | {f"At {100 * share:g} %": share for share in _BETWEEN} | {"The highest": 1.0}
SHARES = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
BINS = 80
LONGEST_SOURCE, MOST_WORDS = 1000, 200  # of a sample: characters, words


@dataclass(frozen=True)
class Sample:
    line: int  # from 1
    record: dict[str, Any]
    dropped: bool


@dataclass(frozen=True)
class Group:
    name: str
    detail: str
    samples: list[Sample]


@dataclass(frozen=True)
class View:
    """What the page shows."""

    signal: Signal
    notes: list[str]
    scores: np.ndarray  # of the pairs about which the score decides
    others: int  # pairs about which it does not
    threshold: float | None
    groups: list[Group]


def write_filter_page(path: Path, view: View) -> None:
    """PATH and beside it its histogram as CSV, SVG and PNG."""
    counts, edges = histogram(view.scores)
    picture = _histogram_figure(counts, edges, view)
    groups = [
        {
            "name": group.name,
            "detail": group.detail,
            "pairs": [_shown(sample, view.signal) for sample in group.samples],
        }
        for group in view.groups
    ]
    shown = {
        "signal": view.signal,
        "notes": view.notes,
        "pairs": len(view.scores),
        "others": view.others,
        "histogram": data_address(picture[0]),
        "table": [(share, *_at(view.scores, share)) for share in SHARES if _at(view.scores, share)[0]],
        "groups": groups,
        "factors": FACTORS,
    }
    rows = [f"{low:.6f},{high:.6f},{count}\n" for low, high, count in zip(edges, edges[1:], counts, strict=False)]
    stem = path.with_suffix("")
    write_atomically(Path(f"{stem}.histogram.csv"), "from,to,pairs\n" + "".join(rows))
    for end, content in zip(("svg", "png"), picture, strict=True):
        write_atomically(Path(f"{stem}.histogram.{end}"), content)
    write_atomically(path, render_page("cbmi.analysis", "filter.html.jinja", shown, number=score_text))


def histogram(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts and edges of the bins; what lies far outside is in the first and last."""
    low, high = np.quantile(scores, [0.0005, 0.9995])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    counts, _ = np.histogram(np.clip(scores, low, high), edges)
    edges[0], edges[-1] = min(edges[0], scores.min()), max(edges[-1], scores.max())
    return counts, edges


def _histogram_figure(counts: np.ndarray, edges: np.ndarray, view: View) -> tuple[bytes, bytes]:
    threshold = view.threshold
    inner = np.concatenate([edges[1:2] - (edges[2] - edges[1]), edges[1:-1], edges[-2:-1] + (edges[2] - edges[1])])
    with plotting() as pyplot:
        figure, axis = pyplot.subplots(figsize=(8.6, 2.9), layout="constrained")
        dropped = (inner[:-1] + inner[1:]) / 2 < (threshold if threshold is not None else -np.inf)
        colors = np.where(dropped, ORANGE, BLUE)
        axis.bar(inner[:-1], np.maximum(counts, 0), np.diff(inner), align="edge", color=colors, linewidth=0)
        if threshold is not None:
            axis.axvline(threshold, color="#1b2027", linewidth=1)
            axis.annotate(
                f"{threshold:.2f}",
                (threshold, 1),
                (0, 2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
        axis.set_yscale("symlog", linthresh=10)
        axis.set_ylim(bottom=0)
        axis.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
        axis.set(xlabel=f"{view.signal.long_name}, nats per token", ylabel="pairs (logarithmic)")
        return drawn(figure)


def _at(scores: np.ndarray, share: float) -> tuple[int, float]:
    """How many pairs a share is, and the lowest score among as many of the best."""
    count = round(share * len(scores))
    return count, float(np.partition(scores, len(scores) - count)[len(scores) - count]) if count else 0.0


def _shown(sample: Sample, signal: Signal) -> dict[str, Any]:
    words, _ = cells(sample.record)
    source = sample.record["source"]
    return {
        "line": sample.line,
        "source": source if len(source) <= LONGEST_SOURCE else source[:LONGEST_SOURCE] + " …",
        "words": words[:MOST_WORDS],
        "more": len(words) > MOST_WORDS,
        "score": signal.of(sample.record),
        "dropped": sample.dropped,
    }
