"""What all modules of one network share while it computes."""

from __future__ import annotations

from torch import Tensor

from cbmi.model import kernels


class Runtime:
    """A network's dropout seed, the numbers of its dropout sites, and its choice of kernels."""

    def __init__(self, sites: int = 0) -> None:
        """`sites`: how many dropout sites other networks with the same seed may already have."""
        self.seed: Tensor | None = None  # (2,) int32 on the network's device
        self.sample = 0  # another number gives another dropout mask from the same seed
        self.sites = sites
        self.allow_fused = True  # false: PyTorch's own operations, also where kernels are usable

    def new_site(self) -> int:
        """The number of the next dropout site; the order of construction decides it."""
        self.sites += 1
        return self.sites

    def seed_and_site(self, site: int) -> tuple[Tensor, int]:
        """What dropout at a site draws from."""
        if self.seed is None:
            raise RuntimeError(
                "dropout has no seed: set network.runtime.seed before a forward pass in training"
            )
        return self.seed, site + (self.sample << 16)

    def fused(self, x: Tensor) -> bool:
        """Whether a tensor goes through the fused kernels."""
        return self.allow_fused and kernels.usable(x)
