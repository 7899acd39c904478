"""BMI, frequencies and files of weights against the plain computation."""

from __future__ import annotations

import math
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbmi.data import bmi as module
from cbmi.data.bmi import token_bmi
from cbmi.data.corpus import Corpus
from cbmi.data.statistics import Statistics, relative_frequency
from cbmi.errors import UserError
from cbmi.files import to_json

END = 2
SIZES = (12, 15)  # pieces of the two vocabularies
Pairs = Sequence[Sequence[Sequence[int]]]  # source and target ids of each pair
sentence = st.lists(st.integers(4, 11), min_size=1, max_size=9)
corpora = st.lists(st.tuples(sentence, sentence), min_size=1, max_size=25)


def write(
    folder: Path, pairs: Pairs, lines: Sequence[int] | None = None, left_out: int = 0
) -> Corpus:
    """A prepared corpus of the given ids; ends of sentences are added."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = {}
    for side, name in enumerate(("source", "target")):
        sentences = [[*pair[side], END] for pair in pairs]
        np.concatenate(sentences).astype(np.uint16).tofile(folder / f"{name}.ids")
        lengths = [len(ids) for ids in sentences]
        np.cumsum([0, *lengths]).tofile(folder / f"{name}.offsets")
        tokens[name] = sum(lengths)
    np.array(lines or range(len(pairs))).tofile(folder / "lines")
    meta = {
        "pairs": len(pairs),
        "dtype": "uint16",
        "tokens": tokens,
        "left_out": {"empty": left_out},
    }
    (folder / "meta.json").write_text(to_json(meta))
    return Corpus(folder)


def by_dictionaries(pairs: Pairs) -> list[float]:
    """BMI of every target token, as the formula says."""
    of_source: Counter[int] = Counter()
    of_target: Counter[int] = Counter()
    of_both: Counter[tuple[int, int]] = Counter()
    for source, target in pairs:
        of_source.update(set(source))
        of_target.update(set(target))
        of_both.update(product(set(source), set(target)))
    values = []
    for source, target in pairs:
        for y in target:
            ratios = [len(pairs) * of_both[x, y] / (of_source[x] * of_target[y]) for x in source]
            values.append(sum(math.log(1 + ratio) for ratio in ratios) / len(source))
        values.append(0.0)  # the end of sentence
    return values


def by_products(corpus: Corpus) -> np.ndarray:
    token_values = np.zeros(len(corpus.target.ids))
    for places, values in token_bmi(corpus, SIZES, quiet=True):
        token_values[places] = values
    return token_values


@pytest.mark.parametrize("way", ["frequent", "rare", "mixed"])
@settings(max_examples=30)
@given(pairs=corpora)
def test_bmi_equals_the_dictionaries(tmp_path_factory, way, pairs):
    """By columns for frequent pieces, by a table for rare ones, in several small blocks."""
    corpus = write(tmp_path_factory.mktemp("corpus"), pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", 4)
        patch.setattr(module, "TABLE", 3 * SIZES[0])
        if way == "frequent":
            patch.setattr(module, "FREQUENT_SHARE", 0.0)
        elif way == "rare":
            patch.setattr(module, "FREQUENT_SHARE", math.inf)
        assert by_products(corpus) == pytest.approx(by_dictionaries(pairs), abs=1e-6)


def test_bmi_is_kept_in_half_precision(tmp_path):
    random = np.random.default_rng(1)
    pairs = []
    for _ in range(300):
        source = random.integers(4, 12, random.integers(1, 9)).tolist()
        target = random.integers(4, 12, random.integers(1, 9)).tolist()
        pairs.append((source, target))
    corpus = write(tmp_path / "train", pairs)
    stored = Statistics(corpus, SIZES).bmi()
    assert stored.dtype == np.float16
    assert isinstance(stored, np.memmap)
    assert stored == pytest.approx(np.array(by_dictionaries(pairs)), rel=2**-11)
    before = (tmp_path / "train" / "statistics" / "bmi").stat().st_mtime_ns
    Statistics(corpus, SIZES).bmi()
    assert (tmp_path / "train" / "statistics" / "bmi").stat().st_mtime_ns == before


def test_frequencies_are_relative_to_the_median_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("cbmi.data.statistics.BLOCK", 4)
    pairs = [([4], [4, 4, 4, 4, 4]), ([5], [5, 5, 5]), ([6], [6, 6]), ([7], [7])]
    counts = Statistics(write(tmp_path / "train", pairs), SIZES).counts()
    assert counts.tolist() == [0, 0, 4, 0, 5, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0]
    # Of the pieces of text that occur (5, 3, 2, 1) the third is the middle one. Ends of sentences
    # do not matter.
    assert relative_frequency(counts)[4:8].tolist() == [2.5, 1.5, 1.0, 0.5]


PAIRS = [([4], [4, 5, 6]), ([5], [7]), ([6], [8, 9])]


def weights(folder: Path, text: str, per: str = "token", **preparation: Any) -> np.ndarray:
    corpus = write(folder / "train", PAIRS, **preparation)
    (folder / "weights.txt").write_text(text)
    return Statistics(corpus, SIZES).weights(str(folder / "weights.txt"), per)


def test_weights_of_tokens(tmp_path):
    """With or without a number for the end of sentence, which is 1 where it is left out."""
    found = weights(tmp_path, "0.5 0 2\n1.5 3\n.25 1e-1 7\n")
    assert found == pytest.approx([0.5, 0, 2, 1, 1.5, 3, 0.25, 0.1, 7])


def test_weights_of_pairs(tmp_path):
    assert weights(tmp_path, "0.5\n1\n2\n", "pair").tolist() == [0.5] * 4 + [1] * 2 + [2] * 3


def test_lines_that_preparation_left_out_are_passed_over(tmp_path):
    found = weights(tmp_path, "0.5\n?? not read\n1\n2\n\n", "pair", lines=[0, 2, 3], left_out=2)
    assert found.tolist() == [0.5] * 4 + [1] * 2 + [2] * 3


def test_a_changed_file_is_refused(tmp_path):
    assert weights(tmp_path, "1\n1\n1\n", "pair")[0] == 1
    with pytest.raises(UserError, match="has changed since this run first read it") as caught:
        weights(tmp_path, "2\n1\n1\n", "pair")
    advice = re.search(r"or delete (\S+) to continue", str(caught.value))
    subprocess.run(f"rm {advice.group(1)}", shell=True, check=True)
    assert weights(tmp_path, "2\n1\n1\n", "pair")[0] == 2


def test_repaired_lines_of_weights_are_reported(tmp_path, capsys):
    assert weights(tmp_path, "\ufeff0.5\n1\n2\0\n", "pair").tolist()[0] == 0.5
    assert "2 lines were repaired (byte-order mark, NUL)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "per", "expected"),
    [
        ("1 1 1\n1\n", "token", "has 2 lines, but the training text has 3"),
        ("1 1 1\n1\n1 1\n1\n", "token", "has 4 lines, but the training text has 3"),
        (
            "1\n1e300\n1\n",
            "pair",
            "line 2: a weight is a finite number, 0 or above, in single precision",
        ),
        ("1 1 1\n1\n1 1 1 1\n", "token", "line 3: 4 numbers for 3 target pieces"),
        ("1\n1\n1\n", "token", "for one number per pair, set per: pair"),
        ("1 1 1\n1\n1 1\n", "pair", "line 1: 3 numbers, but per: pair needs one"),
        ("1\nfew\n1\n", "pair", "line 2: something is not a number"),
        ("1\n-1\n1\n", "pair", "line 2: a weight is a finite number, 0 or above"),
        ("1\nnan\n1\n", "pair", "line 2: a weight is a finite number, 0 or above"),
        ("1\n\n1\n", "pair", "line 2: 0 numbers, but per: pair needs one"),
    ],
)
def test_bad_files_of_weights(tmp_path, text, per, expected):
    with pytest.raises(UserError) as caught:
        weights(tmp_path, text, per)
    assert expected in str(caught.value)
    assert "weights.txt" in str(caught.value)
    assert "weights.txt: line" not in str(caught.value)
    assert not any((tmp_path / "train" / "statistics").iterdir())
