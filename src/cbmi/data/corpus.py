"""A prepared corpus: ids on disk, used by memory map."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cbmi.errors import UserError
from cbmi.files import disk_errors, read_json


class Ragged(NamedTuple):
    """Sentences laid end to end."""

    ids: np.ndarray  # (tokens,) int64
    lengths: np.ndarray  # (sentences,) int64
    places: np.ndarray  # (tokens,) int64: where each token stands in the corpus


class Side:
    """One language of a corpus."""

    def __init__(self, folder: Path, name: str, meta: dict) -> None:
        self.ids = map_array(folder / f"{name}.ids", np.dtype(meta["dtype"]), meta["tokens"][name])
        self.offsets = map_array(folder / f"{name}.offsets", np.dtype(np.int64), meta["pairs"] + 1)
        self.lengths = np.diff(self.offsets)

    def select(self, sentences: np.ndarray) -> Ragged:
        """The given sentences, in the given order."""
        lengths = self.lengths[sentences]
        starts = self.offsets[sentences]
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
        return Ragged(self.ids[places].astype(np.int64), lengths, places)


class Corpus:
    """Pairs of id sequences, each with its end-of-sentence."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = read_json(folder / "meta.json")
        try:
            self.source, self.target = (Side(folder, name, self.meta) for name in ("source", "target"))
            self.lines = map_array(folder / "lines", np.dtype(np.int64), len(self))  # of the text, from 0; one a pair
        except (KeyError, TypeError):
            raise _damaged(folder / "meta.json") from None

    def __len__(self) -> int:
        return self.meta["pairs"]

    @property
    def text_lines(self) -> int:
        """Lines of the text that it was made of, those of pairs that were left out included."""
        return len(self) + sum(self.meta.get("left_out", {}).values())

    def lengths(self) -> np.ndarray:
        """(2, pairs): pieces of source and target."""
        return np.stack([self.source.lengths, self.target.lengths])


def new_array(path: Path, dtype: np.dtype, count: int, value: float) -> np.memmap:
    """A new file of `count` numbers by memory map, to be written to; each is `value` at first."""
    with disk_errors(path):
        with open(path, "wb") as file:
            if hasattr(os, "posix_fallocate"):  # a full disk shows here, not as a bus error
                os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
            file.truncate(count * dtype.itemsize)
        array = np.memmap(path, dtype=dtype, mode="r+", shape=(count,))
    array[:] = value
    return array


def map_array(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """A file of `count` numbers by memory map."""
    size = path.stat().st_size if path.exists() else -1
    if size != count * dtype.itemsize:
        raise _damaged(path)
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.zeros(0, dtype)


def _damaged(path: Path) -> UserError:
    return UserError(f"{path}: the prepared data are damaged; delete the folder {path.parent} to make them anew.")
