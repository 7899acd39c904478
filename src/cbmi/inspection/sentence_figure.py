"""The figure of one sentence: its words coloured by CBMI, as on the page."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from cbmi.data.words import Word, sums
from cbmi.inference.scoring import ScoredPair
from cbmi.reporting.cells import FACTORS, level
from cbmi.reporting.drawing import FAINT, INK, Plotter, drawable
from cbmi.reporting.tables import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

# Backgrounds of the heat map's levels, as in the light scheme of base.css.jinja.
COLORS = {
    "n4": "#a34a05",
    "n3": "#f0a050",
    "n2": "#fad4a3",
    "n1": "#fdf0df",
    "z": "#ffffff",
    "p1": "#e4effa",
    "p2": "#bcd9f2",
    "p3": "#7db5e6",
    "p4": "#1c5ea9",
}
DARK = ("p4", "n4")  # levels with white text
MUTED = "#5b6470"

# What is longer is cut.
MOST_WORDS = 80
LONGEST_WORD = 40  # characters
LONGEST_SOURCE = 600

# Sizes in inches.
LINE_WIDTH = 7.0
LINE_HEIGHT = 1.45 * 0.42
SOURCE_HEIGHT = 0.24
BOX_HEIGHT = 0.3
KEY_WIDTH = 0.42  # of one colour


class _Box(NamedTuple):
    """A word and its place: inches from the left, and the line from 0."""

    left: float
    line: int
    width: float
    text: str
    cbmi: float


def sentence_figure(plotter: Plotter, pair: ScoredPair) -> Figure:
    """The source, and below it the words of the target with their CBMI, in nats."""
    words = pair.words
    figure = plotter.figure(figsize=(LINE_WIDTH, 4))
    width = _ruler(figure)
    boxes, lines = _arranged(words, sums(words, pair.cbmi.tolist()), width)
    source = _wrapped(_cut(pair.source, LONGEST_SOURCE), lambda text: width(text, 10))
    is_cut = len(words) > MOST_WORDS
    if is_cut:
        lines += 1  # for the ellipsis
    height = SOURCE_HEIGHT * len(source) + 0.12 + LINE_HEIGHT * lines + 0.5
    figure.set_size_inches(LINE_WIDTH, height)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, LINE_WIDTH), ylim=(height, 0))
    axis.axis("off")
    for number, text in enumerate(source):
        axis.text(0, 0.2 + SOURCE_HEIGHT * number, drawable(text), fontsize=10, color=MUTED)
    top = SOURCE_HEIGHT * len(source) + 0.22
    leftwards = _written_leftwards(words)
    if is_cut:
        begin = LINE_WIDTH if leftwards else 0
        axis.text(begin, top + LINE_HEIGHT * (lines - 1) + 0.15, "…", fontsize=11)
    for box in boxes:
        left = LINE_WIDTH - box.left - box.width if leftwards else box.left
        _draw_word(plotter, axis, box, left, top + LINE_HEIGHT * box.line)
    _draw_key(plotter, axis, height - 0.2)
    return figure


def _ruler(figure: Figure) -> Callable[[str, float], float]:
    """A function that measures a text at a font size: its width in inches."""
    # A Plotter's figures have the Agg canvas; matplotlib's types promise only the base class.
    canvas = cast("FigureCanvasAgg", figure.canvas)
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]

    def width(text: str, size: float) -> float:
        shown = figure.text(0, 0, drawable(text), fontsize=size)
        pixels = shown.get_window_extent(renderer).width
        shown.remove()
        return float(pixels / figure.dpi)

    return width


def _arranged(
    words: Sequence[Word], values: Sequence[float], width: Callable[[str, float], float]
) -> tuple[list[_Box], int]:
    """The words in lines that fit, and the number of lines."""
    boxes: list[_Box] = []
    left = 0.0
    line = 0
    for word, value in zip(words[:MOST_WORDS], values[:MOST_WORDS], strict=True):
        text = "end" if word.control else _cut(word.text, LONGEST_WORD) or "␣"
        wide = max(width(text, 11), width(signed(value, 1), 7)) + 0.16
        if left and left + wide > LINE_WIDTH:
            left = 0.0
            line += 1
        boxes.append(_Box(left, line, wide, text, value))
        left += wide + 0.05
    return boxes, line + 1


def _draw_word(plotter: Plotter, axis: Axes, box: _Box, left: float, top: float) -> None:
    own = level(box.cbmi)
    corner = (left, top)
    axis.add_patch(plotter.Rectangle(corner, box.width, BOX_HEIGHT, color=COLORS[own], linewidth=0))
    middle = left + box.width / 2
    axis.text(
        middle,
        top + 0.15,
        drawable(box.text),
        fontsize=11,
        color="#ffffff" if own in DARK else INK,
        ha="center",
        va="center",
    )
    axis.text(
        middle,
        top + 0.4,
        signed(box.cbmi, 1),
        fontsize=7,
        color=MUTED,
        ha="center",
        va="center",
    )


def _draw_key(plotter: Plotter, axis: Axes, y: float) -> None:
    """What the colours mean: how many times as likely the source makes a word."""
    for number, color in enumerate(COLORS.values()):
        corner = (KEY_WIDTH * number, y - 0.14)
        axis.add_patch(plotter.Rectangle(corner, KEY_WIDTH, 0.09, color=color, linewidth=0))
    end = KEY_WIDTH * len(COLORS)
    axis.plot([0, end], [y - 0.04, y - 0.04], color=FAINT, linewidth=0.8)
    marks = [f"÷{factor}" for factor in reversed(FACTORS)]
    marks += [f"×{factor}" for factor in FACTORS]
    for number, mark in enumerate(marks, start=1):
        axis.text(KEY_WIDTH * number, y + 0.05, mark, fontsize=6, color=MUTED, ha="center")
    note = "how many times as likely the source makes the word (CBMI in nats below it)"
    axis.text(end + 0.15, y - 0.06, note, fontsize=7, color=MUTED, va="center")


def _wrapped(text: str, width: Callable[[str], float]) -> list[str]:
    """Lines that fit, broken between words, or anywhere in text without spaces."""
    lines = [""]
    for unit in re.findall(r"\S{1,20}\s*", text):
        if lines[-1] and width((lines[-1] + unit).rstrip()) > LINE_WIDTH:
            lines.append("")
        lines[-1] += unit
    return [line.rstrip() for line in lines]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _written_leftwards(words: Sequence[Word]) -> bool:
    """Whether the first letter that has a direction is of a script written from right to left."""
    for word in words:
        for letter in word.text:
            direction = unicodedata.bidirectional(letter)
            if direction in ("L", "R", "AL"):
                return direction != "L"
    return False
