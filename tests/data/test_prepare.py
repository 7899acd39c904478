"""Text to memory-mapped ids."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tasks import write_task

from cbmi.data import prepare as prepare_module
from cbmi.data.corpus import Corpus, CorpusMeta, Side
from cbmi.data.prepare import encode, load_vocabularies, open_corpus, prepare_corpora
from cbmi.data.vocabulary import EOS, Vocabulary, learn
from cbmi.data_settings import DataSettings
from cbmi.errors import UserError


def data(folder: Path, **changes: Any) -> DataSettings:
    values = {
        "source": "xx",
        "target": "yy",
        "vocabulary": {"size": 350},
        "train": [str(folder / "train.src"), str(folder / "train.tgt")],
    }
    return DataSettings(**(values | changes))


def decoded(side: Side, vocabulary: Vocabulary, sentence: int) -> str:
    ids, lengths, _ = side.select(np.array([sentence]))
    assert ids[-1] == EOS
    assert lengths[0] == len(ids)
    return vocabulary.decode(ids)


def texts(folder: Path, part: str = "train", shared: bool = True) -> list[tuple[str, str]]:
    """The pairs that the prepared ids spell."""
    source, target = load_vocabularies(folder / "vocab", shared)
    corpus = open_corpus(folder, part)
    pairs = []
    for i in range(len(corpus)):
        pairs.append((decoded(corpus.source, source, i), decoded(corpus.target, target, i)))
    return pairs


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines))


@pytest.mark.parametrize("shared", [True, False])
def test_ids_spell_the_corpus_in_order(tmp_path, shared):
    write_task(tmp_path, train=50)
    prepare_corpora(data(tmp_path, vocabulary={"size": 340, "shared": shared}), tmp_path / "run")
    sources = (tmp_path / "train.src").read_text().splitlines()
    targets = (tmp_path / "train.tgt").read_text().splitlines()
    expected = list(zip(sources, targets, strict=True))
    assert texts(tmp_path / "run", shared=shared) == expected


def test_a_sample_of_a_large_corpus_is_the_same_every_time(tmp_path, monkeypatch):
    """The vocabulary is learnt from some of the lines; preparing again gives the same pieces."""
    write_task(tmp_path, train=400)
    monkeypatch.setattr("cbmi.data.prepare.SAMPLE_LINES", 100)
    learnt_from = []

    def remember_and_learn(lines: Iterable[str], size: int, exactly: bool) -> Vocabulary:
        sample = list(lines)
        learnt_from.append(sample)
        return learn(sample, size, exactly)

    monkeypatch.setattr("cbmi.data.prepare.learn", remember_and_learn)
    models = []
    for name in ("one", "two"):
        prepare_corpora(data(tmp_path, vocabulary={"size": 330}), tmp_path / name)
        models.append((tmp_path / name / "vocab" / "shared.model").read_bytes())
    assert models[0] == models[1]
    assert 60 < len(learnt_from[0]) < 140
    everything = (tmp_path / "train.src").read_text().splitlines()
    assert set(learnt_from[0]) < set(everything)


def test_selecting_many_sentences_keeps_their_order(tmp_path):
    write_task(tmp_path, train=30)
    prepare_corpora(data(tmp_path), tmp_path / "run")
    side = open_corpus(tmp_path / "run", "train").source
    chosen = np.array([7, 3, 29, 0, 3])
    ids, lengths, places = side.select(chosen)
    assert (side.ids[places] == ids).all()
    expected = np.concatenate([side.select(np.array([i])).ids for i in chosen])
    assert (ids == expected).all()
    assert (lengths == side.lengths[chosen]).all()


def test_odd_lines_do_not_break_alignment(tmp_path, capsys):
    source = [
        "\ufeffone",
        "two\0two",
        "three\u2028three",
        "",
        "four",
        "x" * 1_000_000,
        "five\r",
        "six",
    ]
    target = ["eins", "zwei", "drei", "leer", "   ", "lang", "fünf", "sechs\u2028"]
    more = ["abcdefghijklmnopqrstuvwxyzäöüß ABCDEFG"] * 20
    (tmp_path / "train.src").write_bytes("\n".join(source + more).encode())
    (tmp_path / "train.tgt").write_bytes("\n".join(target + more).encode())
    prepare_corpora(data(tmp_path, vocabulary={"size": 310}), tmp_path / "run")
    found = texts(tmp_path / "run")
    kept = [
        ("one", "eins"),
        ("two two", "zwei"),
        ("three\u2028three", "drei"),
        ("five", "fünf"),
        ("six", "sechs\u2028"),
    ]
    assert found[:5] == kept
    corpus = open_corpus(tmp_path / "run", "train")
    assert corpus.meta.left_out == {"empty": 2, "too_long": 1, "copies": 0}
    assert corpus.meta.repaired_lines == 2
    said = capsys.readouterr().err
    assert "left out: 2 with an empty side, 1 over 256 pieces; repaired: 2 lines (byte-" in said
    assert corpus.lines.tolist() == [0, 1, 2, 6, 7, *range(8, 28)]


def test_pairs_over_the_limit_are_left_out_and_counted(tmp_path, capsys):
    write_task(tmp_path, train=40)
    prepare_corpora(data(tmp_path, max_length=6), tmp_path / "run")
    corpus = open_corpus(tmp_path / "run", "train")
    assert corpus.lengths().max() <= 6
    assert corpus.meta.left_out["too_long"] == 40 - len(corpus) > 0
    assert f"{40 - len(corpus)} over 6 pieces" in capsys.readouterr().err
    source = (tmp_path / "train.src").read_text().splitlines()
    short = [i for i, line in enumerate(source) if len(line.split()) < 6]
    assert set(corpus.lines.tolist()) <= set(short)
    assert (np.diff(corpus.lines) > 0).all()


def test_many_copies_are_worth_a_word(tmp_path, capsys):
    write_task(tmp_path, train=200)
    source = (tmp_path / "train.src").read_text().splitlines()
    for copies, warned in ((0, False), (2, False), (3, True)):
        # Spacing does not matter.
        copied = [f" {line}  " for line in source[:copies]]
        translated = [f"{line} x" for line in source[copies:]]
        write_lines(tmp_path / "train.tgt", copied + translated)
        prepare_corpora(data(tmp_path), tmp_path / f"run{copies}")
        assert ("3 of the training pairs (1.5%) are copies" in capsys.readouterr().err) == warned
    # Validation data teach nothing: copies stay in them.
    valid = [str(tmp_path / "train.src"), str(tmp_path / "train.src")]
    prepare_corpora(data(tmp_path, drop_copies=True, valid=valid), tmp_path / "without")
    said = capsys.readouterr().err
    assert "3 copies\n" in said
    assert "teach a model" not in said
    assert len(open_corpus(tmp_path / "without", "valid")) == 200
    corpus = open_corpus(tmp_path / "without", "train")
    assert corpus.meta.left_out == {"empty": 0, "too_long": 0, "copies": 3}
    assert corpus.lines.tolist() == list(range(3, 200))
    assert texts(tmp_path / "without") == [(line, f"{line} x") for line in source[3:]]
    write_lines(tmp_path / "train.tgt", source)
    with pytest.raises(UserError, match="no pair with text on both sides that is not a copy"):
        prepare_corpora(data(tmp_path, drop_copies=True), tmp_path / "none")


def test_copies_that_are_left_out_for_their_length_are_not_counted(tmp_path, capsys):
    write_task(tmp_path, train=100)
    source = (tmp_path / "train.src").read_text().splitlines()
    target = [f"{line} x" for line in source]
    long_copies = ["ba " * 40] * 3
    write_lines(tmp_path / "train.src", source + long_copies)
    write_lines(tmp_path / "train.tgt", target + long_copies)
    prepare_corpora(data(tmp_path, max_length=20), tmp_path / "run")
    said = capsys.readouterr().err
    assert "3 over 20 pieces" in said
    assert "copies" not in said


def test_a_failure_leaves_nothing_behind(tmp_path):
    write_task(tmp_path, train=40)
    vocabulary = learn((tmp_path / "train.src").read_text().splitlines(), 340)
    bad = tmp_path / "bad.tgt"
    bad.write_bytes(b"ba\n" * 39 + b"\xff\n")
    files = (str(tmp_path / "train.src"), str(bad))
    with pytest.raises(UserError, match="line 40"):
        encode([files], ("en", "de"), (vocabulary, vocabulary), tmp_path / "out", 256)
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == []


def test_nothing_usable_is_refused(tmp_path):
    for content in ("", "\n\n\n"):
        (tmp_path / "train.src").write_text(content)
        (tmp_path / "train.tgt").write_text(content)
        with pytest.raises(UserError, match="no pair with text on both sides"):
            prepare_corpora(data(tmp_path), tmp_path / "run")


def test_impossible_vocabularies_are_refused(tmp_path):
    write_task(tmp_path, train=20)
    with pytest.raises(
        UserError, match=r"vocabulary\.size: 9000 is larger than this corpus allows; use at most"
    ):
        prepare_corpora(data(tmp_path, vocabulary={"size": 9000}), tmp_path / "run")
    # A thousand different letters, 50 on a line.
    letters = []
    for first in range(0x4E00, 0x4E00 + 1000, 50):
        letters.append("".join(chr(code) for code in range(first, first + 50)))
    with pytest.raises(
        UserError, match="too small for the characters of this corpus; use at least"
    ):
        learn(letters, 300)


def test_a_vocabulary_gives_back_what_it_was_given():
    vocabulary = learn(["a b c d e f g hello world"] * 30, 300)
    for line in ("hello  world", "déjà vu 漢字 \u2028 🙂", "tab\there"):
        ids = vocabulary.encode([line])[0]
        assert vocabulary.decode(ids) == line.replace("  ", " ")
    assert Vocabulary(vocabulary.model).pieces([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert vocabulary.encode([""]) == [[EOS]]


def test_what_is_known_of_the_data_is_written_to_meta_json(tmp_path):
    write_task(tmp_path, train=20)
    prepare_corpora(data(tmp_path), tmp_path / "run")
    meta = open_corpus(tmp_path / "run", "train").meta
    written = json.loads((tmp_path / "run" / "data" / "train" / "meta.json").read_text())
    assert written == meta.to_json()
    assert CorpusMeta.from_json(written) == meta
    assert list(written) == [
        "pairs",
        "dtype",
        "tokens",
        "files",
        "left_out",
        "copies",
        "repaired_lines",
        "parts",
        "sha256",
        "digests",
    ]
    assert sorted(written["digests"]) == [
        "lines",
        "source.ids",
        "source.offsets",
        "target.ids",
        "target.offsets",
    ]


def test_damaged_ids_are_recognised(tmp_path):
    write_task(tmp_path, train=20)
    prepare_corpora(data(tmp_path), tmp_path / "run")
    path = tmp_path / "run" / "data" / "train" / "target.ids"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match="prepared data are damaged"):
        open_corpus(tmp_path / "run", "train")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_digests_is_recognised(tmp_path, count):
    write_task(tmp_path, train=20)
    prepare_corpora(data(tmp_path), tmp_path / "run")
    path = tmp_path / "run" / "data" / "train" / "meta.json"
    meta = json.loads(path.read_text())
    meta["sha256"] = (meta["sha256"] * 2)[:count]
    path.write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"meta\.json: the prepared data are damaged"):
        prepare_corpora(data(tmp_path), tmp_path / "run")


MEMORY = """
import resource, sys
from pathlib import Path
from cbmi.data.prepare import encode
from cbmi.data.vocabulary import Vocabulary
vocabulary = Vocabulary(Path(sys.argv[1]).read_bytes())
encode([(sys.argv[2],) * 2], ('en', 'de'), (vocabulary, vocabulary), Path(sys.argv[3]), 256)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def mixed_corpora(folder: Path) -> tuple[DataSettings, np.ndarray]:
    """Settings of two corpora with entries to skip, and the places of the others in both."""
    random = np.random.default_rng(1)
    train = []
    all_places = []
    for number in range(2):
        translated = random.random(50) < 0.5
        # The last entries of the first corpus are skipped, too.
        translated[[0, -3, -2, -1]] = [True, number, number, number]
        lines = []
        for place, is_translated in enumerate(translated):
            target = f"zwei {place}" if is_translated else ""
            lines.append(json.dumps({"en": f"one {place}", "de": target}))
        write_lines(folder / f"{number}.jsonl", lines)
        train.append({"files": [str(folder / f"{number}.jsonl")]})
        all_places.append(np.flatnonzero(translated) + 50 * number)
    settings = DataSettings(source="en", target="de", train=train)
    return settings, np.concatenate(all_places)


