"""Beam search."""

from cbmi.decoding.beam import Fusion, Hypothesis, Special, beam_search
from cbmi.decoding.translate import translate_ids

__all__ = ["Fusion", "Hypothesis", "Special", "beam_search", "translate_ids"]
