"""Beam search."""

from cbmi.decoding.beam import Fusion, Hypothesis, beam_search
from cbmi.decoding.candidates import Special
from cbmi.decoding.translate import translate_ids

__all__ = ["Fusion", "Hypothesis", "Special", "beam_search", "translate_ids"]
