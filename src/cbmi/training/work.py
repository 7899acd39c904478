"""How much arithmetic a step is, and how much this device can do: what MFU is made of.

MFU (model FLOPs utilisation) is the arithmetic that the networks need for the real tokens, over what a large matrix
product does in the same time on the same device. Recomputation and padding count as waste, not as work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from cbmi.config import Model
from cbmi.objectives import Objective

BACKWARD = 3  # a forward and a backward pass, in forward passes


@dataclass(frozen=True)
class Work:
    """Sums over the pairs of a mini-batch, of what attention and matrix products grow with."""

    source: int = 0
    target: int = 0
    source_squares: int = 0
    target_squares: int = 0
    products: int = 0

    @classmethod
    def of(cls, lengths: np.ndarray) -> Work:
        """lengths (2, pairs): tokens of source and target."""
        source, target = lengths
        sums = (source, target, source**2, target**2, source * target)
        return cls(*(int(values.sum()) for values in sums))

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


def translator_flops(work: Work, model: Model, vocabulary: int) -> int:
    """Of a forward pass: two operations for each weight and token, and attention's products (half where causal)."""
    width, inner = model.width, model.feed_forward
    layer = 4 * width**2 + 2 * width * inner
    encoder = model.encoder_layers * (2 * layer * work.source + 4 * width * work.source_squares)
    on_target = 2 * (layer + 2 * width**2) * work.target + 2 * width * work.target_squares
    between = 4 * width**2 * work.source + 4 * width * work.products
    return encoder + model.decoder_layers * (on_target + between) + 2 * width * vocabulary * work.target


def language_model_flops(work: Work, model: Model, vocabulary: int) -> int:
    width = model.width
    layer = 4 * width**2 + 2 * width * model.feed_forward
    layers = model.decoder_layers * (2 * layer * work.target + 2 * width * work.target_squares)
    return layers + 2 * width * vocabulary * work.target


def passes(language_model: str, objective: Objective) -> tuple[int, int]:
    """Forward passes that a step's arithmetic is worth, of the translator and of the language model."""
    samples = objective.samples if "samples" in objective.needs else 0
    of_language_model = {"train": BACKWARD, "joint": BACKWARD, "frozen": 1}.get(language_model, 0)
    return BACKWARD + samples + ("teacher" in objective.needs), of_language_model


def matrix_rate(device: torch.device, precision: torch.dtype) -> float:
    """Operations a second of a large matrix product, measured: the best of a few."""
    size, repeats = (8192, 4) if device.type == "cuda" else (512, 20)  # CPUs are often shared
    random = torch.Generator(device).manual_seed(0)
    first, second = (torch.randn(size, size, device=device, dtype=precision, generator=random) for _ in range(2))
    out, best = torch.empty_like(first), float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        torch.mm(first, second, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best
