"""Files of weights: a line per pair, on it one number for the pair or one a target token, as Marian reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np

from cbmi.data.corpus import Corpus
from cbmi.data.text import count_lines, read_lines
from cbmi.errors import UserError
from cbmi.progress import bar

PAIRS = 20_000  # read at a time


def read_weights(file: str, per: str, corpus: Corpus) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(places of target tokens, their weights), block by block.

    Lines go with the lines of the training text; those of pairs that preparation left out are passed over. Where a
    line has a number for every token but the end of sentence, that one keeps its weight of 1.
    """
    offsets, wanted = corpus.target.offsets, corpus.lines
    pair = 0
    with bar("Reading weights", count_lines(file), "lines") as progress:
        counts: Counter[str] = Counter()
        lines = enumerate(read_lines(file, counts))
        while block := list(islice(lines, PAIRS)):
            places, weights = [], []
            for number, line in block:
                if pair < len(wanted) and wanted[pair] == number:
                    start, end = int(offsets[pair]), int(offsets[pair + 1])
                    values = _line(line, per, end - start, f"{file}: line {number + 1}")
                    places.append(np.arange(start, start + len(values)))
                    weights.append(values)
                    pair += 1
            if places:
                yield np.concatenate(places), np.concatenate(weights)
            progress.advance(len(block))
    if progress.done != corpus.text_lines:
        raise UserError(f"{file} has {progress.done:,} lines, but the training text has {corpus.text_lines:,}.")


def _line(text: str, per: str, tokens: int, where: str) -> np.ndarray:
    """The weights of one pair's `tokens` target tokens, the end of sentence included or not."""
    try:
        values = np.array([float(word) for word in text.split()])
    except ValueError:
        raise UserError(f"{where} has something that is no number: it is no line of weights.") from None
    values = np.where(values > np.finfo(np.float32).max, np.inf, values)
    if not np.isfinite(values).all() or (values < 0).any():
        raise UserError(f"{where}: a weight is a finite number, 0 or above, in single precision.")
    if per == "pair":
        if len(values) != 1:
            raise UserError(f"{where} has {len(values)} numbers, but per: pair wants one.")
        return np.repeat(values, tokens)
    if len(values) not in (tokens, tokens - 1):
        hint = "; for one number a pair, say per: pair" if len(values) == 1 else ""
        raise UserError(
            f"{where} has {len(values)} numbers for {tokens} target pieces "
            f"(the end of sentence may be left out{hint})."
        )
    return values
