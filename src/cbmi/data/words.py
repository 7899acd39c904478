"""Sentencepiece pieces joined to words, because people read words, not pieces."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

WORD_START = "▁"
CONTROL = frozenset({"<s>", "</s>", "<pad>"})
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Thai, Lao, Myanmar, Khmer, kana, Han: written without spaces, so a whole sentence would be a word.
UNSPACED_SCRIPT = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
# Punctuation around a word.
OUTER_PUNCTUATION = re.compile(r"^\W+|\W+$")


@dataclass(frozen=True)
class Word:
    """A word: its text, the positions of its pieces, and whether a space precedes it."""

    text: str
    pieces: range
    space: bool = True
    control: bool = False  # a symbol such as "</s>", not text


def words(pieces: Sequence[str]) -> list[Word]:
    """The words that `pieces` spell, in order; every piece belongs to exactly one word.

    A word ends before the next "▁". Control symbols such as "</s>" stand alone, neighbouring byte
    pieces are decoded together, and in scripts without spaces every piece is a word.
    """
    joined: list[Word] = []
    for text, positions in _units(pieces):
        before = joined[-1] if joined else None
        if before is None or _starts_word(text, before):
            space = bool(joined) and text.startswith(WORD_START)
            joined.append(Word(_plain(text), positions, space, control=text in CONTROL))
        else:
            together = range(before.pieces.start, positions.stop)
            joined[-1] = Word(before.text + _plain(text), together, before.space)
    return joined


def sums(joined: Iterable[Word], values: Sequence[float]) -> list[float]:
    """The sum of each word's `values` (one per piece): log-probabilities of pieces add up."""
    return [_sum(word, values) for word in joined]


def means(joined: Iterable[Word], values: Sequence[float]) -> list[float]:
    """The mean of each word's `values` (one per piece): for weights, which do not add up."""
    return [_sum(word, values) / len(word.pieces) for word in joined]


def _sum(word: Word, values: Sequence[float]) -> float:
    return sum(values[position] for position in word.pieces)


def repeats(joined: Sequence[Word], values: Sequence[float]) -> list[tuple[float, list[int]]]:
    """Words that occur several times, as (largest minus smallest value, places in `joined`).

    `values` are the words' own, one per word. The largest difference comes first. Case and
    surrounding punctuation make no difference. Words with a value that is NaN or infinite are left
    out.
    """
    places_of_word: dict[str, list[int]] = {}
    for place, word in enumerate(joined):
        text = OUTER_PUNCTUATION.sub("", word.text).casefold()
        if text and not word.control:
            places_of_word.setdefault(text, []).append(place)
    found = []
    for places in places_of_word.values():
        if len(places) < 2:
            continue
        own = [values[place] for place in places]
        if all(math.isfinite(value) for value in own):
            found.append((max(own) - min(own), places))
    # The sort is stable: of equal differences, the word that occurs first comes first.
    return sorted(found, key=lambda repeat: -repeat[0])


def _units(pieces: Sequence[str]) -> list[tuple[str, range]]:
    """(text, positions) of every piece; runs of byte pieces are taken together and decoded."""
    units = []
    start = 0
    while start < len(pieces):
        stop = start
        encoded = bytearray()
        while stop < len(pieces) and (byte := BYTE.fullmatch(pieces[stop])):
            encoded.append(int(byte[1], 16))
            stop += 1
        if encoded:
            text = encoded.decode(errors="replace")
        else:
            text = pieces[start]
            stop = start + 1
        units.append((text, range(start, stop)))
        start = stop
    return units


def _starts_word(text: str, before: Word) -> bool:
    """Whether a piece begins a word of its own; `before` is the word so far."""
    if text.startswith(WORD_START) or text in CONTROL or before.control:
        return True
    if not before.text:
        # A "▁" of its own, before a script without spaces, has only opened the word.
        return False
    return bool(UNSPACED_SCRIPT.match(before.text[-1]) or UNSPACED_SCRIPT.match(text))


def _plain(text: str) -> str:
    """The text of a piece: a leading "▁" only marks the word's start, one inside is a space."""
    return text.removeprefix(WORD_START).replace(WORD_START, " ")


# What `word_boundaries` says of a piece.
OPENS = 1  # a word begins with it
CLOSES = 2  # a word ends with it
UNSPACED_FIRST = 4  # its first character is of a script without spaces
UNSPACED_LAST = 8  # its last one is
SPACE_ALONE = 16  # "▁" of its own: it has only opened the word
ONE_BYTE = 32  # it spells a byte
LATER_BYTE = 64  # not the first byte of its character
# First bytes of characters from U+3000 to U+9FFF, which have three bytes each.
UNSPACED_BYTES = range(0xE3, 0xEA)
LATER_BYTES = range(0x80, 0xC0)


def word_boundaries(pieces: Sequence[str]) -> np.ndarray:
    """(pieces,) uint8: what each piece says of the words around it, as a sum of the flags above.

    With these, `words_of_tokens` finds the words of `words` for many tokens at a time. (Bytes are
    not decoded: what counts as a script without spaces is characters from U+3000 to U+9FFF, which
    are known by their first byte, punctuation among them.)
    """
    flags = np.zeros(len(pieces), np.uint8)
    for number, piece in enumerate(pieces):
        if byte := BYTE.fullmatch(piece):
            flags[number] = _byte_flags(int(byte[1], 16))
            continue
        text = _plain(piece)
        if piece in CONTROL:
            flags[number] = OPENS | CLOSES
            continue
        if piece.startswith(WORD_START):
            flags[number] |= OPENS
        if not text:
            flags[number] |= SPACE_ALONE
            continue
        if UNSPACED_SCRIPT.match(text[0]):
            flags[number] |= UNSPACED_FIRST
        if UNSPACED_SCRIPT.match(text[-1]):
            flags[number] |= UNSPACED_LAST
    return flags


def _byte_flags(byte: int) -> int:
    if byte in UNSPACED_BYTES:
        return ONE_BYTE | UNSPACED_FIRST | UNSPACED_LAST
    if byte in LATER_BYTES:
        return ONE_BYTE | LATER_BYTE
    return ONE_BYTE


def looks_unspaced(lines: Sequence[str]) -> bool:
    """Whether a third of the letters are of a script without spaces between words."""
    text = "".join("".join(line.split()) for line in lines[:1000])
    return len(UNSPACED_SCRIPT.findall(text)) > len(text) / 3
