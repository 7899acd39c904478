"""Figures of CBMI for papers: one sentence, distributions, CBMI by frequency, and its course in training."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cbmi.analysis.drawing import BLUE, FAINT, GREY, INK, ORANGE, Picture, drawable, drawn, plotting
from cbmi.analysis.heatmap import FACTORS, level
from cbmi.analysis.words import sums, words
from cbmi.data.prepare import open_corpus
from cbmi.data.statistics import counts_of_pieces
from cbmi.errors import UserError
from cbmi.progress import say
from cbmi.training.run import Run
from cbmi.training.trained import Trained

Record = dict[str, Any]
# Background and text of the heat map's levels, as on the page in its light scheme.
COLORS = {
    **dict(zip(("p1", "p2", "p3", "p4"), ("#e4effa", "#bcd9f2", "#7db5e6", "#1c5ea9"), strict=True)),
    **dict(zip(("n1", "n2", "n3", "n4"), ("#fdf0df", "#fad4a3", "#f0a050", "#a34a05"), strict=True)),
    "z": "#ffffff",
}
DARK = ("p4", "n4")  # white text
LINE_WIDTH, LINE_HEIGHT = 7.0, 0.42  # inches
MOST_WORDS, LONGEST_WORD, LONGEST_SOURCE = 80, 40, 600  # what is longer is cut


def make_figures(model: Trained, records: Sequence[Record], chosen: int) -> dict[str, Picture]:
    """All figures that there is something to draw of, by name; one shows the pair `chosen`, from 1."""
    with plotting() as pyplot:
        figures = {f"sentence-{chosen}": sentence(pyplot, records[chosen - 1])}
        figures["distribution"] = distribution(pyplot, records)
        figures["frequency"] = by_frequency(pyplot, records, _counts(model))
        figures["course"] = course(pyplot, _logged(model.run))
        return {name: drawn(figure) for name, figure in figures.items() if figure is not None}


def sentence(pyplot: Any, record: Record) -> Any:
    """The words of a translation with their CBMI below, coloured as on the page; the source above."""
    joined = words(record["pieces"])
    values = sums(joined, record["cbmi"])
    leftwards = _right_to_left(word.text for word in joined)
    figure = pyplot.figure(figsize=(LINE_WIDTH, 4))
    renderer = figure.canvas.get_renderer()

    def width(text: str, size: float) -> float:
        shown = figure.text(0, 0, drawable(text), fontsize=size)
        inches = shown.get_window_extent(renderer).width / figure.dpi
        shown.remove()
        return inches

    boxes, x, line = [], 0.0, 0
    for word, value in zip(joined[:MOST_WORDS], values, strict=False):
        text = "end" if word.control else _cut(word.text, LONGEST_WORD) or "␣"
        wide = max(width(text, 11), width(_signed(value), 7)) + 0.16
        if x and x + wide > LINE_WIDTH:
            x, line = 0.0, line + 1
        boxes.append((x, line, wide, text, value))
        x += wide + 0.05
    if cut := len(joined) > MOST_WORDS:
        line += 1
    source = _wrapped(_cut(record["source"], LONGEST_SOURCE), LINE_WIDTH, lambda text: width(text, 10))
    height = 0.24 * len(source) + 0.12 + 1.45 * LINE_HEIGHT * (line + 1) + 0.5
    figure.set_size_inches(LINE_WIDTH, height)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, LINE_WIDTH), ylim=(height, 0))
    axis.axis("off")
    for number, text in enumerate(source):
        axis.text(0, 0.2 + 0.24 * number, drawable(text), fontsize=10, color="#5b6470")
    top = 0.24 * len(source) + 0.22
    if cut:
        axis.text(LINE_WIDTH if leftwards else 0, top + 1.45 * LINE_HEIGHT * line + 0.15, "…", fontsize=11)
    for x, line, wide, text, value in boxes:
        own, y = level(value), top + 1.45 * LINE_HEIGHT * line
        x = LINE_WIDTH - x - wide if leftwards else x
        box = pyplot.Rectangle((x, y), wide, 0.3, color=COLORS[own], linewidth=0)
        axis.add_patch(box)
        white = "#ffffff" if own in DARK else INK
        axis.text(x + wide / 2, y + 0.15, drawable(text), fontsize=11, color=white, ha="center", va="center")
        axis.text(x + wide / 2, y + 0.4, _signed(value), fontsize=7, color="#5b6470", ha="center", va="center")
    _key(pyplot, axis, height - 0.2)
    return figure


def _key(pyplot: Any, axis: Any, y: float) -> None:
    """What the colours mean: how many times as likely the source makes a word."""
    steps = [f"n{n}" for n in range(len(FACTORS), 0, -1)] + ["z"] + [f"p{n}" for n in range(1, len(FACTORS) + 1)]
    for number, step in enumerate(steps):
        axis.add_patch(pyplot.Rectangle((0.42 * number, y - 0.14), 0.42, 0.09, color=COLORS[step], linewidth=0))
    axis.plot([0, 0.42 * len(steps)], [y - 0.04] * 2, color=FAINT, linewidth=0.8)
    marks = [f"÷{f}" for f in reversed(FACTORS)] + [f"×{f}" for f in FACTORS]
    for number, mark in enumerate(marks, start=1):
        axis.text(0.42 * number, y + 0.05, mark, fontsize=6, color="#5b6470", ha="center")
    note = "how many times as likely the source makes the word (CBMI in nats below it)"
    axis.text(0.42 * len(steps) + 0.15, y - 0.06, note, fontsize=7, color="#5b6470", va="center")


def distribution(pyplot: Any, records: Sequence[Record]) -> Any:
    """How CBMI is spread over tokens and over sentences."""
    tokens = np.array([value for record in records for value in record["cbmi"]])
    sentences = np.array([record["sentence_cbmi"] for record in records])
    figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 2.9), layout="constrained")
    for axis, values, name in zip(axes, (tokens, sentences), ("token", "sentence"), strict=True):
        low, high = np.percentile(values, [0.1, 99.9])
        bins = np.linspace(low, high if high > low else low + 1, min(60, max(8, len(values) // 10)))
        axis.hist(np.clip(values, bins[0], bins[-1]), bins, weights=np.full(len(values), 1 / len(values)), color=BLUE)
        axis.axvline(values.mean(), color=ORANGE, label=f"mean {values.mean():.2f}, std {values.std():.2f}")
        axis.set(xlabel=f"{name} CBMI, nats", ylabel=f"share of the {len(values):,} {name}s")
        axis.legend(fontsize=8)
    return figure


def by_frequency(pyplot: Any, records: Sequence[Record], counts: dict[str, int] | None) -> Any:
    """CBMI of tokens by how often they occur in training: median, quartiles, and the number of tokens."""
    if counts is None:
        return None
    bins: dict[int, list[float]] = {}
    for record in records:
        for piece, value in zip(record["pieces"], record["cbmi"], strict=True):
            if count := counts.get(piece):
                bins.setdefault(math.floor(2 * math.log10(count)), []).append(value)
    places = sorted(place for place, values in bins.items() if len(values) >= 5)
    if len(places) < 2:
        return None
    figure, axis = pyplot.subplots(figsize=(5.4, 3.1), layout="constrained")
    middles = [10 ** ((place + 0.5) / 2) for place in places]
    low, middle, high = (np.array([np.percentile(bins[place], q) for place in places]) for q in (25, 50, 75))
    axis.fill_between(middles, low, high, color=FAINT, label="quartiles")
    axis.plot(middles, middle, marker="o", color=BLUE, label="median")
    for x, y, place in zip(middles, high, places, strict=True):
        axis.annotate(
            f"{len(bins[place]):,}", (x, y), (0, 3), textcoords="offset points", fontsize=7, color=GREY, ha="center"
        )
    axis.set(xscale="log", xlabel="occurrences of the token in training (above: tokens shown)", ylabel="CBMI, nats")
    axis.legend(fontsize=8)
    return figure


def course(pyplot: Any, log: Sequence[Record]) -> Any:
    """Mean and spread of token CBMI as training logged them, stage by stage."""
    lines = [line for line in log if "cbmi_mean" in line]
    if len(lines) < 2:
        return None
    steps, mean, std = (np.array([line[key] for line in lines]) for key in ("step", "cbmi_mean", "cbmi_std"))
    figure, axis = pyplot.subplots(figsize=(5.8, 3.1), layout="constrained")
    axis.fill_between(steps, mean - std, mean + std, color=FAINT, label="± standard deviation")
    axis.plot(steps, mean, color=BLUE, label="mean over the batch's tokens")
    begins: dict[str, int] = {}  # the step after which each stage begins: the last that was logged before
    last = 0
    for line in log:
        begins.setdefault(line["stage"], last)
        last = line["step"]
    for stage in dict.fromkeys(line["stage"] for line in lines):
        axis.axvline(begins[stage], color=GREY, linewidth=1, linestyle="--")
        axis.annotate(
            stage,
            (begins[stage], 1),
            (3, -9),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
            color="#5b6470",
        )
    axis.set(xlabel="steps", ylabel="token CBMI, nats")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def _counts(model: Trained) -> dict[str, int] | None:
    """How often each piece occurs in the training corpus; None where the run no longer has it."""
    try:
        corpus = open_corpus(model.run.path, "train")
    except UserError:
        say("There is no figure of CBMI by frequency: the run's training corpus (RUN/data/train) is gone.")
        return None
    counts = counts_of_pieces(corpus, len(model.target))
    return dict(zip(model.target.pieces(range(len(counts))), counts.tolist(), strict=True))


def _logged(run: Run) -> list[Record]:
    if not run.log.exists():
        return []
    lines = run.log.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def _signed(value: float) -> str:
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def _wrapped(text: str, room: float, width: Any) -> list[str]:
    """Lines that fit, broken between words, or anywhere in text without spaces."""
    lines = [""]
    for unit in re.findall(r"\S{1,20}\s*", text):
        if lines[-1] and width((lines[-1] + unit).rstrip()) > room:
            lines.append("")
        lines[-1] += unit
    return [line.rstrip() for line in lines]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _right_to_left(texts: Iterable[str]) -> bool:
    """Whether the first letter that has a direction is of a script written leftwards."""
    directions = (unicodedata.bidirectional(letter) for text in texts for letter in text)
    return next((direction for direction in directions if direction in ("L", "R", "AL")), "L") != "L"
