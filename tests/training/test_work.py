"""How much arithmetic a step is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cbmi.config import ModelSettings, RunSettings
from cbmi.model import pack, shift_right
from cbmi.training import work as work_module
from cbmi.training.networks import new_language_model, new_translator
from cbmi.training.work import Work, language_model_flops, matrix_rate, translator_flops

PIECES = 500


def run_settings(model):
    data = {"source": "xx", "target": "yy", "train": ["none"]}
    stages = [{"name": "only", "steps": 1}]
    return RunSettings(output="none", data=data, model=model, stages=stages)


def test_flops_are_those_that_pytorch_counts():
    """One pair, so nothing is padded; PyTorch also counts the masked half of causal attention."""
    model = ModelSettings(preset="tiny", attention_dropout=0.1)
    source, target = (pack(torch.arange(4, 4 + n), np.array([n])) for n in (17, 23))
    inputs = shift_right(target, 1)
    seed = torch.tensor([1, 2], dtype=torch.int32)
    work = Work.of(np.array([[17], [23]]))
    masked_half = model.decoder_layers * 2 * model.width * 23**2
    config = run_settings(model)
    translator = new_translator(config, (PIECES, PIECES))
    language_model = new_language_model(config, PIECES)
    for network, arguments, ours in (
        (translator, (source, inputs, target.ids), translator_flops(work, model, PIECES)),
        (language_model, (inputs, target.ids), language_model_flops(work, model, PIECES)),
    ):
        network.runtime.seed = seed
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(*arguments)
        assert counter.get_total_flops() == ours + masked_half


def test_the_papers_base_model():
    """12 TFLOP for 32,700 tokens per side in sentences of 27, forward and backward."""
    work = Work.of(np.full((2, 1211), 27))
    assert 3 * translator_flops(work, ModelSettings(preset="base"), 32768) == pytest.approx(
        12.0e12, rel=0.01
    )
    assert 3 * language_model_flops(work, ModelSettings(preset="base"), 32768) == pytest.approx(
        7.0e12, rel=0.02
    )


def test_work_adds_up():
    lengths = np.array([[3, 5], [2, 9]])
    assert Work.of(lengths) == Work.of(lengths[:, :1]) + Work.of(lengths[:, 1:])
    assert Work.of(lengths) == Work(8, 11, 34, 85, 51)


def test_the_rate_is_that_of_the_fastest_product(monkeypatch):
    """Products that take 3, 2, 5 … seconds by the clock: the best counts."""
    durations = iter([3.0, 2.0, 5.0] + [4.0] * 17)
    now = 0.0
    calls = 0

    def clock():
        nonlocal now, calls
        calls += 1
        if calls % 2 == 0:  # the second reading of a product
            now += next(durations)
        return now

    monkeypatch.setattr(work_module.time, "perf_counter", clock)
    assert matrix_rate(torch.device("cpu"), torch.float32) == 2 * 512**3 / 2.0
