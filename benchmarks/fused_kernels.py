"""The fused kernels on a GPU: do they compute the right functions, and how close to memory speed?

    python benchmarks/fused_kernels.py

Inputs are fresh random numbers in bf16: 32768 tokens with the lengths of real sentences, sizes of
`base`. Errors are relative, |found - expected| / |expected|, against the plain twin in float64 on
the same inputs: of the result, and the largest of its gradients. (Rounding to bf16 alone is 2e-3 to
4e-3.) Times are of replays of a CUDA graph. The floor is the time that the fewest bytes (each input
read once, each output written once) take at the measured speed of a large negation. Last, steps of
training with fused kernels and CUDA graphs are compared with steps of PyTorch's own operations.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.experiments.benchmark import (
    SYSTEMS,
    BenchmarkSettings,
    machine,
    new_live_run,
    sentence_lengths,
)
from cbmi.model import Layout, kernels, pack
from cbmi.model.attention import attend_padded, cross_attend, self_attend
from cbmi.model.dropout import Dropout, seed_words
from cbmi.model.head import token_log_probabilities
from cbmi.model.kernels.elementwise import relu_dropout
from cbmi.model.kernels.norm import add_norm
from cbmi.model.runtime import Runtime
from cbmi.objectives import build
from cbmi.training.stage import open_stage

TOKENS = 32768
WIDTH = 512
INNER = 2048
HEADS = 8
PIECES = 32768
JOINT = "cbmi, LM trained jointly"
BF16 = 2  # bytes
TILE = TOKENS * WIDTH * BF16  # bytes of the hidden states


class Case(NamedTuple):
    name: str
    fused: Callable[..., Tensor]
    plain: Callable[..., Tensor]  # its twin, of PyTorch's own operations
    inputs: list[Tensor]
    tiles_forward: int  # moved in the forward pass
    tiles_both: int  # moved in both passes
    tile: int  # bytes


class Comparison(NamedTuple):
    error: float  # of the result
    gradient_error: float  # the largest
    forward: Callable[[], None]  # the forward pass, to be timed
    both: Callable[[], None]  # forward and backward pass, to be timed


def layouts() -> tuple[Layout, Layout]:
    """Of the targets, longest first, and of as many sources, which have other lengths."""
    random = np.random.default_rng(0)
    lengths = sentence_lengths(random, 2000)
    lengths = -np.sort(-lengths[np.cumsum(lengths) <= TOKENS])
    lengths = np.append(lengths, TOKENS - lengths.sum())
    groups = [random.permutation(group) for group in np.array_split(lengths, 20)]
    return layout_of(lengths), layout_of(np.concatenate(groups))


def layout_of(lengths: np.ndarray) -> Layout:
    return pack(np.zeros(TOKENS, np.int64), lengths, "cuda").layout


@torch.no_grad()
def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def compare(case: Case) -> Comparison:
    ours = [x.detach().clone().requires_grad_() for x in case.inputs]
    theirs = [x.detach().double().requires_grad_() for x in case.inputs]
    out = case.fused(*ours)
    reference = case.plain(*theirs)
    grad_out = torch.randn_like(out)
    gradients = torch.autograd.grad(out, ours, grad_out)
    references = torch.autograd.grad(reference, theirs, grad_out.double())
    worst = max(error(a, b) for a, b in zip(gradients, references, strict=True))
    del references, theirs

    def forward() -> None:
        with torch.no_grad():
            case.fused(*ours)

    def both() -> None:
        torch.autograd.grad(case.fused(*ours), ours, grad_out)

    return Comparison(error(out, reference), worst, forward, both)


def microseconds(work: Callable[[], object], repeats: int = 10) -> float:
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            work()
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(5):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / repeats)
    return sorted(times)[2]


def copy_speed() -> float:
    """Bytes per second, read and written."""
    big = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(big)
    return 2 * big.nbytes / microseconds(lambda: torch.neg(big, out=other)) * 1e6


def cases() -> Iterator[Case]:
    runtime = Runtime()
    runtime.seed = torch.tensor(seed_words(987654321), dtype=torch.int32, device="cuda")
    dropout = Dropout(0.1, runtime)
    yield _norm_case(dropout)
    yield _pre_norm_case(dropout)
    yield _relu_case(dropout)
    target, source = layouts()
    yield _self_attention_case("encoder", target, False, dropout)
    yield _self_attention_case("decoder", target, True, dropout)
    yield _cross_attention_case(target, source, dropout)
    yield _head_case()


def _norm_case(dropout: Dropout) -> Case:
    def fused(x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return add_norm(x, y, y_bias, weight, bias, 1e-5, dropout.draw())[1]

    def plain(x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x + dropout(y + y_bias), (WIDTH,), weight, bias)

    vectors = [normal(WIDTH) for _ in range(3)]
    inputs = [normal(TOKENS, WIDTH), normal(TOKENS, WIDTH), *vectors]
    return Case("dropout, residual, norm", fused, plain, inputs, 3, 8, TILE)


def _pre_norm_case(dropout: Dropout) -> Case:
    def fused(x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        total, normed = add_norm(x, y, y_bias, weight, bias, 1e-5, dropout.draw(), keep_sum=True)
        return torch.stack([total, normed])

    def plain(x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        total = x + dropout(y + y_bias)
        return torch.stack([total, F.layer_norm(total, (WIDTH,), weight, bias)])

    vectors = [normal(WIDTH) for _ in range(3)]
    inputs = [normal(TOKENS, WIDTH), normal(TOKENS, WIDTH), *vectors]
    return Case("the same, sum kept", fused, plain, inputs, 4, 10, TILE)


def _relu_case(dropout: Dropout) -> Case:
    def fused(x: Tensor, bias: Tensor) -> Tensor:
        # The kernel works in place: give it a copy.
        return relu_dropout(x * 1, bias, dropout.draw())

    def plain(x: Tensor, bias: Tensor) -> Tensor:
        return dropout(F.relu(x + bias))

    inputs = [normal(TOKENS, INNER), normal(INNER)]
    return Case("bias, ReLU, dropout", fused, plain, inputs, 4, 8, TOKENS * INNER * BF16)


def _self_attention_case(name: str, layout: Layout, causal: bool, dropout: Dropout) -> Case:
    def fused(qkv: Tensor) -> Tensor:
        return self_attend(qkv, layout, causal, dropout)

    def plain(qkv: Tensor) -> Tensor:
        query, key, value = qkv.unbind(1)
        return attend_padded(query, key, value, layout, layout, causal, dropout)

    inputs = [normal(TOKENS, 3, HEADS, WIDTH // HEADS)]
    return Case(f"attention, {name}", fused, plain, inputs, 4, 12, TILE)


def _cross_attention_case(target: Layout, source: Layout, dropout: Dropout) -> Case:
    def fused(query: Tensor, memory: Tensor) -> Tensor:
        return cross_attend(query, memory, target, source, dropout)

    def plain(query: Tensor, memory: Tensor) -> Tensor:
        key, value = memory.unbind(1)
        return attend_padded(query, key, value, target, source, False, dropout)

    size = WIDTH // HEADS
    inputs = [normal(TOKENS, HEADS, size), normal(TOKENS, 2, HEADS, size)]
    return Case("attention, cross", fused, plain, inputs, 4, 12, TILE)


def _head_case() -> Case:
    gold = torch.randint(0, PIECES, (TOKENS,), device="cuda")

    def scores(hidden: Tensor, weight: Tensor) -> Tensor:
        # In float64 the head takes its plain path by itself.
        return torch.stack(token_log_probabilities(hidden, weight, gold)[:2])

    inputs = [normal(TOKENS, WIDTH), normal(PIECES, WIDTH) * 0.05]
    logits = TOKENS * PIECES * BF16
    return Case("output head (with its products)", scores, scores, inputs, 2, 8, logits)


def trajectory(compile: str, steps: int = 8) -> np.ndarray:
    """(steps, 3): loss, language model's loss and gradient norm; both networks train with CBMI."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        settings = BenchmarkSettings(steps=steps, compile=compile)
        live, data = new_live_run(settings, "base", 4096, Path(folder))
        number = list(SYSTEMS).index(JOINT) + 1
        live.begin_stage(number)
        stage = live.config.stages[number]
        with open_stage(live, stage, build(stage.objective, stage.name), data) as session:
            for _ in range(steps):
                session.step()
                sums = session.stepper.meter.read()
                norm = float(session.stepper.grad_norms["grad_norm"])
                tokens = sums["tokens"]
                rows.append((sums["loss"] / tokens, sums["lm_nll"] / tokens, norm))
    return np.array(rows)


