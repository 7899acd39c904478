"""An exponential moving average of a network's weights: usually a better model than the last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cbmi.training.checkpoint import weights_of
from cbmi.training.sharding import local_shard


class MovingAverage:
    """average ← d·average + (1 - d)·weight after every update, on the weights' device.

    d is min(decay, (1 + t) / (10 + t)) at the t-th update: a young average forgets its beginning
    faster.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = network
        self.decay = decay
        self.updates = 0
        self.weights: dict[str, Tensor] = {}
        for name, parameter in weights_of(network).items():
            self.weights[name] = parameter.detach().clone()
        shards = [local_shard(weight) for weight in self.weights.values()]
        self.rate = torch.zeros((), device=shards[0].device)  # 1 - d of the coming update
        # average -= rate·(average - weight) is a step of gradient ascent with a weight decay of 1,
        # where the weight stands for the gradient. PyTorch's fused SGD does it for all tensors in
        # one pass, and reads the rate from the device, so that a recorded step can be replayed.
        self.optimizer = torch.optim.SGD(
            shards, lr=self.rate, weight_decay=1.0, maximize=True, fused=True
        )

    def restart(self) -> None:
        """Start again from the network's weights."""
        self.updates = 0
        with torch.no_grad():
            for name, parameter in weights_of(self.network).items():
                self.weights[name].copy_(parameter)

    def prepare_update(self) -> None:
        """Set the rate of the coming update; not part of a recorded step."""
        self.updates += 1
        warm_up = (1 + self.updates) / (10 + self.updates)
        self.rate.fill_(1 - min(self.decay, warm_up))

    def update(self) -> None:
        """Move towards the network's weights."""
        parameters = weights_of(self.network).values()
        shards = self.optimizer.param_groups[0]["params"]
        for shard, parameter in zip(shards, parameters, strict=True):
            shard.grad = local_shard(parameter.detach())
        self.optimizer.step()

    @torch.no_grad()
    def copy_to_network(self) -> None:
        for name, parameter in weights_of(self.network).items():
            parameter.copy_(self.weights[name])

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """The network has the averaged weights in this block, and its own again after it."""
        own = {}
        for name, parameter in weights_of(self.network).items():
            own[name] = parameter.detach().clone()
        self.copy_to_network()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in weights_of(self.network).items():
                    parameter.copy_(own[name])
