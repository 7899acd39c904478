"""`language_model: cached`: the frozen language model's log p of every target token, computed once.

run/cache/STAGE/log_p        one value per target token, by memory map; NaN where it is still to be
                             computed, so that interrupted work can be resumed
run/cache/STAGE/meta.json    what the values belong to (corpus, vocabulary, the model's weights) and
                             their SHA-256; written when they are complete
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from cbmi.data.corpus import Corpus, map_array, new_array
from cbmi.digests import sha256
from cbmi.errors import UserError
from cbmi.files import disk_errors, to_json, write_atomically
from cbmi.model import LanguageModel
from cbmi.model.distribution import States, keep_states
from cbmi.progress import bar, say
from cbmi.training.batching.builder import BatchBuilder
from cbmi.training.batching.loader import Loader
from cbmi.training.batching.micro_batch import PinnedBatch
from cbmi.training.checkpoint import weights_of
from cbmi.training.world import World

BATCHES_BETWEEN_FLUSHES = 200
Identity = dict[str, Any]  # what the values depend on, as JSON


class ScoreCache:
    """The folder of one stage's cache."""

    def __init__(self, folder: Path, corpus: Corpus, dtype: str) -> None:
        self.folder = folder
        self.file = folder / "log_p"
        self.meta = folder / "meta.json"
        self.corpus = corpus
        self.dtype = np.dtype(dtype)
        self.count = len(corpus.target.ids)

    def identity(self, model: LanguageModel, vocabulary: Path, precision: torch.dtype) -> Identity:
        """What the values depend on."""
        return {
            "corpus": [
                sha256(self.corpus.target.ids_file),
                sha256(self.corpus.target.offsets_file),
            ],
            "vocabulary": sha256(vocabulary),
            "language_model": weights_digest(model),
            "precision": str(precision).removeprefix("torch."),
            "dtype": self.dtype.name,
        }

    def complete(self, identity: Identity) -> bool:
        """Whether all values exist, and are those of this identity; says why not, if unexpected."""
        if not self.meta.exists():
            return False
        try:
            known = json.loads(self.meta.read_text(encoding="utf-8"))
            changed = [key for key, value in identity.items() if known["identity"][key] != value]
            if changed:
                say(f"{self.folder}: made with another {', '.join(changed)}; it is made again.")
            elif known["sha256"] != sha256(self.file):
                say(f"{self.file} is damaged; it is made again.")
            else:
                return True
        except (OSError, ValueError, KeyError, TypeError):
            say(f"{self.meta} is damaged; the cache is made again.")
        self.meta.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)
        return False

    def begin(self, identity: Identity) -> None:
        """Make room for the values, or keep those that an interrupted process has left."""
        begun = self.folder / "begun.json"
        content = to_json(identity)
        size = self.count * self.dtype.itemsize
        same_identity = begun.is_file() and begun.read_bytes() == content.encode()
        if same_identity and self.file.exists() and self.file.stat().st_size == size:
            return
        with disk_errors(self.file):
            self.folder.mkdir(parents=True, exist_ok=True)
            begun.unlink(missing_ok=True)
        new_array(self.file, self.dtype, self.count, np.nan).flush()
        write_atomically(begun, content)

    def read(self) -> np.ndarray:
        return map_array(self.file, self.dtype, self.count)

    def open_for_writing(self) -> np.memmap:
        mode: Literal["r+"] = "r+"
        return np.memmap(self.file, dtype=self.dtype, mode=mode, shape=(self.count,))

    def finish(self, identity: Identity, seconds: float) -> None:
        if np.isnan(self.read()).any():
            raise UserError(
                f"{self.file}: the language model gives tokens no probability; its weights are NaN "
                "or infinite."
            )
        meta = {"identity": identity, "sha256": sha256(self.file), "seconds": seconds}
        write_atomically(self.meta, to_json(meta))
        (self.folder / "begun.json").unlink(missing_ok=True)
        megabytes = self.count * self.dtype.itemsize / 1e6
        say(
            f"Scored {self.count:,} target tokens by the language model: {self.file} "
            f"({megabytes:,.1f} MB)"
        )


def weights_digest(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(weights_of(network).items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Interrupted(Exception):
    """Asked to stop before everything was computed; what was is kept."""


@dataclass(frozen=True)
class LanguageModelScorer:
    """The language model, and how it computes."""

    model: LanguageModel
    precision: torch.dtype
    world: World
    asked_to_stop: Callable[[], bool]

    @torch.inference_mode()
    def scores(self, pinned_batches: list[PinnedBatch]) -> tuple[np.ndarray, np.ndarray]:
        """Corpus indices and log p of this rank's target tokens."""
        device = self.world.device
        half = self.precision != torch.float32
        places = []
        values = []
        for pinned in pinned_batches:
            micro_batch = pinned.to_device(device)
            gold = micro_batch.target.ids
            with torch.autocast(device.type, self.precision, enabled=half):
                states: States = self.model(micro_batch.inputs, gold, head=keep_states)
                log_p = states.log_probabilities(gold)
            mask = micro_batch.mask
            places.append(micro_batch.corpus_index[mask].cpu().numpy())
            values.append(log_p[mask].float().cpu().numpy())
        return np.concatenate(places), np.concatenate(values)


def fill_cache(
    cache: ScoreCache,
    identity: Identity,
    scorer: LanguageModelScorer,
    builder: BatchBuilder,
    epoch: int,
) -> np.ndarray:
    """The values, computed where they are missing.

    They are computed over the batches of an epoch, shared among the ranks. `builder` builds batches
    of the cache's corpus alone.
    """
    world = scorer.world
    complete = world.gather(world.first and cache.complete(identity))[0]
    if not complete:
        begun = time.monotonic()
        if world.first:
            cache.begin(identity)
        world.barrier()
        _compute(cache, scorer, builder, epoch)
        if world.first:
            cache.finish(identity, time.monotonic() - begun)
        world.barrier()
    return cache.read()


def _compute(
    cache: ScoreCache, scorer: LanguageModelScorer, builder: BatchBuilder, epoch: int
) -> None:
    world = scorer.world
    missing = _batches_to_compute(cache, builder, epoch)
    (segmentation,) = builder.segmentations
    target_lengths = segmentation.lengths[1]
    tokens = [int(target_lengths[pairs].sum()) for pairs in missing]
    array = cache.open_for_writing() if world.first else None
    with (
        bar(
            "Scoring by the language model",
            cache.count,
            "tokens",
            done=cache.count - sum(tokens),
            quiet=not world.first,
        ) as progress,
        # No step draws anything at random here: its number does not matter.
        Loader(builder.micro_batches(segmentation, pairs, step=0) for pairs in missing) as loader,
    ):
        for number in range(len(missing)):
            own_batches = loader.next()
            stopping = scorer.asked_to_stop()
            everyone = world.gather(scorer.scores(own_batches))
            if array is not None:
                for places, values in everyone:
                    array[places] = values
                is_last = number == len(missing) - 1
                if is_last or stopping or (number + 1) % BATCHES_BETWEEN_FLUSHES == 0:
                    array.flush()
            progress.advance(tokens[number])
            if stopping:
                raise Interrupted


def _batches_to_compute(cache: ScoreCache, builder: BatchBuilder, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch with a pair that lacks a value."""
    missing_value = np.isnan(cache.read())
    pair_incomplete = np.logical_or.reduceat(missing_value, cache.corpus.target.offsets[:-1])
    plan = builder.plan(epoch)
    batches = []
    for number in range(len(plan)):
        pairs = plan[number]
        if pair_incomplete[pairs].any():
            batches.append(pairs)
    return batches
