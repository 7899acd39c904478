"""Batches, scores of logits, and looking at weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")

import tiny
from tasks import cbmi
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    M2M100ForConditionalGeneration,
)

from cbmi.errors import UserError
from cbmi.huggingface import AdaptiveCollator, scores
from cbmi.huggingface.collator import decoder_inputs
from cbmi.huggingface.scores import gold_scores
from cbmi.huggingface.target_pieces import spelt


@pytest.mark.parametrize("chunk", [1, 40, 1 << 25])
def test_gold_scores_are_those_of_log_softmax(monkeypatch, chunk):
    monkeypatch.setattr(scores, "CHUNK", chunk)
    torch.manual_seed(1)
    logits = torch.randn(7, 12, dtype=torch.float64, requires_grad=True)
    gold = torch.randint(0, 12, (7,))
    nmt, mean = gold_scores(logits, gold)
    log_p = F.log_softmax(logits, -1)
    torch.testing.assert_close(nmt, log_p[torch.arange(7), gold])
    torch.testing.assert_close(mean, log_p.mean(-1))
    assert torch.autograd.gradcheck(lambda values: gold_scores(values, gold), logits)
    assert torch.autograd.gradcheck(lambda values: gold_scores(values, gold)[0], logits)
    assert torch.autograd.gradcheck(lambda values: gold_scores(values, gold)[1], logits)


def test_half_precision_logits_are_scored_in_single():
    torch.manual_seed(1)
    logits = (torch.randn(5, 20) * 3).bfloat16().requires_grad_()
    gold = torch.randint(0, 20, (5,))
    nmt, _ = gold_scores(logits, gold)
    assert nmt.dtype == torch.float32
    torch.testing.assert_close(nmt, F.log_softmax(logits.float(), -1)[torch.arange(5), gold])
    nmt.sum().backward()
    assert logits.grad.dtype == torch.bfloat16
    exact = F.one_hot(gold, 20) - logits.detach().float().softmax(-1)
    torch.testing.assert_close(logits.grad.float(), exact, rtol=1 / 128, atol=1e-6)


@pytest.mark.parametrize("impossible", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_gold_tokens_that_are_next_to_impossible(impossible):
    """Models mask entries of their vocabulary; a filler's gold may be one of them."""
    torch.manual_seed(1)
    logits = torch.randn(2, 6)
    logits[0, 0] = impossible
    logits.requires_grad_()
    gold = torch.tensor([0, 3])
    nmt, mean = gold_scores(logits, gold)
    assert nmt[0] <= -1e4
    torch.where(torch.tensor([False, True]), nmt + 0.1 * mean, 0).sum().backward()
    assert (logits.grad[0] == 0).all()
    exact = F.one_hot(gold, 6)[1] + 0.1 / 6 - 1.1 * logits.detach()[1].softmax(-1)
    torch.testing.assert_close(logits.grad[1], exact)
    logits.grad = None
    gold_scores(logits, gold)[0].sum().backward()
    exact = F.one_hot(gold, 6) - logits.detach().softmax(-1)
    torch.testing.assert_close(logits.grad, exact)


@pytest.mark.parametrize("kind", [list, np.asarray, torch.tensor, tuple])
def test_rows_of_any_kind(kind):
    collator = AdaptiveCollator(tiny.tokenizer(), model=tiny.model("marian"))
    rows = list(tiny.dataset(3))
    expected = collator([row | {"lm": [-0.5] * len(row["labels"])} for row in rows])
    made = []
    for row in rows:
        values = {name: kind(row[name]) for name in ("input_ids", "labels")}
        made.append(values | {"lm": kind([-0.5] * len(row["labels"]))})
    batch = collator(made)
    for name, value in expected.items():
        torch.testing.assert_close(batch[name], value)


