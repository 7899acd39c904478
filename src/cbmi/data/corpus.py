"""A prepared corpus: ids on disk, read through memory maps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cbmi.data.formats.entry import REASONS
from cbmi.digests import sha256
from cbmi.errors import UserError
from cbmi.files import disk_errors, read_json

DIGEST = 32  # hexadecimal digits of SHA-256 that are kept


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
    # Pairs of the text that are missing here, by reason: "empty", "too_long", "copies", and
    # what a format has that is not a pair.
    left_out: Mapping[str, int] = field(default_factory=dict)
    copies: int = 0  # pairs here whose target equals their source
    repaired_lines: int = 0
    parts: tuple[int, ...] = ()  # pairs of each corpus of the training data, if there are several
    sha256: tuple[str, ...] = ()  # digests of `files`
    # Digests of what was made, by file; older versions have none.
    digests: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "dtype": self.dtype,
            "tokens": dict(self.tokens),
            "files": list(self.files),
            "left_out": dict(self.left_out),
            "copies": self.copies,
            "repaired_lines": self.repaired_lines,
            "parts": list(self.parts),
            "sha256": list(self.sha256),
            "digests": dict(self.digests),
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
            parts=tuple(values.get("parts", ())),
            sha256=tuple(values.get("sha256", ())),
            digests=dict(values.get("digests", {})),
        )


def read_meta(folder: Path) -> CorpusMeta:
    """The meta.json of a prepared corpus."""
    path = folder / "meta.json"
    values = read_json(path)
    try:
        return CorpusMeta.from_json(values)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damaged(path) from None


def digests_of(folder: Path) -> dict[str, str]:
    """Digests of the files of a folder of prepared data, by name from there."""
    digests = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            digests[str(file.relative_to(folder))] = sha256(file)[:DIGEST]
    return digests


def check_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Refuse prepared data that are not what preparation wrote. Reads them once."""
    for name, known in digests.items():
        file = folder / name
        if not file.is_file() or sha256(file)[:DIGEST] != known:
            raise damaged(file)


class Side:
    """One language of a corpus."""

    def __init__(self, folder: Path, name: str, dtype: str, tokens: int, pairs: int) -> None:
        """`name`: "source" or "target"; `dtype`, `tokens`: of the ids."""
        self.ids_file = folder / f"{name}.ids"
        self.offsets_file = folder / f"{name}.offsets"
        self.ids = map_array(self.ids_file, np.dtype(dtype), tokens)
        # Sentence i has the ids from offsets[i] up to offsets[i + 1].
        self.offsets = map_array(self.offsets_file, np.dtype(np.int64), pairs + 1)
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


class SideWriter:
    """Appends one side's ids and offsets to their files."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype) -> None:
        """`name`: "source" or "target"; `dtype`: of the ids."""
        self.dtype = dtype
        self.tokens = 0  # written so far
        self.ids = open(folder / f"{name}.ids", "wb")
        self.offsets = open(folder / f"{name}.offsets", "wb")
        self.offsets.write(np.int64(0).tobytes())

    def __enter__(self) -> SideWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.ids.close()
        self.offsets.close()

    def add(self, sentences: Sequence[Sequence[int]]) -> None:
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        total = int(lengths.sum())
        flat = np.fromiter(chain.from_iterable(sentences), dtype=self.dtype, count=total)
        self.add_packed(flat, lengths)

    def add_packed(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Sentences laid end to end."""
        self.ids.write(ids.astype(self.dtype).tobytes())
        self.offsets.write((self.tokens + np.cumsum(lengths)).tobytes())
        self.tokens += len(ids)


class Corpus:
    """Pairs of id sequences, each with its end of sentence."""

    SKIPPED = "skipped"  # the file of what `read_pairs` skipped, if there is any

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._skipped_file = folder / self.SKIPPED
        self.meta = read_meta(folder)
        try:
            meta = self.meta
            self.source = Side(folder, "source", meta.dtype, meta.tokens["source"], meta.pairs)
            self.target = Side(folder, "target", meta.dtype, meta.tokens["target"], meta.pairs)
            # (pairs,): the line of the text that each pair comes from, counted from 0, without
            # those that `read_pairs` skips.
            self.lines = map_array(folder / "lines", np.dtype(np.int64), len(self))
        except (KeyError, TypeError):
            raise damaged(folder / "meta.json") from None

    def __len__(self) -> int:
        return self.meta.pairs

    def resegmented(self, folder: Path, source: Side, target: Side) -> Corpus:
        """The same pairs in other pieces; `folder`: where what is made of them is kept."""
        other = copy(self)
        other.folder = folder
        other.source = source
        other.target = target
        return other

    @property
    def text_lines(self) -> int:
        """Lines of the text it was made from, including those of pairs that were left out."""
        return len(self) + sum(self.meta.left_out.values())

    def lines_of_text(self) -> np.ndarray:
        """(pairs,): the line of the text that each pair comes from, counted from 0.

        Of a file of another format than plain lines, each of its entries counts as a line.
        """
        count = sum(self.meta.left_out.get(reason, 0) for reason in REASONS)
        if not count:
            return self.lines
        if not self._skipped_file.exists():
            raise UserError(
                f"{self.folder}: an older version prepared these data and did not note which "
                "entries it skipped; cbmi prepare RUN.yaml --again makes them again."
            )
        skipped = map_array(self._skipped_file, np.dtype(np.int64), count)
        return self.lines + np.searchsorted(skipped, self.lines, side="right")

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
    size = path.stat().st_size if path.is_file() else -1
    if size != count * dtype.itemsize:
        raise damaged(path)
    if count == 0:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))


def damaged(path: Path) -> UserError:
    """The error of a file of a prepared corpus that is not what preparation wrote."""
    return UserError(
        f"{path}: the prepared data are damaged; cbmi prepare RUN.yaml --again makes them again."
    )
