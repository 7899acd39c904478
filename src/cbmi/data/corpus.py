"""A prepared corpus: ids on disk, read through memory maps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cbmi.errors import UserError
from cbmi.files import disk_errors, read_json


class PackedSentences(NamedTuple):
    """Sentences laid end to end."""

    ids: np.ndarray  # (tokens,) int64
    lengths: np.ndarray  # (sentences,) int64, in tokens
    places: np.ndarray  # (tokens,) int64: index of each token in the corpus


class TokenValueBlock(NamedTuple):
    """Values of some target tokens of a corpus, in any order."""

    places: np.ndarray  # (tokens,) index of each token in the corpus
    values: np.ndarray  # (tokens,)


@dataclass(frozen=True)
class CorpusMeta:
    """What meta.json says about a prepared corpus."""

    pairs: int
    dtype: str  # of the ids
    tokens: Mapping[str, int]  # "source" and "target": ids, ends of sentences included
    files: tuple[str, ...] = ()  # the text that it was made from
    # Pairs of the text that are missing here, by reason: "empty", "too_long", "copies".
    left_out: Mapping[str, int] = field(default_factory=dict)
    copies: int = 0  # pairs here whose target equals their source
    repaired_lines: int = 0
    sha256: tuple[str, ...] = ()  # digests of `files`

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "dtype": self.dtype,
            "tokens": dict(self.tokens),
            "files": list(self.files),
            "left_out": dict(self.left_out),
            "copies": self.copies,
            "repaired_lines": self.repaired_lines,
            "sha256": list(self.sha256),
        }

    @classmethod
    def from_json(cls, values: Any) -> CorpusMeta:
        """Only the first three keys are required. Raises KeyError or TypeError without them."""
        return cls(
            pairs=values["pairs"],
            dtype=values["dtype"],
            tokens=values["tokens"],
            files=tuple(values.get("files", ())),
            left_out=values.get("left_out", {}),
            copies=values.get("copies", 0),
            repaired_lines=values.get("repaired_lines", 0),
            sha256=tuple(values.get("sha256", ())),
        )


def read_meta(folder: Path) -> CorpusMeta:
    """The meta.json of a prepared corpus."""
    path = folder / "meta.json"
    values = read_json(path)
    try:
        return CorpusMeta.from_json(values)
    except (KeyError, TypeError):
        raise damaged(path) from None


class Side:
    """One language of a corpus."""

    def __init__(self, folder: Path, name: str, meta: CorpusMeta) -> None:
        """`name`: "source" or "target"."""
        dtype = np.dtype(meta.dtype)
        self.ids = map_array(folder / f"{name}.ids", dtype, meta.tokens[name])
        # Sentence i has the ids from offsets[i] up to offsets[i + 1].
        self.offsets = map_array(folder / f"{name}.offsets", np.dtype(np.int64), meta.pairs + 1)
        self.lengths = np.diff(self.offsets)

    def select(self, sentences: np.ndarray) -> PackedSentences:
        """The given sentences, in the given order."""
        lengths = self.lengths[sentences]
        starts = self.offsets[sentences]
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        # A token's place: its index in the result, moved by what its sentence was moved by.
        places = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
        return PackedSentences(self.ids[places].astype(np.int64), lengths, places)


class Corpus:
    """Pairs of id sequences, each with its end of sentence."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        try:
            self.source = Side(folder, "source", self.meta)
            self.target = Side(folder, "target", self.meta)
            # (pairs,): the line of the text that each pair comes from, counted from 0.
            self.lines = map_array(folder / "lines", np.dtype(np.int64), len(self))
        except (KeyError, TypeError):
            raise damaged(folder / "meta.json") from None

    def __len__(self) -> int:
        return self.meta.pairs

    @property
    def text_lines(self) -> int:
        """Lines of the text it was made from, including those of pairs that were left out."""
        return len(self) + sum(self.meta.left_out.values())

    def lengths(self) -> np.ndarray:
        """(2, pairs): pieces of source and target."""
        return np.stack([self.source.lengths, self.target.lengths])


def new_array(path: Path, dtype: np.dtype, count: int, value: float) -> np.memmap:
    """A new file of `count` values as a memory map to write to; each is `value` at first."""
    size = count * dtype.itemsize
    with disk_errors(path):
        with open(path, "wb") as file:
            if hasattr(os, "posix_fallocate"):
                # Reserve the space: a full disk shows here, not as a bus error later on.
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
        array = np.memmap(path, dtype=dtype, mode="r+", shape=(count,))
    array[:] = value
    return array


def map_array(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """A file of `count` values as a memory map to read from."""
    size = path.stat().st_size if path.exists() else -1
    if size != count * dtype.itemsize:
        raise damaged(path)
    if count == 0:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))


def damaged(path: Path) -> UserError:
    """The error of a file of a prepared corpus that is not what preparation wrote."""
    return UserError(
        f"{path}: the prepared data are damaged; "
        f"delete the folder {path.parent} to prepare them again."
    )
