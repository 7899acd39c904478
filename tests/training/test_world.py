"""The processes that share a run, and the devices and precisions that they choose."""

from __future__ import annotations

import pytest
import torch
from tasks import WORLD, two_ranks

from cbmi.errors import UserError
from cbmi.training.world import choose_device, choose_precision, is_first_process, join_world

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


def test_one_process_is_its_own_sum_and_minimum():
    values = torch.tensor([3.0, -1.0])
    assert torch.equal(WORLD.sum(values), values)
    assert torch.equal(WORLD.min(values), values)


def test_one_process_is_all_there_are():
    assert WORLD.first
    assert WORLD.any(True) is True
    assert WORLD.any(False) is False
    tensor = torch.ones(2)
    (gathered,) = WORLD.gather(tensor)
    assert gathered is tensor
    assert WORLD.gather({"a": 1}) == [{"a": 1}]
    WORLD.barrier()


def test_without_torchrun_there_is_one_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with join_world("cpu") as world:
        assert (world.rank, world.size, world.first) == (0, 1, True)
        assert world.device == CPU
    assert not torch.distributed.is_initialized()
    assert is_first_process()


@pytest.mark.parametrize(
    ("size", "rank", "expected"), [("2", "0", True), ("2", "1", False), ("1", "1", True)]
)
def test_the_first_process_is_rank_0_or_the_only_one(monkeypatch, size, rank, expected):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setenv("RANK", rank)
    assert is_first_process() is expected


def test_a_process_group_of_the_callers_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(UserError, match="already initialised"), join_world("cpu"):
        pass


RANKS = """
import torch
from cbmi.training.world import join_world

with join_world("cpu") as world:
    rank = world.rank
    assert world.size == 2
    assert world.first == (rank == 0)

    values = torch.tensor([1.0, 10.0]) * (rank + 1)
    assert world.sum(values).tolist() == [3.0, 30.0]
    assert world.min(values).tolist() == [1.0, 10.0]
    assert world.min(torch.tensor([rank, -rank])).tolist() == [0, -1]
    assert values.tolist() == [rank + 1.0, 10.0 * (rank + 1)]  # left as they were

    assert world.any(rank == 1) is True
    assert world.any(False) is False

    # Tensors need not have one shape; other objects come as they are.
    gathered = world.gather(torch.full((rank + 1,), float(rank)))
    assert [tensor.tolist() for tensor in gathered] == [[0.0], [1.0, 1.0]]
    assert world.gather({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert world.gather(None if rank else "best") == ["best", None]
    world.barrier()
assert not torch.distributed.is_initialized()
"""


@pytest.mark.slow
def test_two_processes_compute_together(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    result = two_ranks(script)
    assert result.returncode == 0, result.stderr.decode()


@pytest.fixture
def gpus(monkeypatch):
    """As if PyTorch saw this many GPUs."""

    def see(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


def test_without_a_gpu_auto_is_the_cpu(gpus):
    gpus(0)
    assert choose_device("auto") == CPU
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize("setting", ["cuda", "cuda:0"])
def test_a_gpu_that_is_not_there_is_refused(gpus, setting):
    gpus(0)
    with pytest.raises(UserError, match=setting):
        choose_device(setting)


def test_each_process_takes_its_own_gpu(gpus):
    gpus(2)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("auto", local_rank=1) == torch.device("cuda", 1)
    assert choose_device("cuda", local_rank=1) == torch.device("cuda", 1)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cpu", local_rank=1) == CPU


def test_more_processes_than_gpus_are_refused(gpus):
    gpus(2)
    with pytest.raises(UserError, match="cuda:2"):
        choose_device("cuda", local_rank=2)
    with pytest.raises(UserError, match="cuda:7"):
        choose_device("cuda:7")


@pytest.mark.parametrize("setting", ["tpu", "cuda:", "cuda:x", "cpu:0", ""])
def test_other_devices_are_refused(gpus, setting):
    gpus(1)
    with pytest.raises(UserError, match="device"):
        choose_device(setting)


def test_precision_on_a_cpu_is_single_unless_asked_for():
    assert choose_precision("auto", CPU) == torch.float32
    assert choose_precision("fp32", GPU) == torch.float32
    assert choose_precision("bf16", CPU) == torch.bfloat16
    assert choose_precision("fp16", CPU) == torch.float16


def test_other_precisions_are_refused():
    with pytest.raises(UserError, match="fp8"):
        choose_precision("fp8", CPU)


@pytest.mark.parametrize(("has_it", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_precision_on_a_gpu_is_bfloat16_if_it_has_it(monkeypatch, has_it, expected):
    """An emulated bfloat16 does not count: it is slower than float16."""

    def supported(including_emulation: bool = True) -> bool:
        return has_it or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert choose_precision("auto", GPU) == expected
