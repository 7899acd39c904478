"""Translator, language model, attention, output head."""

from cbmi.model.language_model import LanguageModel
from cbmi.model.packed import Layout, Packed, pack, pack_sentences, shift_right
from cbmi.model.translator import Translator

__all__ = [
    "LanguageModel",
    "Layout",
    "Packed",
    "Translator",
    "pack",
    "pack_sentences",
    "shift_right",
]
