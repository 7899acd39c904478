"""Weights sharded over the ranks (FSDP2), for networks that do not fit on one; and whole again.

PyTorch's modules for it take a second to import, so they are imported where they are used.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, distributed, nn

from cbmi.model.layers import Layer


def shard(network: nn.Module, device: torch.device) -> None:
    """Shard the weights layer by layer: a layer's are gathered when it computes, then freed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for module in network.modules():
        if isinstance(module, Layer):
            fully_shard(module, mesh=mesh)
    fully_shard(network, mesh=mesh)


def is_sharded(network: nn.Module) -> bool:
    return hasattr(network, "set_requires_gradient_sync")  # what `fully_shard` adds


def unsharded(tensor: Tensor) -> Tensor:
    """A tensor as it would be on one rank; all ranks have to call this."""
    return cast(Any, tensor).full_tensor() if _is_shard(tensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank."""
    return cast(Any, tensor).to_local() if _is_shard(tensor) else tensor


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, sharded as the other is."""
    if not _is_shard(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    sharded = cast(Any, other)
    return distribute_tensor(tensor.to(other.device), sharded.device_mesh, sharded.placements)


def _is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")
