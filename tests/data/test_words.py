"""Pieces joined to words."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbmi.data.words import means, sums, word_boundaries, words
from cbmi.objectives.base import words_of_tokens


def texts(*pieces: str) -> list[str]:
    return [word.text for word in words(pieces)]


def test_a_word_goes_up_to_the_next_mark():
    joined = words(["▁Das", "▁Hoch", "haus", ".", "</s>"])
    assert [word.text for word in joined] == ["Das", "Hochhaus.", "</s>"]
    assert [word.pieces for word in joined] == [range(0, 1), range(1, 4), range(4, 5)]
    assert [word.space for word in joined] == [False, True, False]
    assert [word.control for word in joined] == [False, False, True]


def test_bytes_are_decoded_together_and_join_the_word():
    assert texts("▁Kova", "<0xC4>", "<0x8D>", "evi", "<0xC4>", "<0x87>") == ["Kovačević"]
    assert texts("▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁ja") == ["😀", "ja"]


def test_bytes_that_are_no_text_are_shown_as_such():
    assert texts("▁a", "<0xC4>", "▁b") == ["a\ufffd", "b"]


def test_marks_inside_a_piece_are_spaces():
    assert texts("▁New▁York", "▁City") == ["New York", "City"]


def test_a_mark_alone_opens_the_word():
    assert texts("▁", "Haus", "▁") == ["Haus", ""]


def test_sentences_without_a_leading_mark():
    assert texts("Das", "▁Haus") == ["Das", "Haus"]


def test_control_symbols_stand_alone():
    assert texts("<s>", "a", "</s>") == ["<s>", "a", "</s>"]


def test_scripts_without_spaces_are_not_joined():
    assert texts("▁", "我们", "喜欢", "AI", "▁模型") == ["我们", "喜欢", "AI", "模型"]
    assert [word.space for word in words(["▁我们", "喜欢", "▁AI"])] == [False, False, True]


def test_empty():
    assert words([]) == []


def test_log_probabilities_add_and_weights_average():
    joined = words(["▁a", "b", "▁c"])
    assert sums(joined, [1.0, 2.5, -1.0]) == [3.5, -1.0]
    assert means(joined, [1.0, 2.0, 0.5]) == [1.5, 0.5]


telling_piece = st.sampled_from(["▁", "▁a", "<0xC3>", "<0xA4>", "</s>", "我"])


@given(st.lists(st.one_of(telling_piece, st.text(max_size=3))))
def test_every_piece_belongs_to_one_word(pieces):
    joined = words(pieces)
    positions = list(chain.from_iterable(word.pieces for word in joined))
    assert positions == list(range(len(pieces)))
    assert sum(sums(joined, [1] * len(pieces))) == pytest.approx(len(pieces))


PIECES = ["▁", "▁Das", "haus", ".", "，", "</s>", "漢", "▁漢", "字a", "ab", "▁x漢", "<s>"]
SPELT = ["C", "ä", "換", "カ", "😀"]  # in bytes
text_piece = st.sampled_from(PIECES).map(lambda piece: [piece])
byte_pieces = st.sampled_from(SPELT).map(
    lambda character: [f"<0x{byte:02X}>" for byte in character.encode()]
)


@given(st.lists(st.lists(st.one_of(text_piece, byte_pieces), min_size=1), min_size=1))
def test_words_of_many_tokens_are_those_of_each_sentence(parts):
    sentences = [list(chain(*sentence)) for sentence in parts]
    expected = []
    number = 0
    for sentence in sentences:
        for word in words(sentence):
            expected += [number] * len(word.pieces)
            number += 1
    flags = torch.from_numpy(word_boundaries(list(chain(*sentences))))
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    found = words_of_tokens(flags, torch.repeat_interleave(lengths))
    assert found.tolist() == expected
