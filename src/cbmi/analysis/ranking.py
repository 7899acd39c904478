"""How well a score puts one group above another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def roc_auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """The share of pairs (one of each group) in which `higher`'s value is the larger; ties count half."""
    if not len(higher) or not len(lower):
        raise ValueError("both groups need values")
    lower = np.sort(np.asarray(lower, dtype=np.float64))
    higher = np.asarray(higher, dtype=np.float64)
    below = np.searchsorted(lower, higher, side="left")
    not_above = np.searchsorted(lower, higher, side="right")
    return float((below + not_above).sum() / (2 * len(lower) * len(higher)))
