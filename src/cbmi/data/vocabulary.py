"""Sentencepiece BPE with byte fallback: text to ids and back."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from cbmi.errors import UserError
from cbmi.progress import say

PAD, BOS, EOS, UNKNOWN = 0, 1, 2, 3
SPECIALS = 4  # ids below are no pieces of text
MOST_THREADS, LINES_A_THREAD = 16, 500  # that encode text; a few lines are not worth a second one
LONGEST_SAMPLE = 4192  # bytes; longer lines are passed over when the vocabulary is learnt


class Vocabulary:
    """One side's pieces. Ids 0 to 3 are padding, begin, end and (never produced) unknown."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        try:
            return cls(path.read_bytes())
        except OSError as error:
            raise UserError(f"{path}: the vocabulary cannot be read: {error.strerror}.") from None
        except RuntimeError:
            raise UserError(f"{path}: this is not a sentencepiece model.") from None

    def __len__(self) -> int:
        return self._processor.vocab_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, end of sentence included."""
        threads = min(os.cpu_count() or 1, MOST_THREADS, 1 + len(lines) // LINES_A_THREAD)
        return self._processor.encode(list(lines), add_eos=True, num_threads=threads)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special pieces vanish, and a translation never breaks a line."""
        return self._processor.decode([int(i) for i in ids]).replace("\n", " ").replace("\r", " ")

    def id_of(self, piece: str) -> int:
        return self._processor.piece_to_id(piece)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._processor.id_to_piece(int(i)) for i in ids]


def learn(lines: Iterable[str], size: int) -> Vocabulary:
    """Learn a vocabulary of `size` pieces from lines of text; the same lines give the same vocabulary."""
    model = io.BytesIO()
    problems: list[UserError] = []
    passed_over = learnt_from = 0

    def watched() -> Iterator[str]:  # sentencepiece would wrap the error of a bad corpus in one of its own
        nonlocal passed_over, learnt_from
        try:
            for line in lines:
                if len(line.encode()) > LONGEST_SAMPLE:
                    passed_over += 1
                else:
                    learnt_from += 1
                    yield line
        except UserError as error:
            problems.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=watched(),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
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
        if not problems and not learnt_from:
            raise UserError(
                f"data.train: every line is over {LONGEST_SAMPLE:,} bytes; sentences are expected."
            ) from None
        raise (problems[0] if problems else UserError(_why_not(str(error), size))) from None
    if passed_over:
        say(f"The vocabulary was learnt without {passed_over:,} lines of over {LONGEST_SAMPLE:,} bytes.")
    return Vocabulary(model.getvalue())


def _why_not(message: str, size: int) -> str:
    most = re.search(r"<= (\d+)", message)
    if most:
        return (
            f"data.vocabulary.size: {size} is larger than this corpus allows; "
            f"take at most {most.group(1)}, or use more text."
        )
    least = re.search(r"\d+ vs (\d+)", message)
    if least:
        return (
            f"data.vocabulary.size: {size} is too small for the letters of this corpus; "
            f"take at least {least.group(1)}."
        )
    return f"data.vocabulary: sentencepiece could not learn a vocabulary of {size} ({message.strip()})."
