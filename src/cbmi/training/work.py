"""How much arithmetic a step is, and how much this device can do: what MFU is made of.

MFU (model FLOPs utilisation) is the arithmetic that the networks need for the real tokens, divided
by what a large matrix product does in the same time on the same device. Recomputation and padding
count as waste, not as work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from cbmi.config import ModelSettings
from cbmi.objectives import Objective
from cbmi.training.stage_inputs import dropout_sample_count

FORWARD_AND_BACKWARD = 3  # in forward passes


@dataclass(frozen=True)
class Work:
    """Sums over the pairs of a batch, of what attention and matrix products grow with."""

    source: int = 0
    target: int = 0
    source_squares: int = 0
    target_squares: int = 0
    products: int = 0

    @classmethod
    def of(cls, lengths: np.ndarray) -> Work:
        """lengths (2, pairs): tokens of source and target."""
        source, target = lengths
        return cls(
            source=int(source.sum()),
            target=int(target.sum()),
            source_squares=int((source**2).sum()),
            target_squares=int((target**2).sum()),
            products=int((source * target).sum()),
        )

    def __add__(self, other: Work) -> Work:
        return Work(
            source=self.source + other.source,
            target=self.target + other.target,
            source_squares=self.source_squares + other.source_squares,
            target_squares=self.target_squares + other.target_squares,
            products=self.products + other.products,
        )


def translator_flops(work: Work, model: ModelSettings, vocabulary: int) -> int:
    """Of a forward pass: two per weight and token, and attention's products (half if causal)."""
    width = model.width
    layer = 4 * width**2 + 2 * width * model.feed_forward
    encoder_layer = 2 * layer * work.source + 4 * width * work.source_squares
    decoder_layer = 2 * (layer + 2 * width**2) * work.target + 2 * width * work.target_squares
    cross_attention = 4 * width**2 * work.source + 4 * width * work.products
    encoder = model.encoder_layers * encoder_layer
    decoder = model.decoder_layers * (decoder_layer + cross_attention)
    return encoder + decoder + 2 * width * vocabulary * work.target


def language_model_flops(work: Work, model: ModelSettings, vocabulary: int) -> int:
    """Of a forward pass."""
    width = model.width
    layer = 4 * width**2 + 2 * width * model.feed_forward
    decoder_layer = 2 * layer * work.target + 2 * width * work.target_squares
    return model.decoder_layers * decoder_layer + 2 * width * vocabulary * work.target


class Passes(NamedTuple):
    """Forward passes that a step's arithmetic is worth."""

    translator: int
    language_model: int


def passes(language_model: str | None, objective: Objective, r_drop: float = 0.0) -> Passes:
    trained = 2 * FORWARD_AND_BACKWARD if r_drop else FORWARD_AND_BACKWARD
    teacher = 1 if "teacher" in objective.needs() else 0
    of_language_model = {"train": FORWARD_AND_BACKWARD, "joint": FORWARD_AND_BACKWARD, "frozen": 1}
    return Passes(
        translator=trained + dropout_sample_count(objective) + teacher,
        language_model=of_language_model.get(language_model or "off", 0),
    )


def matrix_rate(device: torch.device, precision: torch.dtype) -> float:
    """Operations per second of a large matrix product, measured: the best of a few."""
    if device.type == "cuda":
        size = 8192
        repeats = 4
    else:
        size = 512
        repeats = 20  # CPUs are often shared
    random = torch.Generator(device).manual_seed(0)
    first = torch.randn(size, size, device=device, dtype=precision, generator=random)
    second = torch.randn(size, size, device=device, dtype=precision, generator=random)
    out = torch.empty_like(first)
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        torch.mm(first, second, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return float(2 * size**3 / best)


class Throughput:
    """Time spent training and work done since the last reading."""

    def __init__(self, model: ModelSettings, vocabulary: int, passes: Passes, rate: float) -> None:
        """`rate`: operations per second that all devices could do together."""
        self.model = model
        self.vocabulary = vocabulary
        self.passes = passes
        self.rate = rate
        self.work = Work()
        self.since = time.monotonic()

    def add(self, work: Work) -> None:
        self.work += work

    def read(self, seconds_waited: float) -> dict[str, float]:
        """Figures for the log; `seconds_waited`: for batches."""
        now = time.monotonic()
        seconds = max(now - self.since, 1e-9)
        figures = {
            "tokens_per_second": self.work.target / seconds,
            "seconds": seconds,
            "mfu": self._least_seconds() / seconds,
            "waiting": seconds_waited / seconds,  # share of the time
        }
        self.work = Work()
        self.since = now
        return figures

    def pause(self, seconds: float) -> None:
        """Leave out time that was spent on something else, such as validation."""
        self.since += seconds

    def _least_seconds(self) -> float:
        """What the arithmetic alone would take, at the rate of a large matrix product."""
        translator = translator_flops(self.work, self.model, self.vocabulary)
        language_model = language_model_flops(self.work, self.model, self.vocabulary)
        operations = self.passes.translator * translator
        operations += self.passes.language_model * language_model
        return operations / self.rate
