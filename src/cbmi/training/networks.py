"""Networks as a run's settings describe them, initialised from reproducible seeds."""

from __future__ import annotations

from cbmi.config import RunSettings
from cbmi.model import LanguageModel, Translator
from cbmi.model.layers import Shape
from cbmi.training.seeds import seed_for, seeded


def new_translator(config: RunSettings, sizes: tuple[int, int], seed: int = 0) -> Translator:
    """`sizes`: pieces of the source and of the target vocabulary."""
    source_size, target_size = sizes
    with seeded(seed_for(seed, "translator")):
        shared = config.data.vocabulary.shared
        network = Translator(_shape(config), source_size, target_size, shared)
    network.runtime.allow_fused = config.compile == "auto"
    return network


def new_language_model(config: RunSettings, size: int, seed: int = 0) -> LanguageModel:
    """`size`: pieces of the target vocabulary."""
    with seeded(seed_for(seed, "language model")):
        network = LanguageModel(_shape(config), size)
    network.runtime.allow_fused = config.compile == "auto"
    return network


def _shape(config: RunSettings) -> Shape:
    return Shape(**config.model.model_dump(exclude={"preset"}))
