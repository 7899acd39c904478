"""Dropout without a state: whether an entry falls is a function of seed, site, row and column, nothing else.

So the draws are the same on every device and in every arrangement of the computation (plain, fused, recomputed,
replayed from a graph), and a run that goes on needs no random state. All arithmetic is of 32-bit integers that wrap
around; shifts keep the sign. `cbmi.model.kernels.random` is the same function for a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cbmi.model import kernels

ROW, SITE, COLUMN = -1640531535, -2048144777, -1028477379  # odd numbers that spread neighbours apart
MIX = (-2048144789, -1028477387)


class Draws:
    """What a network draws from: the step's seed, and a number for each site where it drops."""

    def __init__(self, sites: int = 0) -> None:
        """`sites`: how many there are already in networks that draw from the same seed."""
        self.seed: Tensor | None = None  # (2,) int32 on the network's device
        self.sample = 0  # another number gives another draw from the same seed
        self.sites = sites

    def new_site(self) -> int:
        self.sites += 1
        return self.sites

    def at(self, site: int) -> tuple[Tensor, int]:
        """Seed and site to draw with."""
        if self.seed is None:
            raise RuntimeError("dropout has no seed: set network.draws.seed before a forward pass in training mode")
        return self.seed, site + (self.sample << 16)


class Dropout(nn.Module):
    """Each entry of (rows, columns) is 0 with probability `rate`, the others are scaled up."""

    def __init__(self, rate: float, draws: Draws) -> None:
        super().__init__()
        self.rate, self.draws, self.site = rate, draws, draws.new_site()

    @property
    def drops(self) -> bool:
        return self.training and self.rate > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.drops:
            return x
        if kernels.fused(x):
            from cbmi.model.kernels.elementwise import dropout

            return dropout(x, *self.draw())
        return x * self.factors(torch.arange(len(x), device=x.device), x.shape[1], x.dtype)

    def draw(self) -> tuple[Tensor | None, int, float]:
        """Seed, site and rate, for a kernel; no seed where nothing is dropped."""
        return (*self.draws.at(self.site), self.rate) if self.drops else (None, 0, 0.0)

    def factors(self, rows: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """(..., columns): 0 or 1 / (1 - rate) for each row number in `rows` (...) and column."""
        seed, site = self.draws.at(self.site)
        return keep(seed, site, rows, columns, self.rate).to(dtype) * (1 / (1 - self.rate))


def keep(seed: Tensor, site: int, rows: Tensor, columns: int, rate: float) -> Tensor:
    """(..., columns): false with probability `rate`. seed (2,) int32; rows (...), whole numbers."""
    row = _mix(rows.int() * ROW + seed[0])
    row = _mix(row ^ (seed[1] + wrapped(site * SITE)))
    x = row[..., None] + torch.arange(columns, dtype=torch.int32, device=rows.device) * COLUMN
    x ^= x >> 16
    x *= MIX[0]
    x ^= x >> 15
    x *= MIX[1]
    return x >= threshold(rate)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ (x >> 16)) * MIX[0]
    x = (x ^ (x >> 15)) * MIX[1]
    return x ^ (x >> 16)


def threshold(rate: float) -> int:
    """The 32-bit number that a share of `rate` of all of them lies below."""
    return min(round(rate * 2**32), 2**32 - 1) - 2**31


def wrapped(number: int) -> int:
    """A whole number as a 32-bit one."""
    return (number + 2**31) % 2**32 - 2**31


def seed_words(seed: int) -> tuple[int, int]:
    """A whole number of up to 64 bits as two 32-bit ones: what `Draws.seed` holds."""
    return wrapped(seed), wrapped(seed >> 32)
