"""The data-parallel processes that share a mini-batch."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")


class Ranks(Protocol):
    """What objectives ask of the processes."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""

    def min(self, values: Tensor) -> Tensor:
        """The elementwise minimum over all ranks."""

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in order of rank."""


class ProcessGroup:
    """The `size` processes of torch.distributed's default group."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        """`rank` and `device`: this process's."""
        self.rank = rank
        self.size = size
        self.device = device

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._reduced(values, distributed.ReduceOp.SUM)

    def min(self, values: Tensor) -> Tensor:
        """The elementwise minimum over all processes."""
        return self._reduced(values, distributed.ReduceOp.MIN)

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        if self.size > 1:
            values = values.clone()
            distributed.all_reduce(values, how)
        return values

    def gather(self, value: T) -> list[T]:
        """Every process's value, in order of rank; tensors come to this process's device."""
        if self.size == 1:
            return [value]
        own: Any = value.cpu() if isinstance(value, Tensor) else value
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, own)
        gathered: list[Any] = []
        for other in values:
            gathered.append(other.to(self.device) if isinstance(other, Tensor) else other)
        return gathered


SINGLE_RANK = ProcessGroup(0, 1, torch.device("cpu"))
