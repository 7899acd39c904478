"""Bilingual mutual information of every target token with its source sentence (Xu et al., ACL 2021).

    BMI(x, y) = mean over source positions i of log(1 + N·f(x_i, y) / (f(x_i)·f(y)))

f counts the sentence pairs that contain a piece (or both pieces), N all pairs. A dictionary of all pairs of pieces
would be large and slow. Here one target piece after another is taken: the rows of the source's occurrence matrix
in which it occurs, summed, are its counts with every source piece; the same rows times the logarithms of those
counts are its BMI in each sentence. Rare pieces, whose columns are nearly empty, are done many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cbmi.data.corpus import Corpus, Side
from cbmi.data.vocabulary import SPECIALS
from cbmi.errors import UserError
from cbmi.progress import bar

ROWS = 1 << 18  # sentences at a time for a frequent piece
TABLE = 1 << 20  # counts at a time for rare pieces
WORTH_A_COLUMN = 0.25  # pairs with source pieces, as a share of the source vocabulary, that make a piece frequent


def token_bmi(corpus: Corpus, sizes: tuple[int, int], quiet: bool = False) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(places of target tokens, their BMI in float64), block by block; the end of sentence has none.

    `sizes`: pieces of the source and of the target vocabulary.
    """
    sparse = scipy_sparse()
    source = _occurrences(sparse, corpus.source, sizes[0])
    tokens = _tokens_by_type(sparse, corpus.target, sizes[1])
    counter = _Counter(source)
    with bar("Counting for BMI", len(tokens.indices), "tokens", quiet=quiet) as progress:
        for first, last, rare in _blocks(tokens, source):
            part = slice(tokens.indptr[first], tokens.indptr[last])
            sentences, places = tokens.indices[part], tokens.data[part]
            types = np.repeat(np.arange(last - first), np.diff(tokens.indptr[first : last + 1]))
            # A sentence that has the piece twice counts once: its tokens are neighbours here.
            new = np.ones(len(sentences), dtype=bool)
            new[1:] = (sentences[1:] != sentences[:-1]) | (types[1:] != types[:-1])
            values = (counter.rare if rare else counter.frequent)(sentences[new], types[new])
            yield places, values[np.cumsum(new) - 1]
            progress.advance(len(places))


def scipy_sparse() -> Any:
    """SciPy's sparse matrices, or a sentence that says how to get them."""
    try:
        from scipy import sparse
    except ImportError:
        raise UserError("objective 'bmi' needs the extra 'bmi': pip install 'cbmi[bmi]'.") from None
    return sparse


def _occurrences(sparse: Any, side: Side, size: int) -> Any:
    """(sentences, pieces): how often each sentence has each piece; special pieces are left out."""
    real, offsets = _text(side)
    ids = side.ids[real].astype(np.int32)
    matrix = sparse.csr_array((np.ones(len(ids), np.int16), ids, offsets), shape=(len(side.lengths), size))
    matrix.sum_duplicates()
    return matrix


def _tokens_by_type(sparse: Any, side: Side, size: int) -> Any:
    """(pieces, sentences): each token's place in the corpus, by piece; a sentence may stand there several times."""
    real, offsets = _text(side)
    places = np.flatnonzero(real)
    places = places.astype(np.int32) if len(real) < 1 << 31 else places
    matrix = sparse.csr_array((places, side.ids[real].astype(np.int32), offsets), shape=(len(side.lengths), size))
    return matrix.T.tocsr()


def _text(side: Side) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens are pieces of text, and where the sentences begin among those."""
    real = side.ids >= SPECIALS
    counts = np.add.reduceat(real, side.offsets[:-1], dtype=np.int64)
    return real, np.concatenate([[0], np.cumsum(counts)])


def _blocks(tokens: Any, source: Any) -> Iterator[tuple[int, int, bool]]:
    """Ranges of target pieces, and whether they are rare: one frequent piece, or several rare ones."""
    frequency = np.diff(tokens.indptr)
    density = source.nnz / max(source.shape[0], 1)
    frequent = frequency * density > source.shape[1] * WORTH_A_COLUMN
    at_once = max(1, TABLE // source.shape[1])
    first = 0
    while first < len(frequency):
        last = first + 1
        while not frequent[first] and last < len(frequency) and last - first < at_once and not frequent[last]:
            last += 1
        yield first, last, not frequent[first]
        first = last


class _Counter:
    """Mean over the source of log(1 + N·f(x,y)/(f(x)·f(y))) for sentences that have a target piece y."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.lengths = np.maximum(source.sum(axis=1), 1)
        self.pieces = source.shape[1]
        occurrences = np.bincount(source.indices, minlength=self.pieces)
        self.ratio = source.shape[0] / np.maximum(occurrences, 1)  # N / f(x)
        self.table = np.zeros(max(TABLE, self.pieces), np.int32)  # zero between two calls

    def frequent(self, sentences: np.ndarray, types: np.ndarray) -> np.ndarray:
        """One target piece that occurs in many sentences: counts with all source pieces, then a product."""
        parts = [sentences[start : start + ROWS] for start in range(0, len(sentences), ROWS)]
        rows, together = None, np.zeros(self.pieces, np.int64)
        for part in parts:
            rows = self.source[part]
            together += np.bincount(rows.indices, minlength=self.pieces)
        information = np.log1p(together * self.ratio / len(sentences))
        if len(parts) > 1:  # more than is kept in memory at a time
            sums = np.concatenate([self.source[part] @ information for part in parts])
        else:
            sums = rows @ information
        return sums / self.lengths[sentences]

    def rare(self, sentences: np.ndarray, types: np.ndarray) -> np.ndarray:
        """Several target pieces: a table of counts that is touched only where something is counted."""
        if len(sentences) == 0:
            return np.zeros(0)
        rows = self.source[sentences]
        lengths = np.diff(rows.indptr)
        keys = np.repeat(types * self.pieces, lengths)
        keys += rows.indices
        np.add.at(self.table, keys, np.int32(1))
        information = self.table.take(keys) * self.ratio.take(rows.indices)
        self.table[keys] = 0
        information *= np.repeat(1 / np.bincount(types)[types], lengths)
        np.log1p(information, out=information)
        information *= rows.data
        sums = np.add.reduceat(np.append(information, 0.0), rows.indptr[:-1])
        return np.where(lengths > 0, sums, 0.0) / self.lengths[sentences]
