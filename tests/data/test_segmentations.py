"""BPE-dropout: sampled segmentations of words, lines and corpora."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmi.data.prepare import open_corpus, open_training_corpora, prepare_corpora
from cbmi.data.segmentations import (
    PackedLines,
    WordSampler,
    without_long_lines,
)
from cbmi.data.vocabulary import EOS, Vocabulary, learn
from cbmi.data_settings import DataSettings, SegmentationSettings, VocabularySettings
from cbmi.demo.corpus import generate

PAIRS = [(pair.source, pair.target) for pair in generate(400, seed=3)]
LINES = [source for source, _ in PAIRS]


@cache
def learnt() -> Vocabulary:
    return learn(LINES, 420)


@pytest.fixture
def vocabulary() -> Vocabulary:
    return learnt()


def sample(vocabulary: Vocabulary, lines, block=0, **settings) -> list[PackedLines]:
    sampler = WordSampler(vocabulary, SegmentationSettings(**settings), "source")
    return list(sampler.segmentations(lines, block))


def split(lines: PackedLines) -> list[list[int]]:
    return [part.tolist() for part in np.split(lines.ids, np.cumsum(lines.lengths)[:-1])]


def test_the_text_stays_the_same_and_the_pieces_change(vocabulary):
    plain = vocabulary.encode(LINES)
    samples = sample(vocabulary, LINES, samples=3, dropout=0.3)
    assert len(samples) == 3
    for lines in samples:
        found = split(lines)
        assert [vocabulary.decode(ids) for ids in found] == LINES
        assert all(ids[-1] == EOS for ids in found)
        assert found != plain
        assert sum(map(len, found)) > sum(map(len, plain))
    assert split(samples[0]) != split(samples[1])


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), min_size=1),
        min_size=1,
    )
)
def test_without_dropout_it_is_the_plain_segmentation(lines):
    """Of any text: spaces of all kinds, characters that no piece has."""
    vocabulary = learnt()
    lines = [line for line in lines if line.strip()] or ["x"]
    (found,) = sample(vocabulary, lines, samples=1, dropout=1e-12)
    assert split(found) == vocabulary.encode(lines)


def test_the_same_seed_gives_the_same_and_another_another(vocabulary):
    first = sample(vocabulary, LINES, samples=2)
    second = sample(vocabulary, LINES, samples=2)
    other = sample(vocabulary, LINES, samples=2, seed=2)
    other_block = sample(vocabulary, LINES, block=1, samples=2)
    assert [split(lines) for lines in first] == [split(lines) for lines in second]
    assert split(first[0]) != split(other[0])
    assert split(first[0]) != split(other_block[0])


def test_long_lines_keep_their_plain_segmentation():
    lines = PackedLines(np.array([1, 2, 3, 4, 5, 6]), np.array([1, 4, 1]))
    plain = PackedLines(np.array([1, 23, 45, 6]), np.array([1, 2, 1]))
    kept = without_long_lines(lines, 3, plain)
    assert kept.ids.tolist() == [1, 23, 45, 6]
    assert kept.lengths.tolist() == [1, 2, 1]
    assert without_long_lines(lines, 4, plain) is lines


def prepared(folder: Path, **segmentations) -> DataSettings:
    for name, side in (("src", 0), ("tgt", 1)):
        text = "".join(pair[side] + "\n" for pair in [*PAIRS, ("", "empty"), PAIRS[0]])
        (folder / f"train.{name}").write_text(text, encoding="utf-8")
    data = DataSettings(
        source="xx",
        target="yy",
        train=(str(folder / "train.src"), str(folder / "train.tgt")),
        vocabulary=VocabularySettings(size=420),
        max_length=20,
        segmentations=SegmentationSettings(**segmentations),
    )
    prepare_corpora(data, folder / "run")
    return data


def test_a_corpus_is_sampled_pair_by_pair(tmp_path, monkeypatch):
    """Also over several blocks, with pairs that were left out, and no line is too long."""
    monkeypatch.setattr("cbmi.data.segmentations.BLOCK", 150)
    prepared(tmp_path, samples=3, dropout=0.4)
    plain = open_corpus(tmp_path / "run", "train")
    vocabulary = Vocabulary.load(tmp_path / "run" / "vocab" / "shared.model")
    corpora = open_training_corpora(tmp_path / "run")
    assert len(corpora) == 3
    for corpus in corpora:
        assert len(corpus) == len(plain)
        assert corpus.lengths().max() <= 20
        for name in ("source", "target"):
            side = getattr(corpus, name)
            for pair in range(len(plain)):
                ids = side.ids[side.offsets[pair] : side.offsets[pair + 1]]
                index = 0 if name == "source" else 1
                line = [*PAIRS, ("", ""), PAIRS[0]][plain.lines[pair]][index]
                assert vocabulary.decode(ids.tolist()) == line
    assert any((corpus.lengths() != plain.lengths()).any() for corpus in corpora)


@pytest.mark.parametrize("sides", ["source", "target"])
def test_one_side_alone(tmp_path, sides):
    prepared(tmp_path, samples=2, sides=sides)
    plain = open_corpus(tmp_path / "run", "train")
    other = "target" if sides == "source" else "source"
    for corpus in open_training_corpora(tmp_path / "run"):
        assert np.array_equal(getattr(corpus, other).ids, getattr(plain, other).ids)
        assert len(getattr(corpus, sides).ids) > len(getattr(plain, sides).ids)


def test_damaged_segmentations_are_a_sentence(tmp_path):
    prepared(tmp_path, samples=2)
    file = tmp_path / "run" / "data" / "segmentations" / "1" / "target.ids"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(Exception, match=r"target\.ids: the prepared data are damaged"):
        open_training_corpora(tmp_path / "run")
