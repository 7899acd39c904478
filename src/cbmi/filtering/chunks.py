"""A chunk of a corpus: what is computed of its pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cbmi.data.text import Pair
from cbmi.decoding.queue import Advance
from cbmi.decoding.translate import ignore_progress
from cbmi.filtering.rules import SIGNALS, pair_features
from cbmi.inference.scoring import PairScorer

# Of a chunk, float64 each. The names are written to plan.json.
FEATURE_COLUMNS = ["empty", "copies", "lengths", "texts"]  # in the order of `PairFeatures`
COLUMNS = [*SIGNALS, *FEATURE_COLUMNS]


def chunk_rows(
    scorer: PairScorer, pairs: Sequence[Pair], advance: Advance = ignore_progress
) -> np.ndarray:
    """(pairs, columns): the scores, and the features that rules go by."""
    scores = scorer.sentence_scores(pairs, advance)
    return np.column_stack([scores, *pair_features(pairs)])
