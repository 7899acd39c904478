"""Which head a network needs for an objective: what turns hidden states into scores."""

from __future__ import annotations

from functools import partial

from cbmi.model.distribution import States, distribution_terms
from cbmi.model.fusion import fused_scores
from cbmi.model.head import Head, token_log_probabilities
from cbmi.objectives.base import Objective


def head_for(
    objective: Objective,
    smoothing: float,
    lm: States | None = None,
    teacher: States | None = None,
    chunk: int | None = None,
) -> Head:
    """What turns the translator's hidden states into the scores that the objective needs.

    `lm` and `teacher` give the whole distributions of those networks; `chunk`: tokens at a time.
    """
    if objective.fusion:
        if lm is None:
            raise ValueError("fusion needs the language model's states")
        return partial(fused_scores, lm=lm, fusion=objective.fusion, chunk=chunk)
    if "distribution" in objective.needs():
        return partial(
            distribution_terms,
            term=objective.term,
            smoothing=smoothing,
            lm=lm,
            teacher=teacher,
            chunk=chunk,
        )
    return partial(token_log_probabilities, chunk=chunk)
