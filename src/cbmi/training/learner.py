"""A network that learns: its optimiser, schedule, gradient clipping and data-parallel wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cbmi.config import Optimizer
from cbmi.training.checkpoint import weights_of
from cbmi.training.sharding import is_sharded, shard, spread_like, whole
from cbmi.training.world import World


def learning_rate(step: int, settings: Optimizer) -> float:
    """Linear warm-up from `initial_lr` to `peak_lr`, then down with the inverse square root; steps from 1."""
    if step < settings.warmup:
        return settings.initial_lr + (settings.peak_lr - settings.initial_lr) * step / settings.warmup
    return settings.peak_lr * (max(settings.warmup, 1) / step) ** 0.5


class Learner:
    """Translator and language model each have one, so neither's gradient touches the other's."""

    def __init__(
        self,
        network: nn.Module,
        settings: Optimizer,
        world: World,
        precision: torch.dtype,
        parallel: Literal["ddp", "fsdp"] = "ddp",
    ) -> None:
        self.network, self.settings, self.world, self.precision = network, settings, world, precision
        self.run: nn.Module = network
        if world.size > 1 and parallel == "fsdp":
            shard(network, world.device)
        elif world.size > 1:
            devices = [world.device.index] if world.device.type == "cuda" else None
            self.run = DistributedDataParallel(network, device_ids=devices)
        self.restart()

    def restart(self) -> None:
        """Forget the moments of the gradients so far."""
        device = self.world.device
        on_gpu = device.type == "cuda"
        # On a GPU the rate is a tensor, so that a graph of the step reads what `schedule` has put there.
        self.optimizer = torch.optim.Adam(
            self.network.parameters(),
            lr=torch.zeros((), device=device) if on_gpu else 0.0,
            betas=self.settings.betas,
            eps=self.settings.eps,
            fused=True,
            capturable=on_gpu,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == torch.float16)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the loss's gradient; only the last part of an accumulated step is exchanged between ranks."""
        with self.unsynchronised(not last):
            self.scaler.scale(loss).backward()

    @contextmanager
    def unsynchronised(self, wanted: bool) -> Iterator[None]:
        """For the forward pass too: DDP decides there whether the backward pass is to be exchanged."""
        if wanted and isinstance(self.run, DistributedDataParallel):
            with self.run.no_sync():
                yield
        elif wanted and is_sharded(self.network):
            self.network.set_requires_gradient_sync(False)
            yield
            self.network.set_requires_gradient_sync(True)
        else:
            yield

    def schedule(self, step: int) -> None:
        """Set the learning rate of the coming update."""
        value = learning_rate(step, self.settings)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def update(self) -> Tensor:
        """Change the weights; gives the gradient's norm before clipping."""
        self.scaler.unscale_(self.optimizer)
        limit = self.settings.clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return whole(norm)

    def moments(self, prefix: str) -> dict[str, Tensor]:
        """Adam's state, by parameter."""
        return {
            f"{prefix}/{name}/{key}": value
            for name, parameter in weights_of(self.network).items()
            for key, value in self.optimizer.state[parameter].items()
        }

    def load_moments(self, prefix: str, tensors: dict[str, Tensor]) -> None:
        groups = self.optimizer.state_dict()["param_groups"]
        state: dict[int, dict[str, Any]] = {}
        for number, (name, parameter) in enumerate(weights_of(self.network).items()):
            start = f"{prefix}/{name}/"
            found = {key.removeprefix(start): tensors[key] for key in tensors if key.startswith(start)}
            found = {key: spread_like(value, parameter) if value.dim() else value for key, value in found.items()}
            if found:
                state[number] = found
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
