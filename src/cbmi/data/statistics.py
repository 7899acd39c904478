"""What objectives want to know of the whole training corpus: made once, kept beside it, used by memory map."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cbmi.data.bmi import token_bmi
from cbmi.data.corpus import Corpus, map_array, new_array
from cbmi.data.vocabulary import SPECIALS
from cbmi.data.weights import read_weights
from cbmi.errors import UserError
from cbmi.files import atomic_file, disk_errors, sha256, to_json, write_atomically

BLOCK = 1 << 22  # tokens counted at a time
Filled = Iterator[tuple[np.ndarray, np.ndarray]]  # (places of target tokens, their numbers), block by block


class Statistics:
    """Statistics of a prepared corpus; each is made when it is first asked for."""

    def __init__(self, corpus: Corpus, sizes: tuple[int, int]) -> None:
        """`sizes`: pieces of the source and of the target vocabulary."""
        self.corpus, self.sizes = corpus, sizes
        self.folder = corpus.folder / "statistics"

    def counts(self) -> np.ndarray:
        """(target vocabulary,): how often each piece occurs."""
        path = self.folder / "counts"
        if not path.exists():
            with self._new(path) as temporary:
                counts_of_pieces(self.corpus, self.sizes[1]).tofile(temporary)
        return map_array(path, np.dtype(np.int64), self.sizes[1])

    def bmi(self) -> np.ndarray:
        """(target tokens,) in float16: bilingual mutual information with the source; 0 for the end of sentence."""
        return self._numbers("bmi", np.dtype(np.float16), 0.0, lambda: token_bmi(self.corpus, self.sizes))

    def weights(self, file: str, per: str) -> np.ndarray:
        """(target tokens,) in float32: the weights that a text file gives, `per` token or pair."""
        if not Path(file).is_file():
            raise UserError(f"{file}: there is no such file of weights.")
        known = f"weights-{per}-{hashlib.sha256(file.encode()).hexdigest()[:8]}"
        try:
            name = f"{known}-{sha256(Path(file))[:16]}"
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}.") from None
        for other in self.folder.glob(f"{known}-*"):
            if other.stem != name:
                raise UserError(
                    f"{file} has changed since this run first read it: bring it back, or delete {other} to go on "
                    "with the new weights."
                )
        return self._numbers(name, np.dtype(np.float32), 1.0, lambda: read_weights(file, per, self.corpus))

    def _numbers(self, name: str, dtype: np.dtype, default: float, make: Callable[[], Filled]) -> np.ndarray:
        """One number a target token, written in any order."""
        path, count = self.folder / name, len(self.corpus.target.ids)
        if not path.exists():
            begun = time.monotonic()
            with self._new(path) as temporary:
                array = new_array(temporary, dtype, count, default)
                for places, numbers in make():
                    array[places] = numbers
                array.flush()
            write_atomically(path.with_name(f"{name}.json"), to_json({"seconds": time.monotonic() - begun}))
        return map_array(path, dtype, count)

    def _new(self, path: Path):
        with disk_errors(path):
            path.parent.mkdir(exist_ok=True)
        return atomic_file(path)


def counts_of_pieces(corpus: Corpus, size: int) -> np.ndarray:
    """(size,): how often each piece of the target vocabulary occurs."""
    ids, counts = corpus.target.ids, np.zeros(size, np.int64)
    for start in range(0, len(ids), BLOCK):
        counts += np.bincount(ids[start : start + BLOCK], minlength=size)
    return counts


def relative_frequency(counts: np.ndarray) -> np.ndarray:
    """Counts divided by that of the median type: the middle one of the pieces of text that occur, by frequency."""
    occurring = np.sort(counts[SPECIALS:][counts[SPECIALS:] > 0])[::-1]
    return counts / occurring[len(occurring) // 2]
