"""Sampling: the next token is drawn from the model's distribution.

The token with the highest logit + temperature · noise is a draw from softmax(logits / temperature)
if the noise follows the Gumbel distribution. The noise is a function of seed, sentence number,
position and token, as stateless as the masks of `cbmi.model.dropout`. So a sample depends neither
on the batch nor on the device, apart from rounding, and a step can be recorded as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cbmi.errors import UserError
from cbmi.model.dropout import COLUMN, ROW, SITE, mix, seed_words

HOTTEST = 1e6  # temperature; all tokens are then equally likely, as far as float32 can tell


@dataclass(frozen=True)
class Sampling:
    """Draw from softmax(logits / temperature).

    With `top_k`, only the k tokens of the highest logits may be drawn; 0: all of them. Another
    `seed` gives other samples.
    """

    temperature: float = 1.0
    top_k: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.temperature <= HOTTEST:
            raise UserError(
                f"temperature is {self.temperature}, but should be above 0 and at most {HOTTEST:g}."
            )
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}, but should be at least 0.")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed is {self.seed}, but should be between 0 and 2^63 - 1.")


def sample_tokens(
    logits: Tensor,
    numbers: Tensor,
    positions: Tensor,
    sampling: Sampling,
    excluded: tuple[int, ...] = (),
) -> Tensor:
    """One token for each row of logits (rows, vocabulary): (rows,).

    numbers (rows,): the sentence's number; positions (rows,): how many tokens come before;
    excluded: tokens that are never drawn.
    """
    values = logits.to(torch.float32, copy=True)
    for token in excluded:
        values[:, token] = -torch.inf
    vocabulary = values.shape[1]
    tokens = torch.arange(vocabulary, device=values.device)[None]
    if sampling.top_k:
        values, tokens = values.topk(min(sampling.top_k, vocabulary), dim=1)
    noise = gumbel_noise(sampling.seed, numbers, positions, tokens)
    # Noise times temperature, not logits divided by it: this cannot overflow near 0.
    noise = (noise * sampling.temperature).masked_fill(values == -torch.inf, 0.0)
    place = (values + noise).argmax(1, keepdim=True)
    return tokens.expand_as(values).gather(1, place)[:, 0]


def gumbel_noise(seed: int, numbers: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Noise for numbers (rows,), positions (rows,) and tokens (rows or 1, columns)."""
    low, high = seed_words(seed)
    row = mix(numbers.int() * ROW + low)
    row = mix(row ^ (positions.int() * SITE + high))
    bits = mix(row[:, None] + tokens.int() * COLUMN)  # from 0 to 2^31 - 1
    # High noise comes from uniform numbers near 0, where float32 is finest. Neither 0 nor 1 may
    # occur: the noise would be infinite.
    uniform = bits.float().mul_(2**-31).clamp_(2**-32, 1 - 2**-24)
    exponential = uniform.neg_().log1p_().neg_()
    return exponential.log_().neg_()
