"""Fused GPU kernels (Triton), each with a plain twin in PyTorch that computes the same function.

`fused(x)` says which of the two a tensor goes through. Nothing here is imported before a GPU asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

_wanted: ContextVar[bool] = ContextVar("fused kernels", default=True)


def fused(x: Tensor) -> bool:
    """Whether a tensor goes through the fused kernels: on a GPU, in half precision, unless `choose` says no."""
    return x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and _wanted.get() and available()


@cache
def available() -> bool:
    return find_spec("triton") is not None


@contextmanager
def choose(wanted: bool) -> Iterator[None]:
    """Whether fused kernels are used within."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)
