"""What belongs together: a checkpoint and its run's vocabulary, sizes and data; and the ranks.

Weights say nothing about the vocabulary or the number of heads that they were trained with: another
vocabulary of the same size gives other translations without an error. So every checkpoint names
what it was made with, and whoever loads it compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cbmi.changes import changes_between
from cbmi.config import RunSettings
from cbmi.data.corpus import read_meta
from cbmi.data.prepare import vocabulary_files
from cbmi.digests import digest
from cbmi.errors import UserError
from cbmi.files import read_json
from cbmi.training.run import RunDirectory
from cbmi.training.world import World
from cbmi.version import __version__

SIZES = ("width", "feed_forward", "heads", "encoder_layers", "decoder_layers", "norm")
# Settings that ranks need not share.
OF_A_RANK = ("device", "rank_timeout")
OF_DATA = {"data": "train", "segmentations": "segmentations"}  # parts by folder


def made_with(run: RunDirectory, config: RunSettings, data: bool = True) -> dict[str, Any]:
    """What a checkpoint of this run belongs to: model settings, vocabulary, training data."""
    folder = run.data / "train"
    return {
        "model": {name: getattr(config.model, name) for name in SIZES},
        "vocabulary": _vocabulary_digests(run, config),
        "data": read_meta(folder).digests if data and folder.exists() else {},
        "segmentations": _segmentation_digests(run) if data else {},
    }


def _segmentation_digests(run: RunDirectory) -> dict[str, str]:
    file = run.data / "segmentations" / "meta.json"
    return read_json(file).get("digests", {}) if file.exists() else {}


def _vocabulary_digests(run: RunDirectory, config: RunSettings) -> dict[str, str]:
    digests = {}
    for file in vocabulary_files(run.vocab, config.data.vocabulary.shared):
        if file.exists():
            digests[file.name] = digest(file)
    return digests


def check_belongs(
    run: RunDirectory, config: RunSettings, known: Mapping[str, Any], folder: Path, data: bool
) -> None:
    """Refuse a checkpoint that was made with other settings or files; `known`: what it names.

    Checkpoints of older versions name nothing. `data`: whether the training data matter.
    """
    wanted = ("model", "vocabulary", *OF_DATA) if data else ("model", "vocabulary")
    if not any(known.get(part) for part in wanted):
        return
    now = made_with(run, config, data)
    for part in wanted:
        if not known.get(part) or not now[part]:
            continue
        changes = changes_between(known[part], now[part])
        if part in OF_DATA:
            # Newer versions may keep more about the same data.
            changes = [change for change in changes if change.path in known[part]]
        if not changes:
            continue
        change = changes[0]
        if part == "model":
            raise UserError(
                f"{run.config_file}: model.{change.path} is {change.new}, but {folder.name} was "
                f"trained with {change.old}: restore the file."
            )
        if part == "vocabulary":
            raise UserError(
                f"{run.vocab / change.path}: this is not the vocabulary that {folder.name} was "
                "trained with: restore the file."
            )
        raise UserError(
            f"{run.data / OF_DATA[part] / change.path}: these are not the data that {folder.name} "
            "was trained on: restore them, or start from its weights in another run (initialize)."
        )


def check_ranks_agree(world: World, run: RunDirectory, config: RunSettings) -> None:
    """Refuse to train if a rank has other settings, code, data or another vocabulary.

    All ranks are refused with the same sentence.
    """
    settings = config.plain()
    for key in OF_A_RANK:
        settings.pop(key)
    mine = {
        "settings": settings,
        "version": {"cbmi": __version__, "torch": torch.__version__, "code": _code_digest()},
        **made_with(run, config),
    }
    first, *others = world.gather(mine)
    for rank, other in enumerate(others, start=1):
        changes = changes_between(first, other)
        if changes:
            change = changes[0]
            path = change.path.removeprefix("settings.")
            raise UserError(
                f"rank {rank} differs from rank 0 in {path} ({change.new}, not {change.old}): "
                "start all ranks with the same command, code and files."
            )


@cache
def _code_digest() -> str:
    """Of this package's source: two versions under development may have the same number."""
    total = hashlib.sha256()
    package = Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        total.update(str(file.relative_to(package)).encode())
        total.update(file.read_bytes())
    return total.hexdigest()[:16]
