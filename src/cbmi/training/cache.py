"""`language_model: cached`: the resting language model's log p of every target token, computed once.

run/cache/STAGE/log_p        one number a target token, by memory map; NaN where it is still to be computed, so that
                             work that was broken off goes on
run/cache/STAGE/meta.json    what the numbers belong to (corpus, vocabulary, the model's weights) and their SHA-256:
                             it is written when they are complete
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cbmi.data.corpus import Corpus, map_array, new_array
from cbmi.errors import UserError
from cbmi.files import disk_errors, sha256, to_json, write_atomically
from cbmi.model import LanguageModel
from cbmi.model.distribution import keep_states
from cbmi.model.head import token_log_probabilities
from cbmi.progress import bar, say
from cbmi.training.checkpoint import weights_of
from cbmi.training.loader import Batch, Loader, Recipe
from cbmi.training.world import World

BATCHES_BETWEEN_FLUSHES = 200


class ScoreCache:
    """The folder of one stage's cache."""

    def __init__(self, folder: Path, corpus: Corpus, dtype: str) -> None:
        self.folder, self.file, self.meta = folder, folder / "log_p", folder / "meta.json"
        self.corpus, self.dtype, self.count = corpus, np.dtype(dtype), len(corpus.target.ids)

    def identity(self, model: LanguageModel, vocabulary: Path, precision: torch.dtype) -> dict[str, Any]:
        """What the numbers depend on."""
        corpus = [sha256(self.corpus.folder / f"target.{part}") for part in ("ids", "offsets")]
        return {
            "corpus": corpus,
            "vocabulary": sha256(vocabulary),
            "language_model": weights_digest(model),
            "precision": str(precision).removeprefix("torch."),
            "dtype": self.dtype.name,
        }

    def complete(self, identity: dict[str, Any]) -> bool:
        """Whether all numbers are there, and are those of this identity; says why not, where that is a surprise."""
        if not self.meta.exists():
            return False
        try:
            known = json.loads(self.meta.read_text(encoding="utf-8"))
            changed = [key for key, value in identity.items() if known["identity"][key] != value]
            if changed:
                say(f"{self.folder}: made with another {', '.join(changed)}; it is made anew.")
            elif known["sha256"] != sha256(self.file):
                say(f"{self.file} is damaged; it is made anew.")
            else:
                return True
        except (OSError, ValueError, KeyError, TypeError):
            say(f"{self.meta} is damaged; the cache is made anew.")
        self.meta.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)
        return False

    def begin(self, identity: dict[str, Any]) -> None:
        """Make room for the numbers, or keep those that an interrupted process has left for the same identity."""
        begun, content = self.folder / "begun.json", to_json(identity)
        size = self.count * self.dtype.itemsize
        same = begun.exists() and begun.read_text(encoding="utf-8") == content
        if same and self.file.exists() and self.file.stat().st_size == size:
            return
        with disk_errors(self.file):
            self.folder.mkdir(parents=True, exist_ok=True)
            begun.unlink(missing_ok=True)
        new_array(self.file, self.dtype, self.count, np.nan).flush()
        write_atomically(begun, content)

    def open(self, mode: str = "r") -> np.ndarray:
        if mode == "r":
            return map_array(self.file, self.dtype, self.count)
        return np.memmap(self.file, dtype=self.dtype, mode=mode, shape=(self.count,))

    def finish(self, identity: dict[str, Any], seconds: float) -> None:
        if np.isnan(self.open()).any():
            raise UserError(
                f"{self.file}: the language model gives tokens no probability; its weights are no numbers."
            )
        write_atomically(self.meta, to_json({"identity": identity, "sha256": sha256(self.file), "seconds": seconds}))
        (self.folder / "begun.json").unlink(missing_ok=True)
        size = self.count * self.dtype.itemsize / 1e6
        say(f"Scored {self.count:,} target tokens by the language model: {self.file} ({size:,.1f} MB)")


def weights_digest(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(weights_of(network).items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Interrupted(Exception):
    """Asked to stop before all was computed; what was is kept."""


@dataclass(frozen=True)
class Scorer:
    """The language model, and how it computes."""

    model: LanguageModel
    precision: torch.dtype
    world: World
    asked_to_stop: Callable[[], bool]

    @torch.inference_mode()
    def scores(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Places and log p of this rank's target tokens."""
        places, values, device = [], [], self.world.device
        for parcel in batch.parts:
            part = parcel.part(device)
            with torch.autocast(device.type, self.precision, enabled=self.precision != torch.float32):
                states = self.model(part.inputs, part.target.ids, head=keep_states)
                log_p = token_log_probabilities(*states, part.target.ids)[0]
            places.append(part.place[part.mask].cpu().numpy())
            values.append(log_p[part.mask].float().cpu().numpy())
        return np.concatenate(places), np.concatenate(values)


def fill_cache(cache: ScoreCache, identity: dict[str, Any], scorer: Scorer, recipe: Recipe, epoch: int) -> np.ndarray:
    """The numbers, computed where they are missing: over the mini-batches of an epoch, shared among the ranks."""
    world = scorer.world
    complete = world.gather(cache.complete(identity) if world.first else None)[0]
    if not complete:
        begun = time.monotonic()
        if world.first:
            cache.begin(identity)
        world.barrier()
        _compute(cache, scorer, recipe, epoch)
        if world.first:
            cache.finish(identity, time.monotonic() - begun)
        world.barrier()
    return cache.open()


def _compute(cache: ScoreCache, scorer: Scorer, recipe: Recipe, epoch: int) -> None:
    before, world = cache.open(), scorer.world
    unknown = np.logical_or.reduceat(np.isnan(before), cache.corpus.target.offsets[:-1])  # of each pair
    plan = recipe.plan(epoch)
    steps = [plan[number] for number in range(len(plan))]
    missing = [pairs for pairs in steps if unknown[pairs].any()]
    array = cache.open("r+") if world.first else None
    known = cache.count - int(sum(recipe.lengths[1][pairs].sum() for pairs in missing))
    title = "Scoring by the language model"
    with (
        bar(title, cache.count, "tokens", known, not world.first) as progress,
        Loader(recipe.batch(pairs, 0) for pairs in missing) as loader,
    ):
        for done in range(1, len(missing) + 1):
            batch = loader.next()
            stopping = scorer.asked_to_stop()
            shares = world.gather(scorer.scores(batch))
            for places, values in shares if world.first else ():
                array[places] = values
            if world.first and (done % BATCHES_BETWEEN_FLUSHES == 0 or done == len(missing) or stopping):
                array.flush()
            progress.advance(batch.work.target)
            if stopping:
                raise Interrupted
