"""Files of weights, in Marian's format.

A file has one line per pair of the training text. A line has one number for the pair, or one number
per target token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np

from cbmi.data.corpus import Corpus, TokenValueBlock
from cbmi.data.lines import count_lines, read_lines, report_repaired
from cbmi.errors import UserError
from cbmi.progress import bar, counted

BLOCK_LINES = 20_000  # read at a time


def read_weights(file: str, per: str, corpus: Corpus) -> Iterator[TokenValueBlock]:
    """The weights of the corpus's target tokens, block by block.

    `per`: "token" or "pair". The lines belong to the lines of the training text; those of pairs
    that preparation left out are skipped. A line may leave out the end of sentence: it has no value
    then, which stands for a weight of 1.
    """
    offsets = corpus.target.offsets
    lines_of_text = corpus.lines_of_text()
    pair = 0
    counts: Counter[str] = Counter()
    with bar("Reading weights", count_lines(file), "lines") as progress:
        lines = enumerate(read_lines(file, counts))
        while block := list(islice(lines, BLOCK_LINES)):
            places = []
            weights = []
            for number, line in block:
                is_left_out = pair == len(corpus) or lines_of_text[pair] != number
                if is_left_out:
                    continue
                start = int(offsets[pair])
                tokens = int(offsets[pair + 1]) - start
                of_pair = weights_of_line(line, per, tokens, f"{file}, line {number + 1}")
                places.append(np.arange(start, start + len(of_pair)))
                weights.append(of_pair)
                pair += 1
            if places:
                yield TokenValueBlock(np.concatenate(places), np.concatenate(weights))
            progress.advance(len(block))
    if progress.done != corpus.text_lines:
        raise UserError(
            f"{file} has {counted(progress.done, 'line')}, but the training text has "
            f"{corpus.text_lines:,}."
        )
    report_repaired(counts)


def weights_of_line(text: str, per: str, tokens: int, where: str) -> np.ndarray:
    """The weights of one pair, which has `tokens` target tokens, the end of sentence included."""
    try:
        weights = np.array([float(word) for word in text.split()])
    except ValueError:
        raise UserError(
            f"{where}: something is not a number; a line of weights has numbers only."
        ) from None
    # They are kept in float32: what overflows there is infinite.
    overflows = weights > np.finfo(np.float32).max
    if overflows.any() or not np.isfinite(weights).all() or (weights < 0).any():
        raise UserError(f"{where}: a weight is a finite number, 0 or above, in single precision.")
    if per == "pair":
        if len(weights) != 1:
            raise UserError(f"{where}: {len(weights)} numbers, but per: pair needs one.")
        return np.repeat(weights, tokens)
    if len(weights) not in (tokens, tokens - 1):
        hint = ""
        if len(weights) == 1:
            hint = (
                "; `cbmi weights` writes a single number for a line that it leaves out, such as "
                "one above data.max_length; for one number per pair, set per: pair"
            )
        raise UserError(
            f"{where}: {counted(len(weights), 'number')} for {tokens:,} target pieces "
            f"(the end of sentence may be left out{hint})."
        )
    return weights
