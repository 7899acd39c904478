"""How well a score ranks one group above another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def roc_auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """The area under the ROC curve, from the values of two groups.

    It is the share of pairs, one value of each group, in which that of `higher` is the larger. Ties
    count half.
    """
    if len(higher) == 0 or len(lower) == 0:
        raise ValueError("both groups need values")
    high = np.asarray(higher, dtype=np.float64)
    low = np.sort(np.asarray(lower, dtype=np.float64))
    below = np.searchsorted(low, high, side="left")
    not_above = np.searchsorted(low, high, side="right")
    return float((below + not_above).sum() / (2 * len(low) * len(high)))
