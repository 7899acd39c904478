"""Prior distributions: cross-entropy plus a term that pulls the model's distribution to another
one.

    q_lm    the language model's
    q_tm    that of the translator as it was when the stage began
    q_cbmi  softmax(log p_tm - log p_lm): what only the source tells

All priors are constants to the gradient. c = log p(y_j) - log p_lm(y_j) is the token's CBMI, as in
`cbmi`.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cbmi.model.distribution import Distributions
from cbmi.objectives.base import CBMI_PAPER, Need, Objective, required
from cbmi.schema import Flag, Interval, NonNegativeFloat, PositiveFloat

LM_FLOOR = math.log(1e-9)  # of log p_lm in q_cbmi
Prior = Literal["lm", "tm", "cbmi"]


def log_prior(name: Prior, chunk: Distributions) -> Tensor:
    """log q (tokens, vocabulary), a constant."""
    if name == "lm":
        return required(chunk.lm, "lm")
    teacher = required(chunk.teacher, "teacher")
    if name == "tm":
        return teacher
    lm = required(chunk.lm, "lm").clamp(min=LM_FLOOR)
    return torch.log_softmax(teacher - lm, dim=1)


def cross_entropy(log_q: Tensor, chunk: Distributions, gold_only: bool) -> Tensor:
    """CE(q, p) (tokens,); with `gold_only` q(y_j)·ell_j."""
    if gold_only:
        return chunk.of_gold(log_q).exp() * chunk.cross_entropy()
    return -(log_q.exp() * chunk.log_p).sum(1)


class LanguageModelPrior(Objective):
    """The language model's distribution, softened, is distilled into the translator's."""

    equation: ClassVar[str] = (
        "ell + strength·temperature²·KL(p_lm^(1/temperature) ‖ p^(1/temperature))"
    )
    paper: ClassVar[str] = (
        "Baziotis et al., 2020: Language model prior for low-resource neural machine translation"
    )

    strength: NonNegativeFloat = 0.1  # λ
    temperature: PositiveFloat = 2.0  # τ: both distributions are softmaxes of logits divided by it

    def needs(self) -> frozenset[Need]:
        return frozenset({"lm", "distribution"})

    def term(self, chunk: Distributions) -> Tensor:
        lm = required(chunk.lm, "lm")
        log_q = torch.log_softmax(lm / self.temperature, dim=1)
        log_p = torch.log_softmax(chunk.logits / self.temperature, dim=1)
        divergence = (log_q.exp() * (log_q - log_p)).sum(1)
        return self.strength * self.temperature**2 * divergence


class _Prior(Objective):
    paper: ClassVar[str] = CBMI_PAPER

    strength: NonNegativeFloat = 0.1  # λ
    gold_only: Flag = False  # the paper's formula read literally: w = 1 + strength·q(y_j)


class _SinglePrior(_Prior):
    prior: ClassVar[Prior]
    # Only tokens whose CBMI is above the first bound and not above the second.
    interval: Interval | None = None

    def term(self, chunk: Distributions) -> Tensor:
        log_q = log_prior(self.prior, chunk)
        loss = self.strength * cross_entropy(log_q, chunk, self.gold_only)
        if self.interval is None:
            return loss
        low, high = self.interval
        c = chunk.cbmi()
        return torch.where((c > low) & (c <= high), loss, 0.0)


class PriorLanguageModel(_SinglePrior):
    """Cross-entropy towards the language model's distribution."""

    prior: ClassVar[Prior] = "lm"
    equation: ClassVar[str] = "ell + strength·CE(p_lm, p)"

    def needs(self) -> frozenset[Need]:
        return frozenset({"lm", "distribution"})


class PriorTranslator(_SinglePrior):
    """Cross-entropy towards the distribution of the translator as it was when the stage began."""

    prior: ClassVar[Prior] = "tm"
    equation: ClassVar[str] = "ell + strength·CE(p_tm, p)"

    def needs(self) -> frozenset[Need]:
        if self.interval is None:
            return frozenset({"teacher", "distribution"})
        return frozenset({"teacher", "distribution", "lm"})


class PriorCbmi(_SinglePrior):
    """Cross-entropy towards the distribution of what only the source tells."""

    prior: ClassVar[Prior] = "cbmi"
    equation: ClassVar[str] = "ell + strength·CE(q_cbmi, p), q_cbmi = softmax(log p_tm - log p_lm)"

    def needs(self) -> frozenset[Need]:
        return frozenset({"lm", "teacher", "distribution"})


class PriorSelection(_Prior):
    """The prior of each token is chosen by its CBMI."""

    equation: ClassVar[str] = (
        "ell + strength·CE(q, p); q = p_lm for c ≤ low, p_tm for low < c ≤ high, q_cbmi above"
    )

    thresholds: Interval = (0.0, 8.0)  # low, high
    only: Prior | None = None  # the term for the tokens of this one interval alone

    def needs(self) -> frozenset[Need]:
        return frozenset({"lm", "teacher", "distribution"})

    def term(self, chunk: Distributions) -> Tensor:
        c = chunk.cbmi()
        low, high = self.thresholds
        chosen: dict[Prior, Tensor] = {
            "lm": c <= low,
            "tm": (c > low) & (c <= high),
            "cbmi": c > high,
        }
        loss = torch.zeros_like(c)
        for name, where in chosen.items():
            if self.only is None or self.only == name:
                term = cross_entropy(log_prior(name, chunk), chunk, self.gold_only)
                loss = loss + torch.where(where, term, 0.0)
        return self.strength * loss