@pytest.mark.parametrize("chunk", [1, 7, 5000])
def test_skipped_entries_keep_their_places(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(prepare_module, "CHUNK", chunk)
    settings, places = mixed_corpora(tmp_path)
    prepare_corpora(settings, tmp_path / "run")
    corpus = open_corpus(tmp_path / "run", "train")
    assert corpus.text_lines == 100
    assert corpus.lines_of_text().tolist() == places.tolist()


def test_data_of_older_versions_do_not_know_skipped_entries(tmp_path):
    settings, _ = mixed_corpora(tmp_path)
    prepare_corpora(settings, tmp_path / "run")
    (tmp_path / "run" / "data" / "train" / Corpus.SKIPPED).unlink()
    with pytest.raises(UserError, match="an older version prepared these data"):
        open_corpus(tmp_path / "run", "train").lines_of_text()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    line = "some words of an ordinary line of text that is repeated\n"
    model = tmp_path / "model"
    model.write_bytes(learn([line] * 50, 300).model)
    peaks = []
    for lines in (40_000, 400_000):
        corpus = tmp_path / f"corpus{lines}"
        corpus.write_text(line * lines)
        command = [sys.executable, "-c", MEMORY, model, corpus, tmp_path / f"out{lines}"]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout))
    assert peaks[1] < peaks[0] * 1.15
