"""An existing sentencepiece model as a vocabulary.

Its pieces, scores and normalisation stay. Only the special pieces move: ids 0 to 3 are padding,
begin, end and unknown here, elsewhere they are something else or missing. A sentencepiece model is
a protocol buffer, and its pieces are entries of one list (field 1), so the list is put in another
order without a library for the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cbmi.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNKNOWN, Vocabulary
from cbmi.errors import UserError
from cbmi.files import require_ordinary

# Field numbers of sentencepiece's ModelProto, SentencePiece, TrainerSpec and NormalizerSpec.
PIECES = 1
TRAINER = 2
NORMALIZER = 3
PIECE_TEXT = 1
PIECE_TYPE = 3
TRAINER_MODEL_TYPE = 3
TRAINER_SPACE_AS_SUFFIX = 24
NORMALIZER_NAME = 1
NORMALIZER_FLAGS = (3, 4, 5)  # dummy prefix, no extra whitespace, escaped whitespace
# Kinds of pieces.
UNKNOWN_KIND = 2
CONTROL_KIND = 3
USER_DEFINED_KIND = 4
SPACE = "▁"
BPE = 2  # a type of model
IDENTITY = b"identity"

NAMES = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNKNOWN: "<unk>"}


class Field(NamedTuple):
    """A field of a message: its number, its value, and all of its bytes."""

    number: int
    value: int | bytes
    raw: bytes


class _Piece(NamedTuple):
    text: str
    kind: int
    raw: bytes


def import_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a sentencepiece model file, with the special pieces in their places."""
    require_ordinary(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    try:
        vocabulary = Vocabulary(_reordered(content))
    except (ValueError, IndexError, RuntimeError):
        raise UserError(f"{path}: this is not a sentencepiece model.") from None
    if not vocabulary.has_special_pieces():
        raise UserError(
            f"{path}: the pieces of this model for the end of a sentence and for unknown text have "
            "other names than </s> and <unk>, and cannot be used."
        )
    return vocabulary


def can_be_sampled(vocabulary: Vocabulary) -> bool:
    """Whether BPE-dropout can be drawn: it needs merges, bytes, and text taken as it is.

    Merges make neither user-defined symbols nor pieces of several words.
    """
    is_bpe = False
    is_plain = False
    for field in _fields(vocabulary.model):
        if not isinstance(field.value, bytes):
            continue
        if field.number == PIECES:
            piece = _piece(field)
            if piece.kind == USER_DEFINED_KIND or SPACE in piece.text[1:]:
                return False
        if field.number == TRAINER:
            model_type = _number(field.value, TRAINER_MODEL_TYPE)
            is_bpe = model_type == BPE and not _number(field.value, TRAINER_SPACE_AS_SUFFIX, 0)
        if field.number == NORMALIZER:
            name = [part.value for part in _fields(field.value) if part.number == NORMALIZER_NAME]
            flags = [_number(field.value, number) for number in NORMALIZER_FLAGS]
            is_plain = name == [IDENTITY] and all(flags)
    return is_bpe and is_plain and vocabulary.has_bytes()


def _reordered(content: bytes) -> bytes:
    pieces: list[_Piece] = []
    others: list[bytes] = []
    for field in _fields(content):
        if field.number == PIECES and isinstance(field.value, bytes):
            pieces.append(_piece(field))
        else:
            others.append(field.raw)
    if not pieces:
        raise ValueError("no pieces")
    special: list[bytes] = []
    taken: set[bytes] = set()
    for number in range(SPECIALS):
        kind = UNKNOWN_KIND if number == UNKNOWN else CONTROL_KIND
        found = _special(pieces, number)
        if found is not None:
            taken.add(found.raw)
        is_right = found is not None and found.kind == kind
        special.append(found.raw if found and is_right else _new_piece(NAMES[number], kind))
    rest = [piece.raw for piece in pieces if piece.raw not in taken]
    return b"".join([*special, *rest, *others])


def _special(pieces: list[_Piece], number: int) -> _Piece | None:
    """The piece of a special id, if the model has one."""
    for piece in pieces:
        is_wanted = piece.text == NAMES[number]
        if number == UNKNOWN:
            is_wanted = piece.kind == UNKNOWN_KIND  # whatever its name
        if is_wanted:
            return piece
    return None


def _piece(field: Field) -> _Piece:
    assert isinstance(field.value, bytes)
    text = b""
    for part in _fields(field.value):
        if part.number == PIECE_TEXT and isinstance(part.value, bytes):
            text = part.value
    return _Piece(text.decode(), _number(field.value, PIECE_TYPE), field.raw)


def _number(message: bytes, number: int, default: int = 1) -> int:
    """A number of a message; its default, which is mostly 1, if it is not there."""
    for part in _fields(message):
        if part.number == number and isinstance(part.value, int):
            return part.value
    return default


def _new_piece(text: str, kind: int) -> bytes:
    body = _length_delimited(PIECE_TEXT, text.encode()) + bytes([PIECE_TYPE << 3, kind])
    return _length_delimited(PIECES, body)


def _length_delimited(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fields(message: bytes) -> Iterator[Field]:
    """The fields of a message, in order."""
    place = 0
    while place < len(message):
        start = place
        tag, place = _read_varint(message, place)
        wire = tag & 7
        value: int | bytes
        if wire == 0:
            value, place = _read_varint(message, place)
        elif wire == 2:
            length, place = _read_varint(message, place)
            value = message[place : place + length]
            place += length
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
            value = message[place : place + length]
            place += length
        else:
            raise ValueError("not a protocol buffer")
        if place > len(message):
            raise ValueError("the message is cut off")
        yield Field(tag >> 3, value, message[start:place])


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number of over 64 bits")
