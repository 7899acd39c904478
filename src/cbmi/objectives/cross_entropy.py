"""Plain cross-entropy: every token counts the same."""

from __future__ import annotations

from typing import ClassVar

from cbmi.config import Settings
from cbmi.objectives.base import TokenScores


class CrossEntropy(Settings):
    """w = 1."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def weights(self, scores: TokenScores) -> None:
        return None
