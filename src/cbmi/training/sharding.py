"""Weights spread over the ranks (FSDP2), for networks that do not fit on one; and whole again.

PyTorch's modules for it take a second to import, so they are imported where they are used.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from cbmi.model.layers import Layer


def shard(network: nn.Module, device: torch.device) -> None:
    """Spread the weights, layer by layer: a layer's are gathered when it computes, and let go after it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for module in network.modules():
        if isinstance(module, Layer):
            fully_shard(module, mesh=mesh)
    fully_shard(network, mesh=mesh)


def is_sharded(network: nn.Module) -> bool:
    return hasattr(network, "set_requires_gradient_sync")  # what `fully_shard` adds


def whole(tensor: Tensor) -> Tensor:
    """A tensor as it would be on one rank; all ranks have to ask for it."""
    return tensor.full_tensor() if _spread(tensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank."""
    return tensor.to_local() if _spread(tensor) else tensor


def spread_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, spread as the other is."""
    if not _spread(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)


def _spread(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")
