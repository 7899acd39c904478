"""Bilingual mutual information of target tokens with their source sentences (Xu et al., ACL 2021).

    BMI(x, y) = mean over source positions i of log(1 + N·f(x_i, y) / (f(x_i)·f(y)))

f counts the sentence pairs that contain a piece (or both pieces), N all pairs. A dictionary of all
pairs of pieces would be large and slow. So we take one target piece y at a time. Of the matrix of
source occurrences, take the rows of the sentences that have y:

- summed over these rows, the occurrences are f(x, y) for every source piece x;
- the same rows times the logarithms are the BMI of y in each sentence.

Rare pieces, whose columns are nearly empty, are done many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from cbmi.data.corpus import Corpus, Side, TokenValueBlock
from cbmi.data.vocabulary import SPECIALS
from cbmi.errors import import_extra
from cbmi.progress import bar

ROWS = 1 << 18  # sentences at a time for a frequent piece
TABLE = 1 << 20  # counts at a time for rare pieces
# A piece is frequent if it meets source pieces at least so often, as a share of the vocabulary.
FREQUENT_SHARE = 0.25


def token_bmi(
    corpus: Corpus, sizes: tuple[int, int], quiet: bool = False
) -> Iterator[TokenValueBlock]:
    """The BMI of the target tokens in float64, block by block; the end of sentence has none.

    `sizes`: pieces of the source and of the target vocabulary.
    """
    sparse = scipy_sparse()
    source_size, target_size = sizes
    source = _occurrences(sparse, corpus.source, source_size)
    tokens = _tokens_by_piece(sparse, corpus.target, target_size)
    counter = _Counter(source)
    with bar("Counting for BMI", len(tokens.indices), "tokens", quiet=quiet) as progress:
        for block in _blocks(tokens, source):
            # The tokens of the block, sorted by piece, then by sentence.
            part = slice(tokens.indptr[block.first], tokens.indptr[block.last])
            sentences = tokens.indices[part]
            places = tokens.data[part]
            tokens_per_piece = np.diff(tokens.indptr[block.first : block.last + 1])
            pieces = np.repeat(np.arange(block.last - block.first), tokens_per_piece)
            # A sentence that has a piece twice counts once. Its tokens are neighbours here.
            is_new = np.ones(len(sentences), dtype=bool)
            is_new[1:] = (sentences[1:] != sentences[:-1]) | (pieces[1:] != pieces[:-1])
            if block.rare:
                values = counter.rare(sentences[is_new], pieces[is_new])
            else:
                values = counter.frequent(sentences[is_new])
            yield TokenValueBlock(places, values[np.cumsum(is_new) - 1])
            progress.advance(len(places))


def scipy_sparse() -> Any:
    """The module scipy.sparse, which only an extra installs."""
    return import_extra("scipy.sparse", "objective 'bmi'", "bmi")


def _occurrences(sparse: Any, side: Side, size: int) -> Any:
    """(sentences, pieces): how often each sentence has each piece, special ones left out."""
    is_text, offsets = _text_tokens(side)
    ids = side.ids[is_text].astype(np.int32)
    ones = np.ones(len(ids), np.int16)
    matrix = sparse.csr_array((ones, ids, offsets), shape=(len(side.lengths), size))
    matrix.sum_duplicates()
    return matrix


def _tokens_by_piece(sparse: Any, side: Side, size: int) -> Any:
    """(pieces, sentences): the place of each token in the corpus, sorted by piece.

    A sentence that has a piece several times has several entries: they are not summed.
    """
    is_text, offsets = _text_tokens(side)
    ids = side.ids[is_text].astype(np.int32)
    places = np.flatnonzero(is_text)
    if len(is_text) < 1 << 31:
        places = places.astype(np.int32)  # half the memory
    matrix = sparse.csr_array((places, ids, offsets), shape=(len(side.lengths), size))
    return matrix.T.tocsr()


def _text_tokens(side: Side) -> tuple[np.ndarray, np.ndarray]:
    """(tokens,) which tokens are text, not special; (sentences + 1,) offsets among those."""
    is_text: np.ndarray = side.ids >= SPECIALS
    counts = np.add.reduceat(is_text, side.offsets[:-1], dtype=np.int64)
    return is_text, np.concatenate([[0], np.cumsum(counts)])


class _Block(NamedTuple):
    """Target pieces from `first` to before `last`: one frequent piece, or several rare ones."""

    first: int
    last: int
    rare: bool


def _blocks(tokens: Any, source: Any) -> Iterator[_Block]:
    """All target pieces in order."""
    sentences, source_size = source.shape
    frequency = np.diff(tokens.indptr)
    pieces_per_sentence = source.nnz / max(sentences, 1)
    frequent = frequency * pieces_per_sentence > source_size * FREQUENT_SHARE
    most = max(1, TABLE // source_size)  # rare pieces whose counts fit in the table
    first = 0
    while first < len(frequency):
        last = first + 1
        if not frequent[first]:
            end = min(first + most, len(frequency))
            while last < end and not frequent[last]:
                last += 1
        yield _Block(first, last, rare=not frequent[first])
        first = last


class _Counter:
    """Mean over the source of log(1 + N·f(x, y) / (f(x)·f(y))) for sentences with a piece y."""

    def __init__(self, source: Any) -> None:
        """`source` (sentences, pieces): occurrences."""
        self.source = source
        self.lengths = np.maximum(source.sum(axis=1), 1)  # a sentence may have no text
        self.pieces = source.shape[1]
        occurrences = np.bincount(source.indices, minlength=self.pieces)
        self.ratio = source.shape[0] / np.maximum(occurrences, 1)  # N / f(x)
        self.table = np.zeros(max(TABLE, self.pieces), np.int32)  # all zero between two calls

    def frequent(self, sentences: np.ndarray) -> np.ndarray:
        """One target piece in many sentences: counts with all source pieces, then a product."""
        parts = [sentences[start : start + ROWS] for start in range(0, len(sentences), ROWS)]
        rows: Any = None
        together = np.zeros(self.pieces, np.int64)  # f(x, y)
        for part in parts:
            rows = self.source[part]
            together += np.bincount(rows.indices, minlength=self.pieces)
        information = np.log1p(together * self.ratio / len(sentences))
        if len(parts) == 1:
            sums = rows @ information
        else:
            # More rows than are kept in memory at a time: take them again.
            sums = np.concatenate([self.source[part] @ information for part in parts])
        means: np.ndarray = sums / self.lengths[sentences]
        return means

    def rare(self, sentences: np.ndarray, pieces: np.ndarray) -> np.ndarray:
        """Several target pieces: a table of counts, touched only where something is counted.

        `pieces`: the piece of each sentence, numbered from 0 within the block.
        """
        if len(sentences) == 0:
            return np.zeros(0)
        rows = self.source[sentences]
        entries = np.diff(rows.indptr)  # distinct source pieces of each sentence
        keys = np.repeat(pieces * self.pieces, entries)
        keys += rows.indices
        np.add.at(self.table, keys, np.int32(1))
        information = self.table.take(keys) * self.ratio.take(rows.indices)  # N·f(x, y) / f(x)
        self.table[keys] = 0
        sentences_of_piece = np.bincount(pieces)[pieces]  # f(y)
        information *= np.repeat(1 / sentences_of_piece, entries)
        np.log1p(information, out=information)
        information *= rows.data
        # reduceat needs an index below the end, and sums nothing as one element: append a 0, and
        # set the sums of sentences without entries to 0.
        sums = np.add.reduceat(np.append(information, 0.0), rows.indptr[:-1])
        sums = np.where(entries > 0, sums, 0.0)
        means: np.ndarray = sums / self.lengths[sentences]
        return means
