"""Beam search and sampling."""

from cbmi.decoding.beam import beam_search
from cbmi.decoding.candidates import Fusion, Hypothesis, SearchSettings, SpecialIds
from cbmi.decoding.sampling import Sampling
from cbmi.decoding.translate import translate_ids

__all__ = [
    "Fusion",
    "Hypothesis",
    "Sampling",
    "SearchSettings",
    "SpecialIds",
    "beam_search",
    "translate_ids",
]
