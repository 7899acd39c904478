"""Draws docs/architecture.png: from `cbmi train` to the weight of a token.

python docs/figures/architecture.py
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

GREY, BLUE, ORANGE, GREEN = "#f1f3f5", "#e4effa", "#fdf0df", "#e3f4ee"
INK, TEXT, EDGE, FAINT = "#1b2027", "#3c4550", "#5b6470", "#a9b1ba"
WIDTH, STEP = 18, 20.8  # of a box, and from one box to the next

SET_UP = [
    ("cbmi train", "cli/training.py"),
    ("train_run", "training/train.py"),
    ("LiveRun", "training/live_run.py"),
    ("Trainer", "training/trainer.py"),
    ("StageSession", "training/stage.py"),
]
DATA = [
    ("plan", "batching/plan.py"),
    ("BatchBuilder", "batching/builder.py"),
    ("MicroBatch", "batching/micro_batch.py"),
    ("Loader", "batching/loader.py"),
]
EVENTS = [
    ("score by LM", "log p_LM", ORANGE),
    ("score by NMT", "log p_NMT", ORANGE),
    ("weight", "w = w_t · w_s", GREEN),
    ("backward", "sum(w·ell) / tokens", ORANGE),
    ("update", "clip, Adam", ORANGE),
]
FILES = [
    ("model/language_model.py", "frozen, cached, or trained"),
    ("model/translator.py", "layers, attention, head"),
    ("objectives/cbmi.py", "c = log p_NMT − log p_LM"),
    ("objectives/loss.py", "the one formula"),
    ("training/learner.py", "each network on its own"),
]


def box(axes: Axes, x: float, y: float, height: float, title: str, text: str, color: str) -> None:
    style = "round,pad=0,rounding_size=0.8"
    axes.add_patch(FancyBboxPatch((x, y), WIDTH, height, boxstyle=style, fc=color, ec=EDGE, lw=0.9))
    center = x + WIDTH / 2
    middle = y + height / 2
    axes.text(
        center, middle + 1.1, title, ha="center", va="center", size=9.2, color=INK, weight="bold"
    )
    axes.text(center, middle - 1.35, text, ha="center", va="center", size=7.6, color=TEXT)


def file_box(axes: Axes, x: float, y: float, name: str, text: str) -> None:
    style = "round,pad=0,rounding_size=0.8"
    axes.add_patch(
        FancyBboxPatch((x, y), WIDTH, 6.2, boxstyle=style, fc="white", ec=FAINT, lw=0.8, ls="--")
    )
    center = x + WIDTH / 2
    axes.text(
        center, y + 4.2, name, ha="center", va="center", size=6.5, family="monospace", color=INK
    )
    axes.text(center, y + 1.8, text, ha="center", va="center", size=7.4, color=TEXT)


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], **style: str) -> None:
    properties = {"arrowstyle": "-|>", "color": EDGE, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=begin, arrowprops=properties | style)


def main() -> None:
    figure = Figure(figsize=(10.4, 4.8))
    axes = figure.subplots()
    axes.set_xlim(0, 104)
    axes.set_ylim(6, 55)
    axes.axis("off")
    for y, label in ((54.2, "set up"), (42.2, "data, a thread ahead")):
        axes.text(2, y, label, size=8, color=EDGE, style="italic")
    label = "one step (training/step.py), in the order of events"
    axes.text(2, 31.2, label, size=8, color=EDGE, style="italic")
    for number, (title, file) in enumerate(SET_UP):
        box(axes, 2 + number * STEP, 47.5, 5.6, title, file, GREY)
    for number, (title, file) in enumerate(DATA):
        box(axes, 2 + number * STEP, 34.5, 6.2, title, file, BLUE)
    for number, (title, text, color) in enumerate(EVENTS):
        box(axes, 2 + number * STEP, 19.5, 6.6, title, text, color)
    for number, (name, text) in enumerate(FILES):
        x = 2 + number * STEP
        file_box(axes, x, 8, name, text)
        axes.plot([x + WIDTH / 2] * 2, [14.2, 19.5], color=FAINT, lw=0.8, ls="--")
    for count, y in ((5, 50.3), (4, 37.6), (5, 22.8)):
        for number in range(1, count):
            end = 2 + number * STEP
            arrow(axes, (end - STEP + WIDTH, y), (end, y))
    axes.plot([94.2, 94.2], [47.5, 28.0], color=EDGE, lw=1.1)
    arrow(axes, (82.4, 37.6), (94.2, 37.6))
    bend = "angle,angleA=180,angleB=90,rad=0"
    arrow(axes, (94.2, 28.0), (11, 26.1), connectionstyle=bend)
    output = Path(__file__).parents[1] / "architecture.png"
    figure.savefig(output, dpi=130, bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    main()
