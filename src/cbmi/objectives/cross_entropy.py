"""Plain cross-entropy: every token counts the same."""

from __future__ import annotations

from typing import ClassVar

from cbmi.objectives.base import Objective


class CrossEntropy(Objective):
    """Every token counts the same."""

    equation: ClassVar[str] = "w = 1"
    paper: ClassVar[str] = "Vaswani et al., 2017: Attention is all you need"
