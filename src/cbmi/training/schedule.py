"""The learning rate of a step: warm-up, then the run's schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cbmi.config import OptimizerSettings


@dataclass(frozen=True)
class Place:
    """Where a step lies; steps are counted from 1."""

    since_restart: int  # steps since the optimizer (re)started: the warm-up counts these
    of_stage: int  # steps since the stage began: the decay counts these
    stage_steps: int  # how many the stage has


def learning_rate(place: Place, settings: OptimizerSettings) -> float:
    """Linear warm-up from `initial_lr` to `peak_lr`, then what the schedule says.

    inverse-sqrt falls with the square root of the steps since the optimizer started. The other
    schedules hold the peak and fall to zero over the last `decay` of the stage: they would reach
    zero one step after its end.
    """
    step = place.since_restart
    if step < settings.warmup:
        rise = settings.peak_lr - settings.initial_lr
        return settings.initial_lr + rise * step / settings.warmup
    if settings.schedule == "inverse-sqrt":
        return float(settings.peak_lr * (max(settings.warmup, 1) / step) ** 0.5)
    progress = _progress(place, settings)
    if settings.schedule == "linear":
        share = 1 - progress
    elif settings.schedule == "cosine":
        share = (1 + math.cos(math.pi * progress)) / 2
    else:
        share = 1 - progress**0.5
    return settings.peak_lr * share


def _progress(place: Place, settings: OptimizerSettings) -> float:
    """How much of the decay is over: 0 before it begins, 1 one step after the stage."""
    end_of_warmup = place.of_stage - place.since_restart + settings.warmup
    begin = max(place.stage_steps * (1 - settings.decay_share()), end_of_warmup)
    length = place.stage_steps + 1 - begin
    return max(0.0, (place.of_stage - begin) / length)