def test_scores_in_half_precision():
    collator = AdaptiveCollator(tiny.tokenizer(), model=tiny.model("marian"))
    rows = []
    for row in tiny.dataset(3):
        lm = torch.full((len(row["labels"]),), -0.5, dtype=torch.bfloat16, requires_grad=True)
        rows.append(row | {"lm": lm})
    batch = collator(rows)
    torch.testing.assert_close(batch["lm"], torch.where(batch["labels"] == -100, 0.0, -0.5))


@pytest.mark.parametrize("kind", tiny.SEQ2SEQ)
def test_decoder_inputs_are_those_that_the_model_makes(kind):
    """With them, the logits are the same as with labels alone."""
    network = tiny.model(kind).eval()
    collator = AdaptiveCollator(tiny.tokenizer(), model=network)
    batch = collator(list(tiny.dataset(5)))
    with torch.no_grad():
        found = network(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=batch["decoder_input_ids"],
        )
        expected = network(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            labels=batch["labels"],
        )
    torch.testing.assert_close(found.logits, expected.logits)


@pytest.mark.parametrize("side", ["left", "right"])
def test_columns_lie_on_their_labels(side):
    tokenizer = tiny.tokenizer()
    tokenizer.padding_side = side
    rows = list(tiny.scored(tiny.causal_dataset(6)))
    batch = AdaptiveCollator(tokenizer, pad_to_multiple_of=8)(rows)
    assert batch["input_ids"].shape[1] % 8 == 0
    for number, row in enumerate(rows):
        is_predicted = batch["labels"][number] != -100
        assert batch["lm"][number][is_predicted].tolist() == pytest.approx(row["lm"])
        assert batch["lm"][number][~is_predicted].abs().sum() == 0
        own = batch["attention_mask"][number].bool()
        assert batch["input_ids"][number][own].tolist() == row["input_ids"]
        assert batch["labels"][number][own].tolist() == row["labels"]


def test_the_first_label_is_not_predicted_from_nothing():
    row = {"input_ids": [5, 6, 7], "labels": [5, 6, 7], "lm": [-1.0, -2.0, -3.0]}
    batch = AdaptiveCollator(tiny.tokenizer())([row])
    assert batch["labels"].tolist() == [[-100, 6, 7]]
    assert batch["lm"].tolist() == [[0.0, -2.0, -3.0]]


@pytest.mark.parametrize("surplus", [-1, 1, 2])
@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_scores_of_another_length_are_refused(kind, surplus):
    is_causal = kind == "llama"
    collator = AdaptiveCollator(tiny.tokenizer(), model=None if is_causal else tiny.model(kind))
    row = (tiny.causal_dataset(1) if is_causal else tiny.dataset(1))[0]
    count = sum(label != -100 for label in row["labels"])
    collator([row | {"lm": [-1.0] * count}])
    with pytest.raises(UserError, match=f"{count} labels to predict but {count + surplus} values"):
        collator([row | {"lm": [-1.0] * (count + surplus)}])


def test_rows_without_labels_are_inputs_alone():
    batch = AdaptiveCollator(tiny.tokenizer())([{"input_ids": [5, 6]}, {"input_ids": [7]}])
    assert batch["input_ids"].tolist() == [[5, 6], [7, tiny.PAD]]
    assert set(batch) == {"input_ids", "attention_mask"}


def test_bad_rows_are_refused():
    collator = AdaptiveCollator(tiny.tokenizer(), model=tiny.model("marian"))
    row = {"input_ids": [5, 2], "labels": [6, 7, 2], "lm": [-1.0, -2.0]}
    with pytest.raises(UserError, match="3 labels to predict but 2 values in 'lm'"):
        collator([row])
    causal = AdaptiveCollator(tiny.tokenizer())
    with pytest.raises(UserError, match="2 input_ids but 3 labels"):
        causal([row])
    with pytest.raises(UserError, match="leave out model"):
        AdaptiveCollator(tiny.tokenizer(), model=tiny.model("llama"))
    with pytest.raises(UserError, match="'lm' that is NaN or infinite"):
        collator([{**row, "lm": [-1.0, float("-inf"), -2.0]}])
    with pytest.raises(UserError, match="they may be packed"):
        causal([{"input_ids": [5, 6], "labels": [5, 6], "position_ids": [0, 0]}])
    tokenizer = tiny.tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(UserError, match="no pad token"):
        AdaptiveCollator(tokenizer)([row])


