"""Which pairs an epoch has, where the training data are several corpora with weights.

A corpus of weight 2 is in every epoch twice. One of weight 0.5 is in every epoch by half: two
epochs are a pass over it, and every pass has an order of its own. So each pair comes once in a
pass, and not always in the same epochs. A pure function of (seed, epoch).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbmi.data.corpus import CorpusMeta
from cbmi.data_settings import DataSettings

PASS_KEY = 2**62  # in place of an epoch; passes over corpora are counted from here
MOST_PASSES = 2**40  # of one corpus


@dataclass(frozen=True)
class Mixing:
    """The corpora that training data are made of, one after the other."""

    pairs: tuple[int, ...]  # of each
    weights: tuple[float, ...]

    def draw(self, seed: int, epoch: int) -> np.ndarray:
        """Indices of an epoch's pairs, in the order of the corpora; some occur several times."""
        drawn: list[np.ndarray] = []
        start = 0
        for number, (count, weight) in enumerate(zip(self.pairs, self.weights, strict=True)):
            whole = int(weight)
            drawn += [np.arange(start, start + count)] * whole
            # All passes, one after the other, are a long line of pairs, of which this epoch has:
            share = (weight - whole) * count
            places = np.arange(int(epoch * share), int((epoch + 1) * share))
            for number_of_pass in np.unique(places // count):
                own = places[places // count == number_of_pass] % count
                key = [seed, PASS_KEY + number * MOST_PASSES + int(number_of_pass)]
                order = np.random.Generator(np.random.Philox(key=key)).permutation(count)
                drawn.append(start + order[own])
            start += count
        indices = np.concatenate([np.arange(0), *drawn])
        # An epoch has at least one pair, however small the weights.
        return indices if len(indices) else np.array([epoch % start])

    def share(self) -> float:
        """Pairs of an epoch for each pair of the data."""
        total = 0.0
        for count, weight in zip(self.pairs, self.weights, strict=True):
            total += count * weight
        return total / sum(self.pairs)


def mixing_of(meta: CorpusMeta, data: DataSettings) -> Mixing | None:
    """How the corpora of prepared training data are mixed; None if every pair comes once."""
    weights = tuple(corpus.weight for corpus in data.train)
    if all(weight == 1 for weight in weights):
        return None
    return Mixing(meta.parts or (meta.pairs,), weights)
