"""How much arithmetic a step is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cbmi.config import Model
from cbmi.model import pack, shift_right
from cbmi.training.networks import new_language_model, new_translator
from cbmi.training.work import Work, language_model_flops, matrix_rate, translator_flops

PIECES = 500


def test_flops_are_those_that_pytorch_counts():
    """One pair, so that nothing is padded; PyTorch counts the hidden half of causal attention too."""
    model = Model(preset="tiny", attention_dropout=0.1)
    source, target = (pack(torch.arange(4, 4 + n), np.array([n])) for n in (17, 23))
    inputs, seed = shift_right(target, 1), torch.tensor([1, 2], dtype=torch.int32)
    work = Work.of(np.array([[17], [23]]))
    hidden_half = model.decoder_layers * 2 * model.width * 23**2
    translator = new_translator(model, (PIECES, PIECES), shared=True)
    language_model = new_language_model(model, PIECES)
    for network, arguments, ours in (
        (translator, (source, inputs, target.ids), translator_flops(work, model, PIECES)),
        (language_model, (inputs, target.ids), language_model_flops(work, model, PIECES)),
    ):
        network.draws.seed = seed
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(*arguments)
        assert counter.get_total_flops() == ours + hidden_half


def test_the_papers_base_model():
    """12 TFLOP for 32,700 tokens a side of 27-token sentences, forward and backward."""
    work = Work.of(np.full((2, 1211), 27))
    assert 3 * translator_flops(work, Model(preset="base"), 32768) == pytest.approx(12.0e12, rel=0.01)
    assert 3 * language_model_flops(work, Model(preset="base"), 32768) == pytest.approx(7.0e12, rel=0.02)


def test_work_adds_up():
    lengths = np.array([[3, 5], [2, 9]])
    assert Work.of(lengths) == Work.of(lengths[:, :1]) + Work.of(lengths[:, 1:])
    assert Work.of(lengths) == Work(8, 11, 34, 85, 51)


def test_a_device_does_something():
    assert matrix_rate(torch.device("cpu"), torch.float32) > 1e8
