"""Beam search."""

from cbmi.decoding.beam import Hypothesis, Special, beam_search
from cbmi.decoding.translate import translate_ids

__all__ = ["Hypothesis", "Special", "beam_search", "translate_ids"]
