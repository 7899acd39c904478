"""Fused GPU kernels (Triton), each with a plain twin in PyTorch that computes the same function.

`usable(x)` says whether a tensor can go through them at all. Whether a network wants them is the
network's own choice (`cbmi.model.runtime.Runtime`). Nothing here is imported before a GPU asks for
it.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def usable(x: Tensor) -> bool:
    """Whether the fused kernels can take a tensor: on a GPU, in half precision, with Triton."""
    return x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and available()


def compiled_variants() -> int:
    """How many variants of the fused kernels have been compiled in this process."""
    count = 0
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__name__}."):
            for value in vars(module).values():
                if hasattr(value, "device_caches"):
                    count += sum(len(caches[0]) for caches in value.device_caches.values())
    return count
