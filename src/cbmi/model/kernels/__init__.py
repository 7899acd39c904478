"""Fused GPU kernels (Triton), each with a plain twin in PyTorch that computes the same function.

`fused(x)` says which of the two a tensor goes through. Nothing here is imported before a GPU asks for it.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

_wanted = True


def use(choice: bool) -> None:
    """Whether this process uses fused kernels where there are some."""
    global _wanted
    _wanted = choice


@cache
def available() -> bool:
    return find_spec("triton") is not None


def wanted() -> bool:
    return _wanted and available()


def fused(x: Tensor) -> bool:
    """Whether a tensor goes through the fused kernels: on a GPU, in half precision, unless `use` says no."""
    return x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and wanted()


def compiled() -> int:
    """How many variants of the fused kernels have been compiled in this process."""
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{__name__}.")]
    functions = [value for module in modules for value in vars(module).values() if hasattr(value, "device_caches")]
    return sum(len(caches[0]) for function in functions for caches in function.device_caches.values())
