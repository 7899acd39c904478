"""An existing sentencepiece model: the same pieces, the special ones where they belong here."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tasks import cbmi, refused, run_values, write_run, write_task

from cbmi.data.foreign_vocabulary import can_be_sampled, import_vocabulary
from cbmi.data.vocabulary import EOS, learn
from cbmi.errors import UserError

SOME = "the cat house Käse fine 12 go sees Herr Baum laufen sprechen wunderbar a"
TEXT = "the Käse sees ﬁne  wunderbar 12"


def lines() -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(SOME.split(), k=8)) for _ in range(500)]


def train(
    path: Path, sentences: Sequence[str] | None = None, **settings: Any
) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences or lines()),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=3,
        **{"model_type": "unigram", "vocab_size": 60, **settings},
    )
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model_type": "bpe"},
        {"model_type": "bpe", "byte_fallback": True, "vocab_size": 330, "pad_id": 3},
        {"model_type": "bpe", "bos_id": -1, "eos_id": 0, "unk_id": 1},  # as Marian has them
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},  # as they are here
    ],
)
def test_it_segments_as_before(tmp_path, settings):
    theirs = train(tmp_path / "a.model", **settings)
    ours = import_vocabulary(tmp_path / "a.model")
    (ids,) = ours.encode([TEXT])
    assert ours.pieces(ids) == [*theirs.encode(TEXT, out_type=str), "</s>"]
    assert ids[-1] == EOS
    assert ours.decode(ids) == theirs.decode(theirs.encode(TEXT))
    assert ours.pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
    missing = sum(number < 0 for number in (theirs.pad_id(), theirs.bos_id(), theirs.eos_id()))
    assert len(ours) == theirs.vocab_size() + missing
    assert ours.has_bytes() == settings.get("byte_fallback", False)


def test_one_of_our_own_stays_as_it_is(tmp_path):
    own = learn(lines(), 310)
    (tmp_path / "own.model").write_bytes(own.model)
    imported = import_vocabulary(tmp_path / "own.model")
    assert imported.model == own.model
    assert can_be_sampled(imported)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff" * 40, b"hello, world", b"\x0a\x05ab"])
def test_what_is_not_a_model_is_refused(tmp_path, content):
    path = tmp_path / "x.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match="this is not a sentencepiece model"):
        import_vocabulary(path)


def test_other_names_for_special_pieces_are_refused(tmp_path):
    train(tmp_path / "a.model", eos_piece="[SEP]")
    with pytest.raises(UserError, match="other names than </s> and <unk>"):
        import_vocabulary(tmp_path / "a.model")


def with_vocabulary(folder: Path, **vocabulary: Any) -> Path:
    data = run_values(folder)["data"] | {"vocabulary": vocabulary}
    return write_run(folder, data=data)


@pytest.mark.slow
def test_a_run_with_one_vocabulary_for_each_side(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    for side in ("source", "target"):
        train(tmp_path / f"{side}.model", model_type="bpe", byte_fallback=True, vocab_size=300)
    models = {side: str(tmp_path / f"{side}.model") for side in ("source", "target")}
    path = with_vocabulary(tmp_path, **models)
    result = cbmi("train", path)
    assert result.returncode == 0, result.stderr.decode()
    assert f"Vocabulary: {models['source']} and {models['target']}, " in result.stderr.decode()
    assert cbmi("translate", tmp_path / "run", tmp_path / "test.src").returncode == 0
    # It may move, but not become another.
    moved = tmp_path / "moved.model"
    (tmp_path / "source.model").rename(moved)
    assert cbmi("train", path, f"data.vocabulary.source={moved}").returncode == 0
    train(moved, model_type="bpe", vocab_size=50)
    message = refused("train", path, f"data.vocabulary.source={moved}")
    assert "this is not the vocabulary of this run" in message


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [
        ({"source": "a"}, "source and target go together"),
        ({"model": "a", "source": "b", "target": "c"}, "give either model, for both sides"),
        ({"model": "a", "size": 500}, "size has no meaning with an existing model"),
        ({"model": "a", "shared": False}, "shared: a model for both sides is shared"),
        ({"model": "nowhere"}, "nowhere: there is no such file"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path, vocabulary, expected):
    write_task(tmp_path, train=40, valid=4)
    assert expected in refused("prepare", with_vocabulary(tmp_path, **vocabulary))


def test_bpe_dropout_needs_merges(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    train(tmp_path / "a.model")
    path = with_vocabulary(tmp_path, model=str(tmp_path / "a.model"))
    message = refused("prepare", path, "data.segmentations={dropout: 0.1, samples: 2}")
    assert "data.segmentations needs a BPE vocabulary with byte pieces" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"add_dummy_prefix": False},
        {"treat_whitespace_as_suffix": True},
        {"remove_extra_whitespaces": False},
        {"byte_fallback": False, "vocab_size": 60},
        {"normalization_rule_name": "nmt_nfkc"},
        {"model_type": "unigram"},
        {"user_defined_symbols": ["<2de>"]},
        {"split_by_whitespace": False, "vocab_size": 500, "sentences": ["the cat sees"] * 50},
    ],
)
def test_models_whose_merges_are_not_all_there_is_to_them(tmp_path, settings):
    plain = {
        "model_type": "bpe",
        "byte_fallback": True,
        "vocab_size": 310,
        "normalization_rule_name": "identity",
    }
    train(tmp_path / "plain.model", **plain)
    assert can_be_sampled(import_vocabulary(tmp_path / "plain.model"))
    train(tmp_path / "other.model", **(plain | settings))
    assert not can_be_sampled(import_vocabulary(tmp_path / "other.model"))


def test_special_pieces_that_a_model_has_as_symbols_of_its_own(tmp_path):
    theirs = train(tmp_path / "a.model", user_defined_symbols=["<pad>"])
    ours = import_vocabulary(tmp_path / "a.model")
    assert ours.pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert len(ours) == theirs.vocab_size()


@pytest.mark.slow
def test_another_run_starts_from_one_whose_model_file_has_gone(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    model = tmp_path / "a.model"
    train(model, model_type="bpe", byte_fallback=True, vocab_size=300)
    assert cbmi("train", with_vocabulary(tmp_path, model=str(model))).returncode == 0
    kept = model.rename(tmp_path / "elsewhere.model")
    data = {
        key: value for key, value in run_values(tmp_path)["data"].items() if key != "vocabulary"
    }
    settings = {"initialize": str(tmp_path / "run"), "output": str(tmp_path / "second")}
    result = cbmi("train", write_run(tmp_path, "b.yaml", data=data, **settings))
    assert result.returncode == 0, result.stderr.decode()
    settings["output"] = str(tmp_path / "third")
    named = write_run(
        tmp_path, "c.yaml", data=data | {"vocabulary": {"model": str(kept)}}, **settings
    )
    result = cbmi("train", named)
    assert result.returncode == 0, result.stderr.decode()
