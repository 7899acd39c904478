"""Networks as a run's settings describe them, from reproducible seeds."""

from __future__ import annotations

import hashlib

import torch

from cbmi.config import Model
from cbmi.model import LanguageModel, Translator
from cbmi.model.layers import Shape


def seed_for(*parts: object) -> int:
    """A seed that is a pure function of its parts, e.g. (seed, step, rank, "translator").

    Every step's dropout is drawn from such a seed. So a resumed run needs no random state, and what one network
    draws never shifts what another one draws.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _shape(model: Model) -> Shape:
    return Shape(**model.model_dump(exclude={"preset"}))


def new_translator(model: Model, sizes: tuple[int, int], shared: bool, seed: int = 0) -> Translator:
    """`sizes`: pieces of the source and of the target vocabulary."""
    torch.manual_seed(seed_for(seed, "translator"))
    return Translator(_shape(model), *sizes, shared)


def new_language_model(model: Model, size: int, seed: int = 0) -> LanguageModel:
    torch.manual_seed(seed_for(seed, "language model"))
    return LanguageModel(_shape(model), size)
