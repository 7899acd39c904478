"""A network in training: its optimizer, gradient clipping, average and data-parallel wrapper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cbmi.config import OptimizerSettings
from cbmi.training.checkpoint import weights_of
from cbmi.training.moving_average import MovingAverage
from cbmi.training.sharding import is_sharded, shard, shard_like, unsharded
from cbmi.training.world import World

Network = TypeVar("Network", bound=nn.Module)


class Learner(Generic[Network]):
    """A network with its optimizer, loss scaler, moving average and data-parallel wrapper.

    Translator and language model have one each, so their gradients never mix.
    """

    def __init__(
        self,
        network: Network,
        settings: OptimizerSettings,
        world: World,
        precision: torch.dtype,
        parallel: Literal["ddp", "fsdp"] = "ddp",
        ema: float = 0.0,
    ) -> None:
        """`ema`: the decay of the moving average of the weights; 0: there is none."""
        self.network = network
        self.settings = settings
        self.world = world
        self.precision = precision
        self.module: nn.Module = network  # what a training step calls
        if world.size > 1 and parallel == "fsdp":
            shard(network, world.device)
        elif world.size > 1:
            devices = [world.device.index] if world.device.type == "cuda" else None
            self.module = DistributedDataParallel(network, device_ids=devices)
        self.average = MovingAverage(network, ema) if ema else None
        self.restart()

    def restart(self) -> None:
        """Forget the moments of the gradients so far."""
        device = self.world.device
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            self.network.parameters(),
            # A tensor on a GPU, so that a recorded step reads what `prepare_update` put there.
            lr=torch.zeros((), device=device) if on_gpu else 0.0,
            betas=self.settings.betas,
            eps=self.settings.eps,
            fused=True,
            capturable=on_gpu,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == torch.float16)

    def backward(self, loss: Tensor, sync: bool) -> None:
        """Add the loss's gradient; ranks exchange gradients at a step's last micro-batch only."""
        with self.gradient_sync(sync):
            self.scaler.scale(loss).backward()

    @contextmanager
    def gradient_sync(self, enabled: bool) -> Iterator[None]:
        """Whether ranks exchange gradients; also around the forward pass, where DDP decides."""
        if enabled:
            yield
        elif isinstance(self.module, DistributedDataParallel):
            with self.module.no_sync():
                yield
        elif is_sharded(self.network):
            network = cast(Any, self.network)  # `fully_shard` has added the method
            network.set_requires_gradient_sync(False)
            yield
            network.set_requires_gradient_sync(True)
        else:
            yield

    def prepare_update(self, learning_rate: float) -> None:
        """Set what the coming update reads from memory; not part of a recorded step."""
        if self.average is not None:
            self.average.prepare_update()
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate

    def update(self) -> Tensor:
        """Clip the gradient and update the weights and their average.

        Returns the gradient's norm before clipping.
        """
        self.scaler.unscale_(self.optimizer)
        limit = self.settings.clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()
        self.optimizer.zero_grad(set_to_none=True)
        return unsharded(norm)

    def weights_to_use(self) -> dict[str, Tensor]:
        """The weights to translate or score with: the averaged ones, if there are any."""
        if self.average is not None:
            return self.average.weights
        return weights_of(self.network)

    @contextmanager
    def with_weights_to_use(self) -> Iterator[None]:
        """The network has them in this block."""
        if self.average is None:
            yield
        else:
            with self.average.in_network():
                yield

    def moments(self, prefix: str) -> dict[str, Tensor]:
        """Adam's state, by parameter."""
        moments = {}
        for name, parameter in weights_of(self.network).items():
            for key, value in self.optimizer.state[parameter].items():
                moments[f"{prefix}/{name}/{key}"] = value
        return moments

    def load_moments(self, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        """Take Adam's state from what `moments` gave."""
        groups = self.optimizer.state_dict()["param_groups"]
        state: dict[int, dict[str, Tensor]] = {}
        for number, (name, parameter) in enumerate(weights_of(self.network).items()):
            start = f"{prefix}/{name}/"
            found = {}
            for key, value in tensors.items():
                if key.startswith(start):
                    # The step count is a scalar: it is never sharded.
                    sharded = shard_like(value, parameter) if value.dim() else value
                    found[key.removeprefix(start)] = sharded
            if found:
                state[number] = found
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
