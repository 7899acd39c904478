"""What a decoder or a language model reads before the first label."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cbmi.errors import UserError

Start = int | Sequence[int]


def start_ids(start: Any) -> list[int]:
    """The ids of a `Start`; refuses what is none."""
    if start is None:
        raise UserError(
            "start: it is None; give the id that the decoder begins with: for mBART that of the "
            "target language, for a decoder-only model the prompt without the source."
        )
    if isinstance(start, Mapping):
        start = start["input_ids"]  # as a tokenizer gives them
    try:
        ids = [operator.index(number) for number in (start if _is_many(start) else [start])]
    except TypeError:
        raise UserError(
            "start: give an id or a list of ids, which a tokenizer makes of text, not "
            f"{start!r:.50}."
        ) from None
    if not ids:
        raise UserError("start: give at least one id, such as decoder_start_token_id.")
    return ids


def _is_many(start: Any) -> bool:
    return isinstance(start, Iterable) and getattr(start, "ndim", 1) > 0


def check_start(ids: Sequence[int], size: int) -> None:
    for number in ids:
        if not 0 <= number < size:
            raise UserError(f"start: the language model has no id {number}.")
