"""What objectives need to know about the whole training corpus.

Each statistic is computed once, kept beside the corpus, and read through a memory map.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cbmi.data.bmi import token_bmi
from cbmi.data.corpus import Corpus, TokenValueBlock, map_array, new_array
from cbmi.data.vocabulary import SPECIALS
from cbmi.data.weights import read_weights
from cbmi.digests import sha256
from cbmi.errors import UserError
from cbmi.files import atomic_file, disk_errors, read_json, to_json, write_atomically

BLOCK = 1 << 22  # tokens counted at a time


class Statistics:
    """Statistics of a prepared corpus; each is computed when it is first asked for."""

    def __init__(self, corpus: Corpus, sizes: tuple[int, int]) -> None:
        """`sizes`: pieces of the source and of the target vocabulary."""
        self.corpus = corpus
        self.sizes = sizes
        self.folder = corpus.folder / "statistics"

    def counts(self) -> np.ndarray:
        """(target vocabulary,) int64: how often each piece occurs."""
        path = self.folder / "counts"
        size = self.sizes[1]
        if not path.exists():
            with self._new_file(path) as temporary:
                counts_of_pieces(self.corpus, size).tofile(temporary)
            self._note(path)
        return self._mapped(path, np.dtype(np.int64), size)

    def bmi(self) -> np.ndarray:
        """(target tokens,) float16: bilingual mutual information; 0 for the end of sentence."""
        blocks = token_bmi(self.corpus, self.sizes)
        return self._token_values("bmi", np.dtype(np.float16), 0.0, blocks)

    def weights(self, file: str, per: str) -> np.ndarray:
        """(target tokens,) float32: the weights that a text file gives, `per` token or pair."""
        if not Path(file).is_file():
            raise UserError(f"{file}: there is no such file of weights.")
        # Named by the file's path and content, so that a change of the content is noticed.
        of_file = f"weights-{per}-{hashlib.sha256(file.encode()).hexdigest()[:8]}"
        try:
            name = f"{of_file}-{sha256(Path(file))[:16]}"
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}.") from None
        for other in self.folder.glob(f"{of_file}-*"):
            if other.stem != name:
                # With several segmentations, each has its own.
                folder = self.folder
                if folder.parent.parent.name == "segmentations":
                    folder = folder.parent.parent / "*" / folder.name
                raise UserError(
                    f"{file} has changed since this run first read it: restore it, or delete "
                    f"{folder / other.stem}* to continue with the new weights."
                )
        blocks = read_weights(file, per, self.corpus)
        return self._token_values(name, np.dtype(np.float32), 1.0, blocks)

    def _token_values(
        self, name: str, dtype: np.dtype, default: float, blocks: Iterator[TokenValueBlock]
    ) -> np.ndarray:
        """One value per target token, from the file of that name; the first time from `blocks`.

        `blocks` is lazy: nothing is computed if the file exists. Tokens in no block get `default`.
        """
        path = self.folder / name
        count = len(self.corpus.target.ids)
        if not path.exists():
            start = time.monotonic()
            with self._new_file(path) as temporary:
                token_values = new_array(temporary, dtype, count, default)
                for places, values in blocks:
                    token_values[places] = values
                token_values.flush()
            self._note(path, seconds=time.monotonic() - start)
        return self._mapped(path, dtype, count)

    def _note(self, path: Path, **more: float) -> None:
        """Write down what was made, for `_mapped`."""
        note = {"sha256": sha256(path), **more}
        write_atomically(path.with_name(f"{path.name}.json"), to_json(note))

    def _mapped(self, path: Path, dtype: np.dtype, count: int) -> np.ndarray:
        """The file as a memory map; refuses what is not what was made. Reads it once."""
        note = path.with_name(f"{path.name}.json")
        known = read_json(note) if note.exists() else {}
        if isinstance(known, dict) and known.get("sha256", "") not in ("", sha256(path)):
            raise UserError(f"{path} is damaged; delete it, and it is made again.")
        return map_array(path, dtype, count)

    @contextmanager
    def _new_file(self, path: Path) -> Iterator[Path]:
        with disk_errors(path):
            path.parent.mkdir(exist_ok=True)
        with atomic_file(path) as temporary:
            yield temporary


def counts_of_pieces(corpus: Corpus, size: int) -> np.ndarray:
    """(size,) int64: how often each piece of the target vocabulary occurs."""
    ids = corpus.target.ids
    counts = np.zeros(size, np.int64)
    for start in range(0, len(ids), BLOCK):
        counts += np.bincount(ids[start : start + BLOCK], minlength=size)
    return counts


def relative_frequency(counts: np.ndarray) -> np.ndarray:
    """(vocabulary,) counts divided by the count of the median piece.

    The median is taken over the pieces of text that occur, sorted by falling frequency. Special
    pieces do not take part.
    """
    of_text = counts[SPECIALS:]
    occurring = np.sort(of_text[of_text > 0])[::-1]
    median = occurring[len(occurring) // 2]
    relative: np.ndarray = counts / median
    return relative
