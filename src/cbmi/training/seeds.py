"""Seeds that are pure functions of what they are for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_for(*parts: object) -> int:
    """A seed that is a pure function of its parts, e.g. (seed, "dropout", step, rank).

    Every step's dropout is drawn from such a seed. So a resumed run needs no random state, and what
    one network draws never shifts what another one draws.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from this seed on the CPU inside the block; the caller's random state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
