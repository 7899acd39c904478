"""Small networks and sentences to search with."""

from __future__ import annotations

import numpy as np
import torch

from cbmi.decoding import SearchSettings, SpecialIds, beam_search, translate_ids
from cbmi.model import LanguageModel, Translator, pack_sentences
from cbmi.model.layers import Shape

SPECIAL = SpecialIds(pad=0, begin=1, end=2)


def model(vocabulary, seed=0, sharpness=3.0):
    torch.manual_seed(seed)
    network = Translator(Shape(16, 32, 2, 1, 2), vocabulary, vocabulary, shared=True).eval()
    network.target_embedding.weight.data *= sharpness
    return network.requires_grad_(False)


def sources(lengths, vocabulary, seed=0):
    random = np.random.default_rng(seed)
    return [[*random.integers(3, vocabulary, n - 1).tolist(), SPECIAL.end] for n in lengths]


def packed(sentences):
    return pack_sentences(sentences)


def search(network, sentences, limits=None, numbers=None, **settings):
    """Beam search over packed sentences."""
    source = packed(sentences)
    return beam_search(network, source, SearchSettings(SPECIAL, **settings), limits, numbers)


def translate(network, sentences, advance=lambda sentences: None, numbers=None, **settings):
    """Beam search in batches or slots."""
    return translate_ids(
        network, sentences, SearchSettings(SPECIAL, **settings), numbers=numbers, advance=advance
    )


def language_model(vocabulary, seed=9):
    torch.manual_seed(seed)
    network = LanguageModel(Shape(16, 32, 2, 1, 2), vocabulary).eval()
    network.embedding.weight.data *= 3.0
    return network.requires_grad_(False)