def main() -> None:
    assert kernels.available(), "Triton is not installed"
    speed = copy_speed()
    print(f"{machine(torch.device('cuda'))}; a large negation: {speed / 1e12:.2f} TB/s\n")
    heads = ["", "error", "of gradients", "forward, µs", "floor", "both, µs", "floor"]
    print("| " + " | ".join(heads) + " |\n|---" + "|--:" * (len(heads) - 1) + "|")
    for case in cases():
        result = compare(case)
        times = [
            microseconds(result.forward),
            case.tiles_forward * case.tile / speed * 1e6,
            microseconds(result.both),
            case.tiles_both * case.tile / speed * 1e6,
        ]
        errors = f"{result.error:.1e} | {result.gradient_error:.1e}"
        figures = " | ".join(f"{time:,.0f}" for time in times)
        print(f"| {case.name} | {errors} | {figures} |", flush=True)
    worst = np.abs(trajectory("auto") / trajectory("off") - 1).max(axis=0)
    print(
        "\nEight steps of `cbmi`, compile: auto against off, largest relative differences: "
        f"loss {worst[0]:.1e}, language model's loss {worst[1]:.1e}, gradient norm {worst[2]:.1e}."
    )
    assert worst.max() < 0.02, "the fast and the plain steps do not agree"


if __name__ == "__main__":
    main()
