"""Is the GPU's variable-length attention the same function as the plain padded one?

    python benchmarks/attention.py

Fresh random inputs; relative errors of outputs and gradients against float64, and the whole networks' scores.
"""

from __future__ import annotations

import numpy as np
import torch

from cbmi.model import LanguageModel, Translator, pack, shift_right
from cbmi.model.attention import attend_flash, attend_padded
from cbmi.model.layers import Shape


def packed(sentences: int, seed: int, longest: int = 60):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, sentences)
    return pack(random.integers(4, 1000, lengths.sum()), lengths, "cuda")


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


def check_attention(causal: bool, seed: int) -> list[float]:
    torch.manual_seed(seed)
    queries = packed(50, seed).layout
    keys = queries if causal else packed(50, seed + 100).layout
    shapes = (len(queries.sentence), len(keys.sentence), len(keys.sentence))
    exact = [torch.randn(n, 8, 64, device="cuda", dtype=torch.float64, requires_grad=True) for n in shapes]
    slope = torch.randn(shapes[0], 8, 64, device="cuda", dtype=torch.float64)
    reference = attend_padded(*exact, queries, keys, causal, 0.0)
    gradients = torch.autograd.grad((reference * slope).sum(), exact)
    half = [x.detach().bfloat16().requires_grad_() for x in exact]
    found = attend_flash(*half, queries, keys, causal, 0.0)
    found_gradients = torch.autograd.grad((found * slope.bfloat16()).sum(), half)
    return [error(a, b) for a, b in zip((found, *found_gradients), (reference, *gradients), strict=True)]


def check_networks(seed: int) -> list[float]:
    torch.manual_seed(seed)
    shape = Shape(256, 1024, 4, 3, 3)
    translator = Translator(shape, 1000, 1000, True).cuda().eval()
    language_model = LanguageModel(shape, 1000).cuda().eval()
    source, target = packed(40, seed), packed(40, seed + 1)
    inputs = shift_right(target, 1)
    errors = []
    for network, arguments in ((translator, (source, inputs, target.ids)), (language_model, (inputs, target.ids))):
        exact = network.double()(*arguments)[0].detach()
        with torch.autocast("cuda", torch.bfloat16):
            found = network.float()(*arguments)[0]
        errors.append(error(found, exact))
    return errors


def main() -> None:
    worst = 0.0
    for seed in range(3):
        for causal in (True, False):
            errors = check_attention(causal, seed)
            worst = max(worst, *errors)
            print(f"attention causal={causal} seed={seed}: " + ", ".join(f"{e:.1e}" for e in errors))
        errors = check_networks(seed)
        worst = max(worst, *errors)
        print(f"networks seed={seed}: " + ", ".join(f"{e:.1e}" for e in errors))
    assert worst < 2e-2, "the two ways differ by more than bfloat16's rounding"


if __name__ == "__main__":
    main()
