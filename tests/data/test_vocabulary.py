"""Ids back to text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmi.data.vocabulary import EOS, Vocabulary, learn
from cbmi.errors import UserError

WORDS = "ein haus und noch ein baum im garten der stadt"
VOCABULARY: Vocabulary = learn([WORDS] * 20, 300, exactly=False)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"])))
def test_any_text_comes_back(text):
    """Characters without a piece become bytes, and bytes characters again."""
    (ids,) = VOCABULARY.encode([text])
    assert ids[-1] == EOS
    assert VOCABULARY.decode(ids) == text.replace("\u2581", " ").strip(" ")


@pytest.mark.parametrize(
    ("line", "problem"),
    [(5, "5 is not text but int."), ("a\ud800", r"'a\ud800' has half of a character")],
)
def test_what_is_not_text_is_named(line, problem):
    with pytest.raises(UserError) as refusal:
        VOCABULARY.encode(["ein haus", line])
    assert problem in str(refusal.value)


@given(st.lists(st.integers(0, 255)))
def test_a_translation_has_no_control_characters(values):
    """A weak model makes any bytes: no line ends early, and no NUL reaches a file."""
    text = VOCABULARY.decode([VOCABULARY.byte_id(value) for value in values])
    assert all(
        character == "\t" or character.isprintable() or ord(character) > 0x9F for character in text
    )
    assert len(text.splitlines()) <= 1 or "\u2028" in text or "\u2029" in text
