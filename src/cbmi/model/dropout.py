"""Stateless dropout: whether an entry is dropped is a function of seed, site, row and column.

So the masks are the same on every device and in every arrangement of the computation (plain, fused,
recomputed, replayed from a graph), and a resumed run needs no random state. All arithmetic is on
32-bit integers that wrap around; shifts keep the sign. `cbmi.model.kernels.random` is the same
function for a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from cbmi.model.runtime import Runtime

# Odd numbers that spread neighbours apart.
ROW = -1640531535
SITE = -2048144777
COLUMN = -1028477379
MIX = (-2048144789, -1028477387)


class DropoutDraw(NamedTuple):
    """What a kernel needs to drop entries by itself; no seed where nothing is dropped."""

    seed: Tensor | None  # (2,) int32
    site: int
    rate: float


NO_DROPOUT = DropoutDraw(None, 0, 0.0)


class Dropout(nn.Module):
    """Each entry of (rows, columns) is 0 with probability `rate`; the others are scaled up."""

    def __init__(self, rate: float, runtime: Runtime) -> None:
        super().__init__()
        self.rate = rate
        self.runtime = runtime
        self.site = runtime.new_site()

    @property
    def active(self) -> bool:
        return self.training and self.rate > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            return x
        if self.runtime.fused(x):
            from cbmi.model.kernels.elementwise import dropout

            return dropout(x, self.draw())
        return x * self.factors(torch.arange(len(x), device=x.device), x.shape[1], x.dtype)

    def draw(self) -> DropoutDraw:
        """Seed, site and rate, for a kernel."""
        if not self.active:
            return NO_DROPOUT
        seed, site = self.runtime.seed_and_site(self.site)
        return DropoutDraw(seed, site, self.rate)

    def factors(self, rows: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """(..., columns): 0 or 1 / (1 - rate) for each row number in `rows` (...) and column."""
        seed, site = self.runtime.seed_and_site(self.site)
        return keep(seed, site, rows, columns, self.rate).to(dtype) * (1 / (1 - self.rate))


def keep(seed: Tensor, site: int, rows: Tensor, columns: int, rate: float) -> Tensor:
    """(..., columns): false with probability `rate`. seed (2,) int32; rows (...), integers."""
    row = mix(rows.int() * ROW + seed[0])
    row = mix(row ^ (seed[1] + wrapped(site * SITE)))
    x = row[..., None] + torch.arange(columns, dtype=torch.int32, device=rows.device) * COLUMN
    x ^= x >> 16
    x *= MIX[0]
    x ^= x >> 15
    x *= MIX[1]
    return x >= threshold(rate)


def mix(x: Tensor) -> Tensor:
    """Hash 32-bit integers. The result is never negative: the last shift clears the sign."""
    x = (x ^ (x >> 16)) * MIX[0]
    x = (x ^ (x >> 15)) * MIX[1]
    return x ^ (x >> 16)


def threshold(rate: float) -> int:
    """The signed 32-bit integer that a share of `rate` of all of them lies below."""
    return min(round(rate * 2**32), 2**32 - 1) - 2**31


def wrapped(number: int) -> int:
    """An integer, wrapped around to a signed 32-bit one."""
    return (number + 2**31) % 2**32 - 2**31


def seed_words(seed: int) -> tuple[int, int]:
    """An integer of up to 64 bits as two of 32 bits: what `Runtime.seed` holds."""
    return wrapped(seed), wrapped(seed >> 32)
