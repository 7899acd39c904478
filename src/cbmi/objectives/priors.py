"""Prior distributions: cross-entropy plus a term that draws the model's whole distribution towards another one.

    q_lm    the language model's
    q_tm    that of the translator as it was when the stage began
    q_cbmi  softmax(log p_tm - log p_lm): what only the source tells

All are constants to the gradient. c = log p(y_j) - log p_lm(y_j) is the token's CBMI, as in `cbmi`.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cbmi.config import AboveZero, Flag, Interval, NotNegative
from cbmi.model.distribution import Distributions
from cbmi.objectives.base import CBMI_PAPER, Objective

LM_FLOOR = math.log(1e-9)  # of log p_lm in q_cbmi


def log_prior(name: str, chunk: Distributions) -> Tensor:
    """log q (tokens, vocabulary), a constant; `name`: lm, tm or cbmi."""
    if name == "lm":
        return chunk.lm
    if name == "tm":
        return chunk.teacher
    return torch.log_softmax(chunk.teacher - chunk.lm.clamp(min=LM_FLOOR), dim=1)


def cross_entropy(log_q: Tensor, chunk: Distributions, gold_only: bool) -> Tensor:
    """CE(q, p) (tokens,); with `gold_only` q(y_j)·ell_j."""
    if gold_only:
        return chunk.of_gold(log_q).exp() * chunk.cross_entropy()
    return -(log_q.exp() * chunk.log_p).sum(1)


class LanguageModelPrior(Objective):
    """The language model's distribution, softened, is distilled into the translator's."""

    needs: ClassVar[frozenset[str]] = frozenset({"lm", "distribution"})
    equation: ClassVar[str] = "ell + strength·temperature²·KL(p_lm^(1/temperature) ‖ p^(1/temperature))"
    paper: ClassVar[str] = "Baziotis et al., 2020: Language model prior for low-resource neural machine translation"

    strength: NotNegative = 0.1  # λ
    temperature: AboveZero = 2.0  # τ: both distributions are softmaxes of logits divided by it

    def term(self, chunk: Distributions) -> Tensor:
        log_q = torch.log_softmax(chunk.lm / self.temperature, dim=1)
        log_p = torch.log_softmax(chunk.logits / self.temperature, dim=1)
        return self.strength * self.temperature**2 * (log_q.exp() * (log_q - log_p)).sum(1)


class _Prior(Objective):
    paper: ClassVar[str] = CBMI_PAPER

    strength: NotNegative = 0.1  # λ
    gold_only: Flag = False  # the paper's formula read literally: w = 1 + strength·q(y_j) instead


class _SinglePrior(_Prior):
    prior: ClassVar[str]
    interval: Interval | None = None  # only tokens whose CBMI is above the first bound and not above the second

    def term(self, chunk: Distributions) -> Tensor:
        loss = self.strength * cross_entropy(log_prior(self.prior, chunk), chunk, self.gold_only)
        if self.interval is None:
            return loss
        c = chunk.cbmi()
        return torch.where((c > self.interval[0]) & (c <= self.interval[1]), loss, 0.0)


class PriorLanguageModel(_SinglePrior):
    """Cross-entropy towards the language model's distribution."""

    needs: ClassVar[frozenset[str]] = frozenset({"lm", "distribution"})
    prior: ClassVar[str] = "lm"
    equation: ClassVar[str] = "ell + strength·CE(p_lm, p)"


class PriorTranslator(_SinglePrior):
    """Cross-entropy towards the distribution of the translator as it was when the stage began."""

    prior: ClassVar[str] = "tm"
    equation: ClassVar[str] = "ell + strength·CE(p_tm, p)"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"teacher", "distribution"} | ({"lm"} if self.interval else set()))


class PriorCbmi(_SinglePrior):
    """Cross-entropy towards the distribution of what only the source tells."""

    needs: ClassVar[frozenset[str]] = frozenset({"lm", "teacher", "distribution"})
    prior: ClassVar[str] = "cbmi"
    equation: ClassVar[str] = "ell + strength·CE(q_cbmi, p), q_cbmi = softmax(log p_tm - log p_lm)"


class PriorSelection(_Prior):
    """The prior of each token is chosen by its CBMI."""

    needs: ClassVar[frozenset[str]] = frozenset({"lm", "teacher", "distribution"})
    equation: ClassVar[str] = "ell + strength·CE(q, p); q = p_lm for c ≤ low, p_tm for low < c ≤ high, q_cbmi above"

    thresholds: Interval = (0.0, 8.0)  # low, high
    only: Literal["lm", "tm", "cbmi"] | None = None  # the term for the tokens of this one interval alone

    def term(self, chunk: Distributions) -> Tensor:
        c, (low, high) = chunk.cbmi(), self.thresholds
        chosen = {"lm": c <= low, "tm": (c > low) & (c <= high), "cbmi": c > high}
        loss = torch.zeros_like(c)
        for name, where in chosen.items():
            if self.only in (None, name):
                loss = loss + torch.where(where, cross_entropy(log_prior(name, chunk), chunk, self.gold_only), 0.0)
        return self.strength * loss
