"""Figures of training: gathered on the device, read every N steps, written as JSON lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.errors import UserError
from cbmi.files import disk_errors, write_atomically
from cbmi.training.world import World

QUANTILES = (5, 25, 50, 75, 95)  # per cent
FIGURES = 16  # sums at most
SAMPLE = 256  # weights at a time that quantiles are taken of
SAMPLES = 512  # such samples at most, out of all that were offered


class Meter:
    """Sums over tokens since the last reading. Nothing is read from the device until `read`, and every number keeps
    its place in memory, so that a graph of the step can add to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.places: dict[str, int] = {}  # of the figures' names in the sums
        self.sums = torch.zeros(FIGURES, dtype=torch.float64, device=world.device)
        self.samples: Tensor | None = None  # (SAMPLES + 1, SAMPLE); the last row is for those that are not kept
        self.taken = torch.zeros((), dtype=torch.long, device=world.device)

    def add(self, **values: Tensor) -> None:
        """Add to the sums of these names; names that were once given together always are."""
        for name in values:
            self.places.setdefault(name, len(self.places))
        first = self.places[next(iter(values))]
        added = torch.stack([value.detach().double() for value in values.values()])
        self.sums[first : first + len(values)] += added

    def sample(self, weights: Tensor, mask: Tensor) -> None:
        """Take note of some of the weights, evenly spaced; masked ones are not counted. When there is no more room,
        chance decides whether they take the place of others (reservoir sampling)."""
        if self.samples is None:
            self.samples = torch.full((SAMPLES + 1, SAMPLE), torch.nan, device=self.world.device)
            self.rows = torch.from_numpy(reservoir(SAMPLES, 1 << 16)).to(self.world.device)
        every = slice(None, None, -(-len(weights) // SAMPLE))
        chosen = torch.where(mask[every], weights.detach()[every].float(), torch.nan)
        row = F.pad(chosen, (0, SAMPLE - len(chosen)), value=torch.nan)
        place = self.rows.index_select(0, (self.taken % len(self.rows))[None])
        self.samples.index_copy_(0, place, row[None])
        self.taken.add_(1)

    def quantiles(self) -> dict[str, float]:
        """Quantiles of the weights noted since the last reading, over all ranks."""
        if self.samples is None:
            return {}
        values = torch.cat(self.world.gather(self.samples[: min(int(self.taken), SAMPLES)])).cpu().double().numpy()
        self.taken.zero_()
        found = np.nanquantile(values, [q / 100 for q in QUANTILES])
        return {f"weight_q{q:02}": float(value) for q, value in zip(QUANTILES, found, strict=True)}

    def read(self) -> dict[str, float]:
        """The sums over all ranks; counting begins anew."""
        values = self.world.sum(self.sums).tolist()
        self.sums.zero_()
        return {name: values[place] for name, place in self.places.items()}


def reservoir(places: int, offers: int) -> np.ndarray:
    """(offers,): where each of so many goes so that at any time all are kept alike often; `places`: nowhere."""
    number = np.arange(offers)
    drawn = np.random.default_rng(0).integers(0, number + 1)
    return np.where(number < places, number, np.minimum(drawn, places))


def figures(sums: dict[str, float]) -> dict[str, float]:
    """What is logged of the sums: means a token, perplexities, spread of CBMI and of the weights."""
    tokens = sums["tokens"]
    result = {"loss": sums["loss"] / tokens, "nll": sums["nll"] / tokens, "ppl": _exp(sums["nll"] / tokens)}
    if "lm_nll" in sums:
        result["lm_ppl"] = _exp(sums["lm_nll"] / tokens)
        result["cbmi_mean"], result["cbmi_std"] = _moments(sums, "cbmi", tokens)
    if "weight" in sums:
        result["weight_mean"], result["weight_std"] = _moments(sums, "weight", tokens)
        result["zero_weights"] = sums["zeros"] / tokens
    return result


def _moments(sums: dict[str, float], name: str, count: float) -> tuple[float, float]:
    mean = sums[name] / count
    return mean, math.sqrt(max(0.0, sums[f"{name}_squared"] / count - mean**2))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


class Log:
    """`log.jsonl`, and TensorBoard if asked for. A resumed run drops what it is about to write again."""

    def __init__(self, path: Path, resume_step: int, tensorboard: bool) -> None:
        if path.exists():
            kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _kept(line, resume_step)]
            write_atomically(path, "".join(line + "\n" for line in kept))
        self.path = path
        with disk_errors(path):
            self.file = open(path, "a", encoding="utf-8")
        self.board = None
        if tensorboard:
            self.board = summary_writer()(str(path.parent / "tensorboard"), purge_step=resume_step + 1)

    def write(self, record: dict[str, Any]) -> None:
        rounded = {key: _round(value) for key, value in record.items()}
        with disk_errors(self.path):
            self.file.write(json.dumps(rounded) + "\n")
            self.file.flush()
        for key, value in record.items() if self.board else ():
            if isinstance(value, int | float) and key != "step":
                self.board.add_scalar(key, value, record["step"])

    def close(self) -> None:
        self.file.close()
        if self.board:
            self.board.close()


def _round(value: Any) -> Any:
    """Eight digits are enough; JSON has no infinity."""
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value


def _kept(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError):
        return False  # the torn last line of a killed process


def summary_writer() -> type:
    """TensorBoard's class that writes."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("log.tensorboard needs the extra 'tensorboard': pip install 'cbmi[tensorboard]'.") from None
    return SummaryWriter
