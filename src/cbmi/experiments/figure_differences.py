"""How far systems are from the baseline, as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cbmi.experiments.settings import ExperimentSettings
from cbmi.experiments.table import ResultsTable, ScoreCell
from cbmi.reporting.drawing import BLUE, GREY, INK, ORANGE, Plotter, drawable, panel_figure
from cbmi.reporting.tables import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAR = 8  # times as far from the baseline as usual: such a system would squeeze the others together
MOST_ROWS = 40  # of a table whose differences are drawn


class _Compared(NamedTuple):
    """A system that can be compared with the baseline on one test set."""

    label: str
    cell: ScoreCell
    difference: float


def difference_figure(
    plotter: Plotter, experiment: ExperimentSettings, tables: Sequence[ResultsTable]
) -> Figure | None:
    """How far every system is from the baseline, one panel per column and block of a table.

    Diamonds are means, dots are seeds, each against the baseline of its own seed.
    """
    if not tables:
        return None
    (table,) = tables
    blocks = dict.fromkeys(row.block for row in table.rows)  # each once
    panels: list[tuple[str, list[_Compared]]] = []
    for column, title in enumerate(table.columns):
        for block in blocks:
            compared = _compared(table, column, block)
            if compared:
                panels.append((title + (f" ({block})" if block else ""), compared))
    if not panels or len(table.rows) > MOST_ROWS or experiment.baseline is None:
        return None
    height = 0.9 + 0.3 * max(len(compared) for _, compared in panels)
    figure, axes = panel_figure(plotter, len(panels), height, 3)
    baseline = drawable(experiment.label(experiment.baseline))
    limits = _common_limits([compared for _, compared in panels])
    labels_before: list[str] = []
    for axis, (title, compared) in zip(axes, panels, strict=True):
        from_below = compared[::-1]
        _draw_differences(axis, from_below, limits)
        labels = [drawable(one.label) for one in from_below]
        # Names that stand beside the panel on the left are not repeated.
        place = axis.get_subplotspec()
        repeated = labels == labels_before and place is not None and not place.is_first_col()
        axis.set_yticks(range(len(labels)), [""] * len(labels) if repeated else labels)
        labels_before = labels
        axis.set_ylim(-0.6, len(labels) - 0.4)
        axis.grid(axis="y", visible=False)
        axis.set(title=drawable(title), xlabel=f"{table.metric}, difference from {baseline}")
    return figure


def _compared(table: ResultsTable, column: int, block: str) -> list[_Compared]:
    found = []
    for row in table.rows:
        cell = row.cells[column]
        if row.block == block and cell is not None and cell.difference is not None:
            found.append(_Compared(row.label, cell, cell.difference))
    return found


def _draw_differences(
    axis: Axes, compared: Sequence[_Compared], limits: tuple[float, float]
) -> None:
    low, high = limits
    axis.set_xlim(limits)
    for place, one in enumerate(compared):
        color = BLUE if one.cell.ahead else ORANGE
        if round(one.difference, 2) == 0:
            color = GREY  # neither ahead nor behind
        if one.difference < low:
            _draw_far(axis, low, place, "<", one.difference, color)
        elif one.difference > high:
            _draw_far(axis, high, place, ">", one.difference, color)
        else:
            points = list(one.cell.differences.values())
            if len(points) > 1:
                axis.plot(points, [place] * len(points), "o", color=GREY, markersize=4, alpha=0.8)
            axis.plot(one.difference, place, "D", color=color, markersize=6)
    axis.axvline(0, color=INK, linewidth=1)


def _draw_far(
    axis: Axes, edge: float, place: int, marker: str, difference: float, color: str
) -> None:
    """An arrow at the edge of the panel, with the number beside it."""
    axis.plot(edge, place, marker, color=color, markersize=7)
    at_left = marker == "<"
    axis.annotate(
        signed(difference),
        (edge, place),
        xytext=(8 if at_left else -8, 0),
        textcoords="offset points",
        ha="left" if at_left else "right",
        va="center",
        fontsize=8,
    )


def _common_limits(panels: Sequence[Sequence[_Compared]]) -> tuple[float, float]:
    """All panels have one scale."""
    limits = [_limits([one.cell for one in compared]) for compared in panels]
    low = min(low for low, _ in limits)
    high = max(high for _, high in limits)
    if low == high:
        return low - 1, high + 1
    # What is far off in its own panel may be inside now, with all of its seeds.
    seeds = [low, high]
    for compared in panels:
        for one in compared:
            if low <= one.difference <= high:
                seeds += one.cell.differences.values()
    return min(seeds), max(seeds)


def _limits(cells: Sequence[ScoreCell]) -> tuple[float, float]:
    """The range that is drawn: all points except those of systems much further off than usual."""
    compared = [(cell, cell.difference) for cell in cells if cell.difference is not None]
    far = FAR * float(np.median([abs(difference) for _, difference in compared]))
    points = [0.0]
    for cell, difference in compared:
        if abs(difference) <= far:
            points.append(difference)
            points += cell.differences.values()
    room = 0.08 * (max(points) - min(points))
    return min(points) - room, max(points) + room
