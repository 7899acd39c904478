"""Figures of training: summed on the device, read every N steps, written as JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cbmi.config import RunSettings
from cbmi.files import disk_errors, write_atomically
from cbmi.training.records import Figures
from cbmi.training.trackers import Tracking
from cbmi.training.world import World

QUANTILES = (5, 25, 50, 75, 95)  # per cent
FIGURES = 16  # sums at most
SAMPLE = 256  # weights per sample that quantiles are taken of
SAMPLES = 512  # samples kept at most, out of all that were offered

OnRecord = Callable[[Figures], None]


class Meter:
    """Sums over tokens since the last reading.

    Nothing is read from the device until `read`, and every value keeps its place in memory, so that
    a recorded step can add to it.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.index_of: dict[str, int] = {}  # of the figures' names in the sums
        self.sums = torch.zeros(FIGURES, dtype=torch.float64, device=world.device)
        # (SAMPLES + 1, SAMPLE); the last row is for those that are not kept.
        self.samples: Tensor | None = None
        self.rows: Tensor | None = None  # where each sample goes
        self.taken = torch.zeros((), dtype=torch.long, device=world.device)

    def add(self, **values: Tensor) -> None:
        """Add to the sums of these names.

        They lie next to each other in memory, so the same names are always passed together.
        """
        for name in values:
            self.index_of.setdefault(name, len(self.index_of))
        first = self.index_of[next(iter(values))]
        added = torch.stack([value.detach().double() for value in values.values()])
        self.sums[first : first + len(values)] += added

    def sample(self, weights: Tensor, mask: Tensor) -> None:
        """Keep some of the weights, evenly spaced, for quantiles; masked ones do not count.

        When there is no more room, chance decides whether they replace others (reservoir sampling).
        """
        device = self.world.device
        if self.samples is None or self.rows is None:
            self.samples = torch.full((SAMPLES + 1, SAMPLE), torch.nan, device=device)
            self.rows = torch.from_numpy(reservoir(SAMPLES, 1 << 16)).to(device)
        every = slice(None, None, -(-len(weights) // SAMPLE))
        chosen = torch.where(mask[every], weights.detach()[every].float(), torch.nan)
        sample = F.pad(chosen, (0, SAMPLE - len(chosen)), value=torch.nan)
        row = self.rows.index_select(0, (self.taken % len(self.rows))[None])
        self.samples.index_copy_(0, row, sample[None])
        self.taken.add_(1)

    def quantiles(self) -> dict[str, float]:
        """Quantiles of the weights sampled since the last reading, over all ranks."""
        if self.samples is None:
            return {}
        own = self.samples[: min(int(self.taken), SAMPLES)]
        values = torch.cat(self.world.gather(own)).cpu().double().numpy()
        self.taken.zero_()
        found = np.nanquantile(values, [q / 100 for q in QUANTILES])
        return {f"weight_q{q:02}": float(value) for q, value in zip(QUANTILES, found, strict=True)}

    def read(self) -> dict[str, float]:
        """The sums over all ranks; they start again from 0."""
        values = self.world.sum(self.sums).tolist()
        self.sums.zero_()
        return {name: values[place] for name, place in self.index_of.items()}


def reservoir(places: int, offers: int) -> np.ndarray:
    """(offers,): where each of so many offers goes, `places` meaning nowhere.

    At any time every offer so far has been kept with the same probability.
    """
    number = np.arange(offers)
    drawn = np.random.default_rng(0).integers(0, number + 1)
    return np.where(number < places, number, np.minimum(drawn, places))


def figures(sums: dict[str, float]) -> dict[str, float]:
    """What is logged of the sums: means per token, perplexities, spread of CBMI and of weights."""
    tokens = sums["tokens"]
    nll = sums["nll"] / tokens
    result = {"loss": sums["loss"] / tokens, "nll": nll, "ppl": _exp(nll)}
    if "lm_nll" in sums:
        result["lm_ppl"] = _exp(sums["lm_nll"] / tokens)
        result["cbmi_mean"], result["cbmi_std"] = _mean_and_std(sums, "cbmi", tokens)
    if "weight" in sums:
        result["weight_mean"], result["weight_std"] = _mean_and_std(sums, "weight", tokens)
        result["zero_weights"] = sums["zeros"] / tokens
    return result


def _mean_and_std(sums: dict[str, float], name: str, count: float) -> tuple[float, float]:
    mean = sums[name] / count
    variance = sums[f"{name}_squared"] / count - mean**2
    return mean, math.sqrt(max(0.0, variance))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))  # e^710 overflows


class TrainingLog:
    """`log.jsonl`, and trackers if asked for. A resumed run drops what it will write again."""

    def __init__(
        self, path: Path, resume_step: int, config: RunSettings, on_record: OnRecord | None = None
    ) -> None:
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _is_kept(line, resume_step)]
            write_atomically(path, "".join(line + "\n" for line in kept))
        self.path = path
        self.on_record = on_record
        with disk_errors(path):
            self.file = open(path, "a", encoding="utf-8")
        self.tracking: Tracking | None = None
        if config.log.trackers:
            self.tracking = Tracking(path, config.log.trackers, config)

    def write(self, record: Figures) -> None:
        rounded = {key: _rounded(value) for key, value in record.items()}
        with disk_errors(self.path):
            self.file.write(json.dumps(rounded) + "\n")
            self.file.flush()
        if self.tracking:
            self.tracking.log(rounded)
        if self.on_record:
            self.on_record(dict(record))

    def close(self) -> None:
        with disk_errors(self.path):
            self.file.close()
        if self.tracking:
            self.tracking.close()


def _rounded(value: int | float | str) -> int | float | str | None:
    """Eight digits are enough; JSON has no infinity."""
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value


def _is_kept(line: str, step: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):
        return False  # the torn last line of a killed process
