"""Which head a network needs for an objective: what turns hidden states into scores."""

from __future__ import annotations

from functools import partial

from cbmi.model.distribution import States, distribution_terms
from cbmi.model.fusion import fused_scores
from cbmi.model.head import Head, token_log_probabilities
from cbmi.model.r_drop import r_drop_head
from cbmi.objectives.base import Objective


def head_for(
    objective: Objective,
    smoothing: float,
    lm: States | None = None,
    teacher: States | None = None,
    chunk: int | None = None,
    r_drop: float = 0.0,
) -> Head:
    """What turns the translator's hidden states into the scores that the objective needs.

    `lm` and `teacher` give the whole distributions of those networks; `chunk`: tokens at a time.
    With `r_drop` the hidden states are those of two passes, and so much of their divergence is
    added.
    """
    head = _distribution_head(objective, smoothing, lm, teacher, chunk)
    if r_drop:
        return partial(r_drop_head, strength=r_drop, head=head, chunk=chunk)
    return head or partial(token_log_probabilities, chunk=chunk)


def _distribution_head(
    objective: Objective,
    smoothing: float,
    lm: States | None,
    teacher: States | None,
    chunk: int | None,
) -> Head | None:
    """The head of an objective that needs more than log p of the gold tokens."""
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
    return None
