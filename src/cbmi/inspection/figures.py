"""Figures of CBMI for papers: one sentence, distributions, CBMI by frequency and over training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cbmi.data.prepare import open_corpus
from cbmi.data.statistics import counts_of_pieces
from cbmi.inference.model import TrainedModel
from cbmi.inference.scoring import ScoredPair
from cbmi.inspection.sentence_figure import MUTED, sentence_figure
from cbmi.progress import say
from cbmi.reporting.drawing import BLUE, FAINT, GREY, ORANGE, Picture, Plotter, drawn, plotting
from cbmi.training.records import read_log
from cbmi.training.run import RunDirectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 5  # tokens of a bin of frequency that is drawn


class _LogRecord(NamedTuple):
    """What a line of log.jsonl says of CBMI, in nats; None if it says nothing."""

    step: int
    stage: str
    mean: float | None
    std: float | None


def cbmi_figures(
    model: TrainedModel, pairs: Sequence[ScoredPair], chosen: int
) -> dict[str, Picture]:
    """The figures by name, without those that there is nothing to draw of.

    One of them shows a single pair; `chosen` is its number, from 1.
    """
    with plotting() as plotter:
        figures: dict[str, Figure | None] = {
            f"sentence-{chosen}": sentence_figure(plotter, pairs[chosen - 1]),
            "distribution": _distribution_figure(plotter, pairs),
            "frequency": _frequency_figure(plotter, pairs, _training_counts(model)),
            "course": _course_figure(plotter, _read_log(model.run)),
        }
        pictures = {}
        for name, figure in figures.items():
            if figure is not None:
                pictures[name] = drawn(figure)
    return pictures


def _distribution_figure(plotter: Plotter, pairs: Sequence[ScoredPair]) -> Figure:
    """How CBMI is spread over tokens and over sentences."""
    figure, axes = plotter.subplots(1, 2, figsize=(7.6, 2.9), layout="constrained")
    _draw_histogram(axes[0], np.concatenate([pair.cbmi for pair in pairs]), "token")
    _draw_histogram(axes[1], np.array([pair.sentence_cbmi for pair in pairs]), "sentence")
    return figure


def _draw_histogram(axis: Axes, values: np.ndarray, name: str) -> None:
    low, high = np.percentile(values, [0.1, 99.9])
    if not high > low:
        high = low + 1
    edges = np.linspace(low, high, min(60, max(8, len(values) // 10)))
    # The first and the last bar hold what lies beyond them; weights turn counts into shares.
    axis.hist(
        np.clip(values, edges[0], edges[-1]),
        edges.tolist(),
        weights=np.full(len(values), 1 / len(values)),
        color=BLUE,
    )
    label = f"mean {values.mean():.2f}, std {values.std():.2f}"
    axis.axvline(float(values.mean()), color=ORANGE, label=label)
    axis.set(xlabel=f"{name} CBMI, nats", ylabel=f"share of the {len(values):,} {name}s")
    axis.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1))


def _frequency_figure(
    plotter: Plotter, pairs: Sequence[ScoredPair], counts: Mapping[str, int] | None
) -> Figure | None:
    """CBMI of tokens by how often they occur in training: median, quartiles, number of tokens."""
    if counts is None:
        return None
    bins = _binned_by_frequency(pairs, counts)
    if len(bins) < 2:
        return None
    # The middle of a bin, as a number of occurrences.
    middles = [10 ** ((place + 0.5) / 2) for place in bins]
    quartiles = np.array([np.percentile(values, [25, 50, 75]) for values in bins.values()])
    low = quartiles[:, 0]
    median = quartiles[:, 1]
    high = quartiles[:, 2]
    figure, axis = plotter.subplots(figsize=(5.4, 3.1), layout="constrained")
    axis.fill_between(middles, low, high, color=FAINT, label="quartiles")
    axis.plot(middles, median, marker="o", color=BLUE, label="median")
    for x, y, values in zip(middles, high, bins.values(), strict=True):
        axis.annotate(
            f"{len(values):,}",
            (x, y),
            (0, 3),
            textcoords="offset points",
            fontsize=7,
            color=GREY,
            ha="center",
        )
    axis.set(
        xscale="log",
        xlabel="occurrences of the token in training (above: tokens shown)",
        ylabel="CBMI, nats",
    )
    axis.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def _binned_by_frequency(
    pairs: Sequence[ScoredPair], counts: Mapping[str, int]
) -> dict[int, list[float]]:
    """CBMI of tokens by half decades of their count in training, the rarest first.

    Bin n holds counts from 10^(n/2) to 10^((n+1)/2). Bins of fewer than `FEWEST` tokens are left
    out.
    """
    bins: dict[int, list[float]] = {}
    for pair in pairs:
        for piece, value in zip(pair.tokens, pair.cbmi.tolist(), strict=True):
            count = counts.get(piece, 0)
            if count:
                place = math.floor(2 * math.log10(count))
                bins.setdefault(place, []).append(value)
    return {place: bins[place] for place in sorted(bins) if len(bins[place]) >= FEWEST}


def _course_figure(plotter: Plotter, log: Sequence[_LogRecord]) -> Figure | None:
    """Mean and spread of token CBMI as training logged them, stage by stage."""
    steps = []
    means = []
    stds = []
    stages = []
    for record in log:
        if record.mean is not None and record.std is not None:
            steps.append(record.step)
            means.append(record.mean)
            stds.append(record.std)
            if record.stage not in stages:
                stages.append(record.stage)
    if len(steps) < 2:
        return None
    mean = np.array(means)
    std = np.array(stds)
    figure, axis = plotter.subplots(figsize=(5.8, 3.1), layout="constrained")
    axis.fill_between(steps, mean - std, mean + std, color=FAINT, label="± standard deviation")
    axis.plot(steps, mean, color=BLUE, label="mean over the batch's tokens")
    begins = _stage_begins(log)
    for stage in stages:
        axis.axvline(begins[stage], color=GREY, linewidth=1, linestyle="--")
        axis.annotate(
            stage,
            (begins[stage], 1),
            (3, -9),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
            color=MUTED,
        )
    axis.set(xlabel="steps", ylabel="token CBMI, nats")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def _stage_begins(log: Sequence[_LogRecord]) -> dict[str, int]:
    """The step after which each stage begins: the last one logged before it."""
    begins: dict[str, int] = {}
    last = 0
    for record in log:
        begins.setdefault(record.stage, last)
        last = record.step
    return begins


def _training_counts(model: TrainedModel) -> dict[str, int] | None:
    """How often each piece occurs in the training corpus; None if the run no longer has it."""
    if not (model.run.data / "train").exists():
        say(
            "There is no figure of CBMI by frequency: the run's training corpus (RUN/data/train) "
            "is gone."
        )
        return None
    corpus = open_corpus(model.run.path, "train")
    counts = counts_of_pieces(corpus, len(model.target))
    pieces = model.target.pieces(range(len(counts)))
    return dict(zip(pieces, counts.tolist(), strict=True))


def _read_log(run: RunDirectory) -> list[_LogRecord]:
    """What training logged, without the few steps before an interruption: they would be a kink."""
    if not run.log.exists():
        return []
    every = run.config().log.every
    logged: list[Any] = list(read_log(run.log))
    regular = [values for values in logged if values["step"] % every == 0]
    records = []
    for values in regular if len(regular) > 1 else logged:
        records.append(
            _LogRecord(
                values["step"], values["stage"], values.get("cbmi_mean"), values.get("cbmi_std")
            )
        )
    return records
