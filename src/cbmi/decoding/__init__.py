"""Beam search."""

from cbmi.decoding.beam import beam_search
from cbmi.decoding.candidates import Fusion, Hypothesis, SearchSettings, SpecialIds
from cbmi.decoding.translate import translate_ids

__all__ = [
    "Fusion",
    "Hypothesis",
    "SearchSettings",
    "SpecialIds",
    "beam_search",
    "translate_ids",
]
