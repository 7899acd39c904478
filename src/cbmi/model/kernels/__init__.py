"""Fused GPU kernels (Triton), each with a plain twin in PyTorch that computes the same function.

`fused(x)` says which of the two a tensor goes through. Nothing here is imported before a GPU asks for it.
"""

from __future__ import annotations

import sys
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


def compiled() -> int:
    """How many variants of the fused kernels have been compiled in this process."""
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{__name__}.")]
    functions = [value for module in modules for value in vars(module).values() if hasattr(value, "device_caches")]
    return sum(len(caches[0]) for function in functions for caches in function.device_caches.values())
