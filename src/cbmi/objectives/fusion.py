"""Simple fusion (Stahlberg et al., WMT 2018): the translator learns what the LM does not know.

The frozen language model takes part in training and in translation. The fusion itself is computed
where the logits are (`cbmi.model.fusion`); the loss is the cross-entropy of the fused scores.
"""

from __future__ import annotations

from typing import ClassVar

from cbmi.objectives.base import Need, Objective

_PAPER = "Stahlberg et al., 2018: Simple fusion: return of the language model"


class FusionPrenorm(Objective):
    """The language model is added to the translator's logits, in training and in translation."""

    fusion: ClassVar = "prenorm"
    equation: ClassVar[str] = "w = 1; p = softmax(S_tm + log p_lm)"
    paper: ClassVar[str] = _PAPER

    def needs(self) -> frozenset[Need]:
        return frozenset({"lm"})


class FusionPostnorm(Objective):
    """The language model is added to the translator's log-probabilities; trains as `ce`."""

    fusion: ClassVar = "postnorm"
    equation: ClassVar[str] = "w = 1; score = log softmax(S_tm) + log p_lm, not normalised"
    paper: ClassVar[str] = _PAPER

    def needs(self) -> frozenset[Need]:
        return frozenset({"lm"})
