"""Sentencepiece BPE with byte fallback: text to ids and back."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from cbmi.errors import UserError
from cbmi.files import require_ordinary
from cbmi.progress import say

PAD = 0
BOS = 1
EOS = 2
UNKNOWN = 3
SPECIALS = 4  # ids below are special; ids from here on are pieces of text

SPACE = "\u2581"  # how sentencepiece writes a space

# Line breaks would end a translation's line, and no program expects the others. Tabs may stay.
CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {ord("\t")}
SPACES_FOR_CONTROLS = dict.fromkeys(CONTROLS, " ")

MAX_ENCODING_THREADS = 16
LINES_PER_THREAD = 500  # a few lines are not worth a second thread
SHOWN = 40  # characters of a line in an error
SMALLEST = 300  # pieces of a vocabulary: 256 are for single bytes, 4 are special
LONGEST_SAMPLE = 4192  # bytes; a vocabulary is learnt without longer lines


class Vocabulary:
    """One side's pieces. Ids 0 to 3 are padding, begin, end and unknown.

    UNKNOWN is never produced by `encode` if there are byte pieces, as in those that are learnt
    here: characters without a piece become bytes.
    """

    def __init__(self, model: bytes) -> None:
        """`model`: the content of a sentencepiece model file."""
        self.model = model
        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        require_ordinary(path)
        try:
            return cls(path.read_bytes())
        except OSError as error:
            raise UserError(f"{path}: the vocabulary cannot be read: {error.strerror}.") from None
        except RuntimeError:
            raise UserError(f"{path}: this is not a sentencepiece model.") from None

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    def has_special_pieces(self) -> bool:
        """Whether end and unknown, which sentencepiece itself uses, have the ids they have here."""
        processor = self._processor
        return bool(processor.eos_id() == EOS and processor.unk_id() == UNKNOWN)

    def has_bytes(self) -> bool:
        """Whether characters without a piece become bytes, not unknown ones."""
        return any(self._processor.is_byte(number) for number in range(len(self)))

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, end of sentence included."""
        worthwhile = 1 + len(lines) // LINES_PER_THREAD
        threads = min(os.cpu_count() or 1, MAX_ENCODING_THREADS, worthwhile)
        ids: list[list[int]]
        try:
            ids = self._processor.encode(list(lines), add_eos=True, num_threads=threads)
        except TypeError:
            for line in lines:
                _check_text(line)
            raise
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids. Special pieces vanish, unknown ones become ⁇, control characters spaces."""
        text: str = self._processor.decode([int(i) for i in ids])
        return text.translate(SPACES_FOR_CONTROLS)

    def id_of(self, piece: str) -> int:
        return int(self._processor.piece_to_id(piece))

    def text_pieces(self) -> dict[str, int]:
        """The pieces that merges make and the single characters, with their ids."""
        pieces = {}
        for number in range(SPECIALS, len(self)):
            if not self._processor.is_byte(number) and not self._processor.is_unused(number):
                pieces[self._processor.id_to_piece(number)] = number
        return pieces

    def scores(self) -> np.ndarray:
        """(pieces,): merges with a higher score come first."""
        return np.array([self._processor.get_score(number) for number in range(len(self))])

    def byte_id(self, byte: int) -> int:
        return self.id_of(f"<0x{byte:02X}>")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._processor.id_to_piece(int(i)) for i in ids]


def _check_text(line: Any) -> None:
    """Refuse what sentencepiece cannot encode."""
    shown = repr(line)[:SHOWN]
    if not isinstance(line, str):
        raise UserError(f"{shown} is not text but {type(line).__name__}.")
    if any("\ud800" <= character <= "\udfff" for character in line):
        raise UserError(f"{shown} has half of a character (a lone surrogate).")


def learn(lines: Iterable[str], size: int, exactly: bool = True) -> Vocabulary:
    """Learn a vocabulary of `size` pieces; the same lines give the same vocabulary.

    Not `exactly`: or of fewer, if the lines have no more.
    """
    model = io.BytesIO()
    sample = _TrainingSample(lines)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=exactly,
            byte_fallback=True,
            character_coverage=0.9995,
            normalization_rule_name="identity",  # no letter is changed; runs of spaces become one
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNKNOWN,
            shuffle_input_sentence=False,
            max_sentence_length=LONGEST_SAMPLE,
            minloglevel=3,
        )
    except RuntimeError as error:
        # sentencepiece wraps an error of the corpus in one of its own: raise the original.
        if sample.error is not None:
            raise sample.error from None
        if sample.used == 0:
            raise UserError(
                f"data.train: every line is over {LONGEST_SAMPLE:,} bytes; sentences are expected."
            ) from None
        raise UserError(_why_not(str(error), size)) from None
    if sample.skipped:
        say(
            f"The vocabulary was learnt without {sample.skipped:,} lines "
            f"of over {LONGEST_SAMPLE:,} bytes."
        )
    return Vocabulary(model.getvalue())


class _TrainingSample:
    """Lines to learn from: skips those that are too long, counts, and remembers an error."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = lines
        self.used = 0
        self.skipped = 0
        self.error: UserError | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self.lines:
                if len(line.encode()) > LONGEST_SAMPLE:
                    self.skipped += 1
                else:
                    self.used += 1
                    yield line
        except UserError as error:
            self.error = error
            raise


def _why_not(message: str, size: int) -> str:
    """Why sentencepiece refused a size; the bound is told only in the words of its message."""
    most = re.search(r"<= (\d+)", message)
    if most and int(most.group(1)) < SMALLEST:
        return (
            f"data.vocabulary.size: this corpus is too small for a vocabulary: it allows "
            f"{most.group(1)} pieces, and {SMALLEST} are the least; use more text."
        )
    if most:
        return (
            f"data.vocabulary.size: {size} is larger than this corpus allows; "
            f"use at most {most.group(1)}, or use more text."
        )
    least = re.search(r"\d+ vs (\d+)", message)
    if least:
        return (
            f"data.vocabulary.size: {size} is too small for the characters of this corpus; "
            f"use at least {least.group(1)}."
        )
    reason = message.strip()
    return f"data.vocabulary: sentencepiece could not learn a vocabulary of {size} ({reason})."
