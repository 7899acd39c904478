"""The processes that share a training run: one, or as many as torchrun started."""

from __future__ import annotations

import gc
import os
import platform
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from cbmi.config import RANK_TIMEOUT
from cbmi.errors import UserError
from cbmi.objectives.ranks import ProcessGroup
from cbmi.training.heartbeat import heartbeat

# The others wait while the first process prepares the data; a rank that hangs is noticed by
# `heartbeat` long before.
TIMEOUT = timedelta(hours=12)
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class World(ProcessGroup):
    """This process's place among `size` processes, and what they do together."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        super().__init__(rank, size, device)
        self.first = rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(int(flag), device=self.device)))

    def barrier(self) -> None:
        """Wait until every process has come here."""
        if self.size > 1:
            # .item() makes the host wait: with NCCL an all_reduce is only queued on the GPU.
            self.sum(torch.zeros(1, device=self.device)).item()


@contextmanager
def join_world(device: str, patience: float = RANK_TIMEOUT) -> Iterator[World]:
    """Join the processes that torchrun started, or be the only one.

    `patience`: seconds after which a rank that hangs ends the run.
    """
    rank = int(os.environ.get("RANK", 0))
    size = int(os.environ.get("WORLD_SIZE", 1))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", 0)))
    with _current_device(chosen):
        if size == 1:
            yield World(0, 1, chosen)
        else:
            with _process_group(rank, size, chosen), heartbeat(rank, size, patience):
                yield World(rank, size, chosen)


def _current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Streams, graphs and NCCL go by the current device; the caller's is restored afterwards."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _process_group(rank: int, size: int, device: torch.device) -> Iterator[None]:
    if distributed.is_initialized():
        raise UserError(
            "torch.distributed is already initialised in this process; call cbmi.train before "
            "that, or in a process of its own."
        )
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(
        backend, store=_store(size), rank=rank, world_size=size, timeout=TIMEOUT
    )
    try:
        yield
    finally:
        gc.collect()  # data-parallel wrappers are freed before the group that they use
        distributed.destroy_process_group()


def _store(size: int) -> Store:
    """Where the processes find each other.

    After a restart by torchrun, what the dead processes left there would mislead the new ones, so
    on one machine each restart has a prefix of its own. Several machines need not agree on the
    count.
    """
    store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
    one_machine = int(os.environ.get("LOCAL_WORLD_SIZE", 0)) == size
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0) if one_machine else 0
    return PrefixStore(f"restart {restart}", store)


def is_first_process() -> bool:
    """Whether this process is torchrun's first, or the only one."""
    return int(os.environ.get("WORLD_SIZE", 1)) == 1 or int(os.environ.get("RANK", 0)) == 0


def choose_device(setting: str, local_rank: int = 0) -> torch.device:
    """`auto` takes a GPU if there is one; with torchrun each process takes its own."""
    if setting == "auto":
        setting = "cuda" if torch.cuda.is_available() else "cpu"
    if setting.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            f"device: {setting} was asked for, but PyTorch sees no GPU here; choose cpu."
        )
    if setting == "cuda":
        setting = f"cuda:{local_rank}"
    if not re.fullmatch(r"cpu|cuda:\d+", setting):
        raise UserError(f"device: '{setting}' is not one of auto, cpu, cuda and cuda:N.")
    device = torch.device(setting)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise UserError(
            f"device: there is no {setting}; PyTorch sees {torch.cuda.device_count()} GPUs."
        )
    return device


def device_name(device: torch.device) -> str:
    """What a reader knows the device by, such as NVIDIA H200."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:  # Linux; elsewhere the kind of processor has to do
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def choose_precision(setting: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 on a GPU that has it, float16 on an older one, float32 on a CPU."""
    if setting == "auto":
        if device.type == "cpu":
            return torch.float32
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bfloat16 else torch.float16
    if setting not in PRECISIONS:
        raise UserError(f"precision: '{setting}' is not one of auto, fp32, bf16 and fp16.")
    return PRECISIONS[setting]
