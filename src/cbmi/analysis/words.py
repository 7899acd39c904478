"""Sentencepiece pieces joined to words, so that people read words and not pieces."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WORD_START = "▁"
CONTROL = frozenset({"<s>", "</s>", "<pad>"})
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Thai, Lao, Myanmar, Khmer, kana, Han: written without spaces, so a whole sentence would be one word.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")

EDGES = re.compile(r"^\W+|\W+$")


@dataclass(frozen=True)
class Word:
    """A word: its text, the positions of its pieces, and whether a space stands before it."""

    text: str
    pieces: range
    space: bool = True
    control: bool = False


def words(pieces: Sequence[str]) -> list[Word]:
    """The words that `pieces` spell, in order; every piece belongs to exactly one word.

    A word goes up to the next "▁". Control symbols such as "</s>" stand alone, neighbouring byte pieces
    are decoded together, and in scripts without spaces every piece is a word.
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
    """The sum of each word's `values` (one per piece): log-probabilities of pieces add up to the word's."""
    return [sum(values[position] for position in word.pieces) for word in joined]


def means(joined: Iterable[Word], values: Sequence[float]) -> list[float]:
    """The mean of each word's `values` (one per piece), for weights, which do not add up."""
    return [sum(values[position] for position in word.pieces) / len(word.pieces) for word in joined]


def repeats(joined: Sequence[Word], values: Sequence[float]) -> list[tuple[float, list[int]]]:
    """Words that occur several times: (the largest less the smallest of their values, their places), the largest
    difference first. Case and punctuation around a word make no difference."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(joined):
        text = EDGES.sub("", word.text).casefold()
        if text and not word.control:
            places.setdefault(text, []).append(place)
    found = [
        (max(own) - min(own), several)
        for several in places.values()
        if len(several) > 1 and all(map(math.isfinite, own := [values[place] for place in several]))
    ]
    return sorted(found, key=lambda one: -one[0])


def _units(pieces: Sequence[str]) -> list[tuple[str, range]]:
    """(text, positions) of every piece, runs of byte pieces taken together and decoded."""
    units = []
    start = 0
    while start < len(pieces):
        stop, encoded = start, bytearray()
        while stop < len(pieces) and (byte := BYTE.fullmatch(pieces[stop])):
            encoded.append(int(byte[1], 16))
            stop += 1
        text = encoded.decode(errors="replace") if encoded else pieces[start]
        stop = max(stop, start + 1)
        units.append((text, range(start, stop)))
        start = stop
    return units


def _starts_word(text: str, before: Word) -> bool:
    """Whether a piece begins a word of its own, `before` being the word so far."""
    if text.startswith(WORD_START) or text in CONTROL or before.control:
        return True
    # A "▁" of its own before such a script has no text yet: it only opens the word.
    return bool(before.text) and bool(UNSPACED.match(before.text[-1]) or UNSPACED.match(text))


def _plain(text: str) -> str:
    """The text of a piece: a leading "▁" only marks the word's start, one inside is a space."""
    return text.removeprefix(WORD_START).replace(WORD_START, " ")