def test_a_file_of_weights_is_matched_with_rows(tmp_path):
    data = tiny.dataset(6)
    file = tmp_path / "weights"
    lines = []
    for number, labels in enumerate(data["labels"]):
        # The end of sentence may be left out: it counts as 1.
        tokens = len(labels) - number % 2
        lines.append(" ".join(f"{(place + 1) / 10}" for place in range(tokens)))
    file.write_text("\n".join(lines) + "\n")
    choice = {"name": "weights-file", "file": str(file)}
    trainer = tiny.trainer(tmp_path, objective=choice, data=data)
    found = trainer.token_weights(trainer.train_dataset)
    for number, (row, labels) in enumerate(zip(found, data["labels"], strict=True)):
        expected = [(place + 1) / 10 for place in range(len(labels))]
        if number % 2:
            expected[-1] = 1.0
        assert row["weights"] == pytest.approx(expected)

    file.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(UserError, match="5 lines, but the dataset has 6 rows"):
        tiny.trainer(tmp_path, objective=choice, data=data)
    file.write_text("\n".join([*lines[:-1], "1 x"]) + "\n")
    with pytest.raises(UserError, match="line 6: something is not a number"):
        tiny.trainer(tmp_path, objective=choice, data=data)


def test_byte_level_pieces_are_spelt_with_spaces():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        ["Über die Straße und über das Haus"] * 5,
        trainers.BpeTrainer(vocab_size=330, special_tokens=["<eos>"], show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    pieces = spelt(tokenizer, 400)
    assert len(pieces) == 400
    assert "▁über" in pieces
    assert "▁Straße" in pieces
    assert pieces[0] == "<eos>"


def test_a_letter_of_maltese_is_not_a_space():
    """Byte-level BPE writes a space as Ġ; elsewhere it is a letter."""
    tokenizer = tiny.tokenizer()
    before = spelt(tokenizer, tiny.SIZE)
    tokenizer.add_tokens(["Ġ"])
    after = spelt(tokenizer, tiny.SIZE)
    assert "Ġ" in after
    assert [piece for piece in after if piece != "Ġ"][:30] == before[:30]
    assert any(piece.startswith("▁") for piece in before[:30])


@pytest.mark.parametrize("form", ["parquet", "jsonl", "folder"])
def test_weights_are_inspected(tmp_path, form):
    trainer = tiny.trainer(tmp_path / "run")
    rows = trainer.token_weights(trainer.train_dataset.select(range(5)))
    path = tmp_path / f"weights.{form}"
    if form == "parquet":
        rows.to_parquet(str(path))
    elif form == "jsonl":
        rows.to_json(str(path))
    else:
        rows.save_to_disk(str(path))
    result = cbmi("inspect", path, "-o", tmp_path / "page.html")
    assert result.returncode == 0, result.stderr.decode()
    assert b"5 pairs" in result.stderr
    page = (tmp_path / "page.html").read_text()
    assert rows[0]["source"] in page
    weights = np.array(rows[0]["weights"])
    assert f"{weights[-1]:.4f}" in page


def test_what_is_not_scored_is_refused(tmp_path):
    page = tmp_path / "page.html"
    for content, message in (
        (b"not json\n", b"line 1: this is not a line of `cbmi score`"),
        (b'{"source": "a"}\n', b"line 1 has no 'target'"),
        (b"[1]\n", b"line 1: this is not a line of `cbmi score`"),
        (b"", b"there is nothing to show"),
        (b"[" * 200_000, b"line 1: this is not a line of `cbmi score`"),
        (
            b'{"source": "a", "target": "b", "pieces": null, "nmt": []}\n',
            b"line 1: this is not a line of `cbmi score`",
        ),
    ):
        file = tmp_path / "scores.jsonl"
        file.write_bytes(content)
        result = cbmi("inspect", file, "-o", page)
        assert result.returncode == 2
        assert message in result.stderr
        assert not page.exists()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    result = cbmi("inspect", tmp_path / "broken.parquet", "-o", page)
    assert result.returncode == 2
    assert b"this is not a Parquet file" in result.stderr
    result = cbmi("inspect", file, "-o", page, "--sentence", "a", "b")
    assert result.returncode == 2
    assert b"scored already" in result.stderr


def test_rows_that_lack_a_value_are_refused():
    """As where data with a column and data without are put together."""
    rows = [dict(row) for row in tiny.scored(tiny.dataset(2))]
    rows[1]["lm"] = None
    rows[1]["attention_mask"] = None
    collator = AdaptiveCollator(tiny.tokenizer(), model=tiny.model("marian"))
    with pytest.raises(UserError, match="a row has no value in 'lm'"):
        collator(rows)


def test_labels_stay_as_they_are():
    """FSMT fills in what is not predicted when it makes decoder inputs."""
    network = FSMTForConditionalGeneration(
        FSMTConfig(
            langs=["en", "de"],
            src_vocab_size=tiny.SIZE,
            tgt_vocab_size=tiny.SIZE,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            pad_token_id=tiny.PAD,
        )
    )
    data = tiny.dataset(6)
    labels = AdaptiveCollator(tiny.tokenizer(), model=network)(list(data))["labels"]
    assert (labels != -100).sum() == sum(map(len, data["labels"]))


def test_columns_that_a_model_reads_are_kept():
    """decoder_input_ids of one's own, and what goes beside the inputs."""
    collator = AdaptiveCollator(tiny.tokenizer(), model=tiny.model("bart"))
    rows = [
        {
            "input_ids": [5, 6, 2],
            "token_type_ids": [0, 1, 1],
            "labels": [7, 2],
            "decoder_input_ids": [9, 7],
            "decoder_attention_mask": [1, 1],
        },
        {
            "input_ids": [5, 2],
            "token_type_ids": [0, 1],
            "labels": [2],
            "decoder_input_ids": [9],
            "decoder_attention_mask": [1],
        },
    ]
    batch = collator(rows)
    assert batch["decoder_input_ids"].tolist() == [[9, 7], [9, tiny.PAD]]
    assert batch["decoder_attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [0, 1, 0]]
    rows[1]["decoder_input_ids"] = [9, 9, 9]
    with pytest.raises(UserError, match="decoder_input_ids of another length than its labels"):
        collator(rows)


@pytest.mark.parametrize("kind", ["bart", None])
def test_labels_that_are_no_ids_are_refused(kind):
    collator = AdaptiveCollator(tiny.tokenizer(), model=kind and tiny.model(kind))
    row = {"input_ids": [5, 6, 2], "labels": [-100, -1, 2]}
    with pytest.raises(UserError, match="has the label -1; labels that are not predicted are -100"):
        collator([row])
    with pytest.raises(UserError, match="no labels at all"):
        AdaptiveCollator(tiny.tokenizer(), model=tiny.model("bart"))([row | {"labels": []}])


def test_a_tokenizer_without_a_pad_token_is_refused_at_once():
    tokenizer = tiny.tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(UserError, match="the tokenizer has no pad token"):
        AdaptiveCollator(tokenizer)


def test_a_class_derived_from_a_model_makes_its_decoder_inputs():
    """M2M100 has a function in its module; a class of one's own, and a compiled model, find it."""

    class Own(M2M100ForConditionalGeneration):
        pass

    stock = tiny.model("m2m100")
    labels = torch.tensor([[7, 2, -100]])
    expected = decoder_inputs(stock, labels)
    assert torch.equal(decoder_inputs(Own(stock.config), labels), expected)
    assert torch.equal(decoder_inputs(torch.compile(stock), labels), expected)
