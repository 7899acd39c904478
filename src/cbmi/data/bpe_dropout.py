"""BPE-dropout (Provilkov et al., 2020) of many words at a time.

A word begins as characters. As long as neighbours can be merged, each possible merge is dropped
with probability p, and the best of those that are left is done; if none is left, the word stays as
it is. So the i-th best merge is done with probability p^i·(1 - p), counted from 0.

Draws of one word that have taken the same merges so far are one row with a count: a binomial draw
says how many of them do the best merge, how many of the others the second best, and so on. All
words of a block take their steps together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cbmi.data.vocabulary import SPACE, Vocabulary

NOTHING = -1  # beyond the end of a word; also: no merge
FIRST_UNKNOWN = -2  # a character c without a piece is the symbol FIRST_UNKNOWN - c
NO_RANK = np.iinfo(np.int32).max
SYMBOLS = 1 << 20  # of words that take their steps together
HASH = np.uint64(0x9E3779B97F4A7C15)  # an odd number that spreads neighbours apart


class SampledWords(NamedTuple):
    """Different segmentations of words, laid end to end, and how often each was drawn."""

    ids: np.ndarray
    starts: np.ndarray  # (segmentations + 1,) where each begins; last, where the last one ends
    word: np.ndarray  # (segmentations,) which word it is of
    draws: np.ndarray  # (segmentations,) how often it was drawn


class _Rows(NamedTuple):
    symbols: np.ndarray  # (rows, length) ids; NOTHING beyond the end
    word: np.ndarray  # (rows,)
    draws: np.ndarray  # (rows,) how many have come here


class MergeTable:
    """Which two pieces make which third one, for a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.size = len(vocabulary)
        pieces = vocabulary.text_pieces()
        lefts = []
        rights = []
        merged = []
        for piece, number in pieces.items():
            for cut in range(1, len(piece)):
                left = pieces.get(piece[:cut])
                right = pieces.get(piece[cut:])
                if left is not None and right is not None:
                    lefts.append(left)
                    rights.append(right)
                    merged.append(number)
        keys = np.array(lefts, np.int64) * self.size + np.array(rights, np.int64)
        self._build(keys, np.array(merged, np.int32))
        # The rank of the merge that makes a piece: sentencepiece's scores fall with the rank.
        scores = vocabulary.scores()
        self.rank = np.empty(self.size + 1, np.int32)
        self.rank[np.argsort(-scores, kind="stable")] = np.arange(self.size)
        self.rank[NOTHING] = NO_RANK
        self.symbol_of = np.arange(FIRST_UNKNOWN, FIRST_UNKNOWN - 0x110000, -1, dtype=np.int32)
        for piece, number in pieces.items():
            if len(piece) == 1:
                self.symbol_of[ord(piece)] = number

    def _build(self, keys: np.ndarray, merged: np.ndarray) -> None:
        """A hash table: a key that finds its slot taken looks in the next one."""
        bits = max(4, int(np.ceil(np.log2(len(keys) * 4 + 1))))
        self.shift = np.uint64(64 - bits)
        self.mask = (1 << bits) - 1
        self.keys = np.full(self.mask + 1, -1, np.int64)
        self.values = np.full(self.mask + 1, NOTHING, np.int32)
        slots = self._slots(keys)
        waiting = np.arange(len(keys))
        while len(waiting):
            free = waiting[self.keys[slots[waiting]] == -1]
            _, first = np.unique(slots[free], return_index=True)
            placed = free[first]
            self.keys[slots[placed]] = keys[placed]
            self.values[slots[placed]] = merged[placed]
            waiting = np.setdiff1d(waiting, placed, assume_unique=True)
            slots[waiting] = (slots[waiting] + 1) & self.mask

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        return ((keys.astype(np.uint64) * HASH) >> self.shift).astype(np.int64)

    def merge(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The pieces that pairs make, or NOTHING; of any shape."""
        possible = (left >= 0) & (right >= 0)
        keys = (left.astype(np.int64) * self.size + right)[possible]
        slots = self._slots(keys)
        found = self.keys[slots]
        values = np.where(found == keys, self.values[slots], NOTHING).astype(np.int32)
        open_questions = np.flatnonzero((found != keys) & (found != -1))
        while len(open_questions):
            slots[open_questions] = (slots[open_questions] + 1) & self.mask
            found = self.keys[slots[open_questions]]
            right_one = found == keys[open_questions]
            values[open_questions[right_one]] = self.values[slots[open_questions[right_one]]]
            open_questions = open_questions[~right_one & (found != -1)]
        merged = np.full(left.shape, NOTHING, np.int32)
        merged[possible] = values
        return merged


def sample_words(
    words: Sequence[str],
    draws: np.ndarray,
    dropout: float,
    table: MergeTable,
    vocabulary: Vocabulary,
    random: np.random.Generator,
) -> SampledWords:
    """So many draws (words,) of each word; sorted by word."""
    lengths = np.fromiter(map(len, words), np.int64, len(words)) + 1
    text = SPACE + SPACE.join(words)
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    symbols = table.symbol_of[characters]
    starts = np.cumsum(lengths) - lengths
    finished: list[_Rows] = []
    # Words of similar length together: 8, 16, 32 … characters.
    classes = np.maximum(3, np.ceil(np.log2(lengths))).astype(np.int64)
    for size in np.unique(classes).tolist():
        of_class = np.flatnonzero(classes == size)
        at_a_time = max(1, SYMBOLS >> size)
        for begin in range(0, len(of_class), at_a_time):
            chosen = of_class[begin : begin + at_a_time]
            places = starts[chosen][:, None] + np.arange(1 << size)
            inside = np.arange(1 << size) < lengths[chosen][:, None]
            matrix = np.where(inside, symbols[np.minimum(places, len(symbols) - 1)], NOTHING)
            rows = _Rows(matrix.astype(np.int32), chosen, draws[chosen].astype(np.int64))
            while len(rows.draws):
                rows = _step(rows, dropout, table, random, finished)
    return _collect(finished, vocabulary)


def _step(
    rows: _Rows,
    dropout: float,
    table: MergeTable,
    random: np.random.Generator,
    finished: list[_Rows],
) -> _Rows:
    """Every draw does one merge, or is finished: then it goes to `finished`."""
    merged = table.merge(rows.symbols[:, :-1], rows.symbols[:, 1:])
    rank = table.rank[merged]
    left = rows.draws.copy()  # draws that have dropped all better merges
    active = np.arange(len(left))
    children = []
    while len(active):
        ranks = rank[active]
        best = ranks.argmin(axis=1)
        possible = ranks[np.arange(len(active)), best] < NO_RANK
        active = active[possible]
        best = best[possible]
        taken = random.binomial(left[active], 1 - dropout)
        left[active] -= taken
        some = taken > 0
        children.append(_merged_rows(rows, active[some], best[some], merged, taken[some]))
        # The others have dropped this merge and look for the next best.
        rank[active, best] = NO_RANK
        active = active[left[active] > 0]
    done = np.flatnonzero(left)
    if len(done):
        finished.append(_Rows(rows.symbols[done], rows.word[done], left[done]))
    if not children:
        return _Rows(rows.symbols[:0], rows.word[:0], rows.draws[:0])
    return _Rows(*(np.concatenate(parts) for parts in zip(*children, strict=True)))


def _merged_rows(
    rows: _Rows, chosen: np.ndarray, place: np.ndarray, merged: np.ndarray, draws: np.ndarray
) -> _Rows:
    """Rows after a merge of the symbols at `place` and after it."""
    length = rows.symbols.shape[1]
    columns = np.arange(length)
    source = np.minimum(columns + (columns > place[:, None]), length - 1)
    symbols = rows.symbols[chosen[:, None], source]
    symbols[:, -1] = NOTHING
    symbols[np.arange(len(chosen)), place] = merged[chosen, place]
    return _Rows(symbols, rows.word[chosen], draws)


def _collect(finished: Sequence[_Rows], vocabulary: Vocabulary) -> SampledWords:
    parts = []
    for rows in finished:
        lengths = (rows.symbols != NOTHING).sum(axis=1)
        parts.append((rows.symbols[rows.symbols != NOTHING], lengths, rows.word, rows.draws))
    symbols, lengths, word, draws = (np.concatenate(part) for part in zip(*parts, strict=True))
    ids, lengths = _with_bytes(symbols, lengths, vocabulary)
    # In the order of the words.
    order = np.argsort(word, kind="stable")
    starts = np.cumsum(lengths) - lengths
    places = np.repeat(starts[order] - (np.cumsum(lengths[order]) - lengths[order]), lengths[order])
    places += np.arange(len(ids))
    new_starts = np.concatenate([[0], np.cumsum(lengths[order])])
    return SampledWords(ids[places], new_starts, word[order], draws[order])


def _with_bytes(
    symbols: np.ndarray, lengths: np.ndarray, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Characters without a piece become their bytes; `lengths`: of the segmentations."""
    unknown = np.flatnonzero(symbols <= FIRST_UNKNOWN)
    if not len(unknown):
        return symbols, lengths
    owner = np.repeat(np.arange(len(lengths)), lengths)
    lengths = lengths.copy()
    repeats = np.ones(len(symbols), np.int64)
    replaced = []
    for place in unknown.tolist():
        content = chr(FIRST_UNKNOWN - int(symbols[place])).encode()
        replaced.append([vocabulary.byte_id(byte) for byte in content])
        repeats[place] = len(content)
        lengths[owner[place]] += len(content) - 1
    ids = np.repeat(symbols, repeats)
    ends = np.cumsum(repeats)
    for place, pieces in zip(unknown.tolist(), replaced, strict=True):
        ids[ends[place] - len(pieces) : ends[place]] = pieces
    return ids, lengths
