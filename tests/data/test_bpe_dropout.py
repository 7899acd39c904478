"""BPE-dropout against its definition, word by word."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from cbmi.data.bpe_dropout import MergeTable, sample_words
from cbmi.data.vocabulary import SPACE, Vocabulary, learn
from cbmi.demo.corpus import generate

LINES = [text for pair in generate(400, seed=3) for text in (pair.source, pair.target)]
DRAWS = 20_000


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return learn(LINES, 500)


@pytest.fixture(scope="module")
def table(vocabulary) -> MergeTable:
    return MergeTable(vocabulary)


def by_definition(word: str, dropout: float, vocabulary: Vocabulary, generator) -> tuple[str, ...]:
    """One draw: the procedure of the paper, one merge at a time."""
    pieces = vocabulary.text_pieces()
    scores = vocabulary.scores()
    symbols = list(SPACE + word)
    while True:
        candidates = []
        for place in range(len(symbols) - 1):
            merged = symbols[place] + symbols[place + 1]
            if merged in pieces and generator.random() >= dropout:
                candidates.append((-scores[pieces[merged]], place))
        if not candidates:
            return tuple(symbols)
        _, place = min(candidates)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def sampled(words, draws, dropout, table, vocabulary, seed=1):
    counts = np.array(draws)
    return sample_words(words, counts, dropout, table, vocabulary, np.random.default_rng(seed))


def counts_of(result, number: int, vocabulary: Vocabulary) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for index in np.flatnonzero(result.word == number):
        ids = result.ids[result.starts[index] : result.starts[index + 1]]
        counts[tuple(vocabulary.pieces(ids))] += int(result.draws[index])
    return counts


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_the_distribution_is_that_of_the_definition(vocabulary, table, dropout):
    words = sorted({word for line in LINES for word in line.split()}, key=len)[-3:]
    result = sampled(words, [DRAWS] * 3, dropout, table, vocabulary)
    for number, word in enumerate(words):
        ours = counts_of(result, number, vocabulary)
        assert ours.total() == DRAWS
        generator = random.Random(2)
        theirs = Counter(
            by_definition(word, dropout, vocabulary, generator) for _ in range(DRAWS // 4)
        )
        for pieces in {*dict(ours.most_common(8)), *dict(theirs.most_common(8))}:
            share = (ours[pieces] + theirs[pieces]) / (DRAWS * 1.25)
            error = (share * (1 - share) * (1 / DRAWS + 4 / DRAWS)) ** 0.5
            difference = ours[pieces] / DRAWS - theirs[pieces] / (DRAWS // 4)
            assert abs(difference) < 4.5 * error, (word, pieces)


def test_without_dropout_there_is_one_segmentation(vocabulary, table):
    words = sorted({word for line in LINES for word in line.split()})
    result = sampled(words, [3] * len(words), 1e-12, table, vocabulary)
    assert result.word.tolist() == list(range(len(words)))
    assert set(result.draws.tolist()) == {3}
    plain = [ids[:-1] for ids in vocabulary.encode(words)]
    parts = np.split(result.ids, result.starts[1:-1])
    assert [part.tolist() for part in parts] == plain


def test_with_all_merges_dropped_there_are_characters(vocabulary, table):
    result = sampled(["Haus"], [5], 1 - 1e-12, table, vocabulary)
    assert vocabulary.pieces(result.ids) == [SPACE, "H", "a", "u", "s"]


def test_characters_without_a_piece_become_bytes(vocabulary, table):
    result = sampled(["a€b", "漢"], [1, 1], 1e-12, table, vocabulary)
    expected = [number for ids in vocabulary.encode(["a€b", "漢"]) for number in ids[:-1]]
    assert result.ids.tolist() == expected


def test_a_hash_table_finds_every_merge_and_nothing_else(vocabulary, table):
    pieces = vocabulary.text_pieces()
    names = list(pieces)
    generator = random.Random(0)
    for _ in range(3000):
        left = generator.choice(names)
        right = generator.choice(names)
        expected = pieces.get(left + right, -1)
        found = table.merge(np.array([pieces[left]]), np.array([pieces[right]]))
        assert found.tolist() == [expected]
    for piece, number in pieces.items():
        for cut in range(1, len(piece)):
            if piece[:cut] in pieces and piece[cut:] in pieces:
                left = np.array([pieces[piece[:cut]]])
                assert table.merge(left, np.array([pieces[piece[cut:]]])).tolist() == [number]
