"""The target vocabulary of a tokenizer as objectives know one: special pieces first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbmi.data.statistics import relative_frequency
from cbmi.data.vocabulary import EOS, SPECIALS
from cbmi.data.words import WORD_START, word_boundaries
from cbmi.huggingface.columns import IGNORED

SPECIAL_PIECES = ["<pad>", "<s>", "</s>", "<unk>"]  # those that have the first ids here
BYTE_LEVEL_SPACE = "Ġ"  # how byte-level BPE writes a space


class TargetPieces:
    """Ids of the model's target vocabulary to ids of objectives.

    Objectives take the first ids for special pieces, which have no frequency and are words of their
    own; Hugging Face's tokenizers have theirs anywhere.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        """`size`: of the model's output layer, which may be larger than the tokenizer's."""
        self.pieces = spelt(tokenizer, size)
        self.starts_are_known = any(piece.startswith(WORD_START) for piece in self.pieces)
        ids = np.arange(size, dtype=np.int64) + SPECIALS
        special = [number for number in special_ids(tokenizer) if number < size]
        ids[special] = EOS
        self.ids = torch.from_numpy(ids)

    def boundaries(self) -> Tensor:
        """(size + special ones,) flags of `cbmi.data.words.word_boundaries`."""
        return torch.from_numpy(word_boundaries([*SPECIAL_PIECES, *self.pieces]))

    def frequency(self, labels: Iterable[Iterable[list[int]]]) -> Tensor:
        """(size + special ones,) of each piece, relative to the median piece.

        `labels`: those of the training data, in blocks of sentences.
        """
        size = len(self.ids)
        counts = np.zeros(size, np.int64)
        for block in labels:
            ids = np.concatenate([np.asarray(sentence, dtype=np.int64) for sentence in block])
            counts += np.bincount(ids[ids != IGNORED], minlength=size)
        mapped = np.zeros(size + SPECIALS, np.int64)
        np.add.at(mapped, self.ids.numpy(), counts)
        return torch.from_numpy(relative_frequency(mapped)).float()


def special_ids(tokenizer: Any) -> list[int]:
    """Those of special pieces in the target vocabulary."""
    if not getattr(tokenizer, "separate_vocabs", False):
        return list(tokenizer.all_special_ids)
    known = tokenizer.target_encoder
    return [known[piece] for piece in tokenizer.all_special_tokens if piece in known]


def is_byte_level(pieces: Iterable[str]) -> bool:
    """Whether spaces are written as byte-level BPE writes them."""
    kinds = {piece[:1] for piece in pieces}
    return BYTE_LEVEL_SPACE in kinds and WORD_START not in kinds


def spelt(tokenizer: Any, size: int) -> list[str]:
    """The target vocabulary's pieces as sentencepiece writes them: a space is "▁"."""
    if getattr(tokenizer, "separate_vocabs", False):
        known = {number: piece for piece, number in tokenizer.target_encoder.items()}
    else:
        known = {number: piece for piece, number in tokenizer.get_vocab().items()}
    if is_byte_level(known.values()):
        special = set(tokenizer.all_special_ids)
        for number, piece in known.items():
            if number not in special:
                text = tokenizer.convert_tokens_to_string([piece])
                known[number] = text.replace(" ", WORD_START)
    return [known.get(number, "") for number in range(size)]
