"""The fused kernels on a GPU: are they the functions that they should be, and how far from the memory's speed?

    python benchmarks/fused_kernels.py

Fresh random inputs in bf16, 32768 tokens with the lengths of real sentences, sizes of `base`. Errors are relative,
|found - exact| / |exact|, against the plain twin in float64 on the same inputs: of the result, and the largest of its
gradients; bf16's own rounding is 2e-3 to 4e-3. Times are of replays of a CUDA graph. The floor is the time that the
fewest bytes (each input read once, each output written once) take at the measured speed of a large negation. At last,
steps of training with fused kernels and CUDA graphs beside steps with PyTorch's own operations: the same losses?
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.experiments.benchmark import SYSTEMS, Options, machine, new_trainer, sentence_lengths
from cbmi.model import kernels, pack
from cbmi.model.attention import attend, attend_padded
from cbmi.model.dropout import Draws, Dropout, seed_words
from cbmi.model.head import token_log_probabilities
from cbmi.model.kernels.elementwise import relu_dropout
from cbmi.model.kernels.norm import add_norm

TOKENS, WIDTH, INNER, HEADS, PIECES = 32768, 512, 2048, 8, 32768


def layouts():
    """Of targets, longest first, and of their sources: as many sentences, of other lengths."""
    random = np.random.default_rng(0)
    lengths = sentence_lengths(random, 2000)
    lengths = -np.sort(-lengths[np.cumsum(lengths) <= TOKENS])
    lengths = np.append(lengths, TOKENS - lengths.sum())
    both = (lengths, np.concatenate([random.permutation(run) for run in np.array_split(lengths, 20)]))
    return [pack(np.zeros(TOKENS, np.int64), sizes, "cuda").layout for sizes in both]


@torch.no_grad()
def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def compare(fused: Callable, exact: Callable, inputs: list[Tensor]) -> tuple[float, float, Callable, Callable]:
    """Errors of result and gradients; and the forward and the backward pass to be timed."""
    ours = [x.detach().clone().requires_grad_() for x in inputs]
    theirs = [x.detach().double().requires_grad_() for x in inputs]
    out, reference = fused(*ours), exact(*theirs)
    slope = torch.randn_like(out)
    gradients = torch.autograd.grad(out, ours, slope)
    references = torch.autograd.grad(reference, theirs, slope.double())
    worst = max(error(a, b) for a, b in zip(gradients, references, strict=True))
    del references, theirs

    def forward() -> None:
        with torch.no_grad():
            fused(*ours)

    def both() -> None:
        torch.autograd.grad(fused(*ours), ours, slope)

    return error(out, reference), worst, forward, both


def microseconds(work: Callable[[], None], repeats: int = 10) -> float:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(5):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / repeats)
    return sorted(times)[2]


def copy_speed() -> float:
    """Bytes a second, read and written."""
    big = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(big)
    return 2 * big.nbytes / microseconds(lambda: torch.neg(big, out=other)) * 1e6


def cases():
    """Name, fused function, twin, inputs, bytes of the forward pass, bytes of forward and backward pass."""
    normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    draws = Draws()
    draws.seed = torch.tensor(seed_words(987654321), dtype=torch.int32, device="cuda")
    dropout = Dropout(0.1, draws)
    tile, wide = TOKENS * WIDTH * 2, TOKENS * INNER * 2

    def norm(x, y, y_bias, weight, bias):
        return add_norm(x, y, y_bias, weight, bias, 1e-5, *dropout.draw())

    def plain_norm(x, y, y_bias, weight, bias):
        return F.layer_norm(x + dropout(y + y_bias), (WIDTH,), weight, bias)

    vectors = [normal(WIDTH) for _ in range(3)]
    yield "dropout, residual, norm", norm, plain_norm, [normal(TOKENS, WIDTH) for _ in range(2)] + vectors, 3, 8, tile
    yield (
        "bias, ReLU, dropout",
        lambda x, bias: relu_dropout(x * 1, bias, *dropout.draw()),
        lambda x, bias: dropout(F.relu(x + bias)),
        [normal(TOKENS, INNER), normal(INNER)], 4, 8, wide,
    )  # fmt: skip
    target, source = layouts()
    for name, causal, keys in (("encoder", False, target), ("decoder", True, target), ("cross", False, source)):
        if name == "cross":
            inputs = [normal(TOKENS, HEADS, WIDTH // HEADS), normal(TOKENS, 2, HEADS, WIDTH // HEADS)]
        else:
            inputs = [normal(TOKENS, 3, HEADS, WIDTH // HEADS)]

        def fused(first, second=None, causal=causal, keys=keys):
            return attend(first, second, target, keys, causal, dropout)

        def plain(first, second=None, causal=causal, keys=keys):
            parts = first.unbind(1) if second is None else (first, *second.unbind(1))
            return attend_padded(*parts, target, keys, causal, dropout)

        yield f"attention, {name}", fused, plain, inputs, 4, 12, tile
    gold = torch.randint(0, PIECES, (TOKENS,), device="cuda")
    yield (
        "output head (with its products)",
        lambda h, w: torch.stack(token_log_probabilities(h, w, gold)),
        lambda h, w: torch.stack(token_log_probabilities(h, w, gold)),
        [normal(TOKENS, WIDTH), normal(PIECES, WIDTH) * 0.05], 2, 8, TOKENS * PIECES * 2,
    )  # fmt: skip


def course(compile: str, steps: int = 8) -> list[tuple[float, float, float]]:
    """Loss, language model's loss and gradient norm of steps that train both networks with CBMI, dropout on."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = new_trainer(Options(steps=steps, compile=compile), "base", 4096, Path(folder))
        number = list(SYSTEMS).index("cbmi, LM trained along") + 1
        trainer.live.begin_stage(number)
        result = []
        with trainer.running(trainer.config.stages[number], trainer.objectives[number]) as running:
            for _ in range(steps):
                trainer.step(running)
                sums = running.stepper.meter.read()
                norm = float(running.stepper.norms["grad_norm"])
                result.append((sums["loss"] / sums["tokens"], sums["lm_nll"] / sums["tokens"], norm))
    return result


def main() -> None:
    assert kernels.available(), "Triton is not installed"
    speed = copy_speed()
    print(f"{machine(torch.device('cuda'))}; a large negation: {speed / 1e12:.2f} TB/s\n")
    heads = ["", "error", "of gradients", "forward, µs", "floor", "both, µs", "floor"]
    print("| " + " | ".join(heads) + " |\n|---" + "|--:" * (len(heads) - 1) + "|")
    for name, fused, plain, inputs, once, twice, size in cases():
        found, gradients, forward, both = compare(fused, plain, inputs)
        times = [microseconds(forward), once * size / speed * 1e6, microseconds(both), twice * size / speed * 1e6]
        figures = " | ".join(f"{time:,.0f}" for time in times)
        print(f"| {name} | {found:.1e} | {gradients:.1e} | {figures} |", flush=True)
    ours, plain = np.array(course("auto")), np.array(course("off"))
    worst = np.abs(ours / plain - 1).max(axis=0)
    print(f"\nEight steps of `cbmi`, compile: auto against off, largest relative differences: loss {worst[0]:.1e}, ")
    print(f"language model's loss {worst[1]:.1e}, gradient norm {worst[2]:.1e}.")
    assert worst.max() < 0.02, "the fast and the plain steps do not agree"


if __name__ == "__main__":
    main()
