"""Figures of training: gathered on the device, read every N steps, written as JSON lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbmi.errors import UserError
from cbmi.files import disk_errors, write_atomically
from cbmi.training.world import World

QUANTILES = (5, 25, 50, 75, 95)  # per cent
SAMPLE = 256  # weights at a time that quantiles are taken of
SAMPLES = 1024  # such samples at most; then every other one is dropped, and of the coming ones too


class Meter:
    """Sums over tokens since the last reading. Nothing is read from the device until `read`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sums: dict[str, Tensor] = {}
        self.sampled: list[Tensor] = []
        self.offered, self.kept_every = 0, 1

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            value = value.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def sample(self, weights: Tensor, mask: Tensor) -> None:
        """Take note of some of the weights, evenly spaced; masked ones are not counted."""
        self.offered += 1
        if self.offered % self.kept_every:
            return
        every = slice(None, None, -(-len(weights) // SAMPLE))
        self.sampled.append(torch.where(mask[every], weights.detach()[every], torch.nan))
        if len(self.sampled) == SAMPLES:
            self.sampled, self.kept_every = self.sampled[1::2], 2 * self.kept_every

    def quantiles(self) -> dict[str, float]:
        """Quantiles of the weights noted since the last reading, over all ranks."""
        if not self.sampled:
            return {}
        values = torch.cat(self.world.gather(torch.cat(self.sampled))).double().cpu().numpy()
        self.sampled, self.offered, self.kept_every = [], 0, 1
        found = np.nanquantile(values, [q / 100 for q in QUANTILES])
        return {f"weight_q{q:02}": float(value) for q, value in zip(QUANTILES, found, strict=True)}

    def loss(self) -> float:
        """This rank's sum of losses so far, read from the device; 0 if nothing was added."""
        return float(self.sums.get("loss", 0.0))

    def read(self) -> dict[str, float]:
        """The sums over all ranks; counting begins anew."""
        names = sorted(self.sums)
        values = self.world.sum(torch.stack([self.sums[name] for name in names])).tolist()
        self.sums = {}
        return dict(zip(names, values, strict=True))


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
        self.board = _summary_writer(path.parent / "tensorboard", resume_step) if tensorboard else None

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


def _summary_writer(folder: Path, step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("log.tensorboard needs the extra 'tensorboard': pip install 'cbmi[tensorboard]'.") from None
    return SummaryWriter(str(folder), purge_step=step + 1)
