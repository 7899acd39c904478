"""The trainers train what cbmi itself trains, however a step is divided."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")

import tiny
import transformers
from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    TrainerCallback,
)

from cbmi.errors import UserError
from cbmi.huggingface import AdaptiveCollator, AdaptiveSeq2SeqTrainer
from cbmi.huggingface.weights import WeightLog
from cbmi.interop.marian import marian_config, marian_weights
from cbmi.model import LanguageModel, Translator, pack_sentences, shift_right
from cbmi.model.layers import Shape
from cbmi.objectives import TABLE, TokenScores, Weighting, build, cbmi_weights, name_of
from cbmi.objectives.base import join
from cbmi.objectives.loss import token_losses

OBJECTIVES = [
    {"name": "ce"},
    {"name": "cbmi"},
    {"name": "cbmi", "std": "official"},
    {"name": "cbmi", "compare": "lengths"},
    {"name": "focal"},
    {"name": "anti-focal", "gamma": 2.0},
]


@pytest.mark.parametrize("choice", OBJECTIVES, ids=str)
def test_step_on_an_exported_model_is_ours(tmp_path, choice):
    torch.manual_seed(1)
    ours = Translator(Shape(16, 32, 2, 2, 2), tiny.SIZE, tiny.SIZE, True).double()
    lm = LanguageModel(Shape(16, 32, 2, 2, 2), tiny.SIZE).double().eval()
    rows = tiny.dataset(8)
    source = pack_sentences(rows["input_ids"])
    target = pack_sentences(rows["labels"])
    inputs = shift_right(target, tiny.BOS)
    log_p_lm = lm(inputs, target.ids)[0].detach()

    nmt, mean = ours(source, inputs, target.ids)[:2]
    objective = build(choice, "objective")
    scores = TokenScores(
        nmt=nmt,
        mean=mean,
        lm=log_p_lm,
        mask=torch.ones(len(nmt), dtype=torch.bool),
        sentence=target.layout.sentence,
        sentences=8,
        longest=target.layout.longest,
        gold=target.ids,
        corpus_index=torch.arange(len(nmt)),
    )
    loss = token_losses(objective, scores, 0.1).losses.sum() / len(nmt)
    loss.backward()

    config = MarianConfig(**marian_config(ours.shape, tiny.SIZE, tiny.SIZE, True))
    exported = MarianMTModel(config).double()
    exported.load_state_dict(
        {name: value.detach().clone() for name, value in marian_weights(ours).items()}, strict=False
    )
    exported.tie_weights()
    values = log_p_lm.split([len(row) for row in rows["labels"]])
    data = rows.add_column("lm", [value.tolist() for value in values])
    trainer = AdaptiveSeq2SeqTrainer(
        exported,
        tiny.arguments(tmp_path, label_smoothing_factor=0.1),
        objective=choice,
        train_dataset=data,
        data_collator=AdaptiveCollator(tiny.tokenizer(), model=exported),
    )
    batch = trainer.data_collator(list(data))
    theirs = trainer.compute_loss(exported.train(), batch, num_items_in_batch=len(nmt))
    theirs.backward()

    assert theirs.item() == pytest.approx(loss.item(), abs=2e-7)  # lm is in float32
    gradients = copy.deepcopy(ours)
    for parameter, original in zip(gradients.parameters(), ours.parameters(), strict=True):
        parameter.data = original.grad
    found = dict(exported.named_parameters())
    compared = 0
    for name, expected in marian_weights(gradients).items():
        if "embed_positions" in name or "final_logits" in name:
            continue
        if "k_proj.bias" in name:
            continue  # has no gradient but rounding
        torch.testing.assert_close(found[name].grad, expected.detach(), rtol=0, atol=1e-7)
        compared += 1
    assert compared == 1 + 2 * 15 + 2 * 24


def trained(folder: Path, **settings) -> dict[str, torch.Tensor]:
    trainer = tiny.trainer(folder, **settings)
    trainer.train()
    return tiny.weights_of(trainer.model)


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=1e-6, msg=name)


DIVIDED = [
    {"name": "cbmi"},
    {"name": "cbmi", "std": "official", "scale_sentence": 0.5},
    {"name": "cbmi", "shuffled": "batch"},
    {"name": "freq-exp", "weight_drop": 0.3},
    {"name": "ce"},
]


@pytest.mark.parametrize("choice", DIVIDED, ids=str)
def test_accumulation_changes_nothing(tmp_path, choice):
    whole = trained(tmp_path, objective=choice, per_device_train_batch_size=16)
    parts = trained(
        tmp_path, objective=choice, per_device_train_batch_size=4, gradient_accumulation_steps=4
    )
    assert_equal(whole, parts)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_accumulation_changes_nothing_for_other_models(tmp_path, kind):
    whole = trained(tmp_path, kind=kind, per_device_train_batch_size=16)
    parts = trained(
        tmp_path, kind=kind, per_device_train_batch_size=4, gradient_accumulation_steps=4
    )
    assert_equal(whole, parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "size", "accumulate"),
    [("cbmi", 8, 1), ("cbmi", 4, 2), ({"name": "cbmi", "shuffled": "batch"}, 8, 1)],
    ids=str,
)
def test_two_processes_train_the_same(tmp_path, choice, size, accumulate):
    whole = trained(tmp_path / "whole", objective=choice, per_device_train_batch_size=16)
    settings = {
        "objective": choice,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": accumulate,
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    script = Path(tiny.__file__)
    folder = tmp_path / "two"
    folder.mkdir()
    result = subprocess.run(
        [*command, str(script), str(folder), json.dumps(settings)], capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stderr.decode()[-3000:]
    assert_equal(whole, torch.load(folder / "weights.pt", weights_only=True))


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_statistics_are_those_of_the_same_dropout(tmp_path, kind, monkeypatch):
    """The weights of a step are those of the passes that are trained on."""
    trainer = tiny.trainer(
        tmp_path,
        kind,
        dropout=0.3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_steps=2,
    )
    seen: list[TokenScores] = []
    used: list[torch.Tensor] = []
    module = sys.modules["cbmi.huggingface.trainer"]

    def spy(objective, scores, smoothing, weights):
        seen.append(scores)
        used.append(weights)
        return token_losses(objective, scores, smoothing, weights=weights)

    monkeypatch.setattr(module, "token_losses", spy)
    trainer.train()
    assert len(seen) == 8
    for step in (slice(0, 4), slice(4, 8)):
        expected = trainer.adaptive_objective.weights(join(seen[step]))
        mask = join(seen[step]).mask
        torch.testing.assert_close(torch.cat(used[step])[mask], expected[mask])


def test_resumed_training_goes_on_exactly(tmp_path):
    settings = {
        "dropout": 0.2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "save_strategy": "steps",
        "save_steps": 6,  # within the second epoch
        "max_steps": 11,
    }
    uninterrupted = trained(tmp_path / "one", **settings)
    trainer = tiny.trainer(tmp_path / "two", **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-6"))
    assert_equal(uninterrupted, tiny.weights_of(trainer.model))


@pytest.mark.parametrize("kind", [*tiny.SEQ2SEQ, "llama"])
def test_weights_are_those_of_the_logits(tmp_path, kind, monkeypatch):
    """By hand: the model run on one pair after another, without padding."""
    trainer = tiny.trainer(tmp_path, kind)
    rows = list(trainer.train_dataset.select(range(6)))
    network = trainer.model.eval()
    longest = max(len(row["lm"]) for row in rows)
    nmt = torch.zeros(6, longest)
    lm = torch.zeros(6, longest)
    mask = torch.zeros(6, longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids = torch.tensor([row["input_ids"]])
        labels = torch.tensor([row["labels"]])
        with torch.no_grad():
            logits = network(input_ids=ids, labels=labels).logits[0]
        gold = labels[0]
        if kind == "llama":
            logits, gold = logits[:-1], gold[1:]
        is_predicted = gold != -100
        log_p = F.log_softmax(logits[is_predicted], -1)
        own = log_p.gather(1, gold[is_predicted, None])[:, 0]
        nmt[number, : len(own)] = own
        lm[number, : len(own)] = torch.tensor(row["lm"])
        mask[number, : len(own)] = True
    expected = cbmi_weights(nmt, lm, mask)
    found = trainer.token_weights(trainer.train_dataset.select(range(6)))
    for number, row in enumerate(found):
        own = expected[number][mask[number]]
        torch.testing.assert_close(torch.tensor(row["weights"]), own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", TABLE)
def test_objectives_that_need_more_are_refused(tmp_path, name):
    """Those that need at most a language model, frequencies or a file of weights are trained."""
    supported = {"ce", "freq-exp", "freq-chi2", "focal", "anti-focal", "cbmi", "weights-file"}
    choice = {"name": name}
    if name == "weights-file":
        file = tmp_path / "weights"
        file.write_text("0.5\n" * 64)
        choice |= {"file": str(file), "per": "pair"}
    if name not in supported:
        with pytest.raises(UserError, match="which Hugging Face's trainer does not have"):
            tiny.trainer(tmp_path, objective=choice)
        return
    trainer = tiny.trainer(tmp_path, objective=choice, max_steps=2)
    before = tiny.weights_of(trainer.model)
    trainer.train()
    after = tiny.weights_of(trainer.model)
    assert any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("setting", [{"lm_dropout": True}, {"preset": "public"}])
def test_settings_that_need_more_are_refused(tmp_path, setting):
    with pytest.raises(UserError, match="which Hugging Face's trainer does not have"):
        tiny.trainer(tmp_path, objective={"name": "cbmi", **setting})


def test_words_share_a_weight(tmp_path):
    """`unit: word`: the pieces of a word have one token weight; the end is a word of its own."""
    trainer = tiny.trainer(tmp_path, objective={"name": "cbmi", "unit": "word"})
    found = trainer.token_weights(trainer.train_dataset.select(range(16)))
    several = 0
    for row in found:
        weights = row["weights"]
        for before, (piece, weight) in zip(
            weights[:-1], list(zip(row["pieces"], weights, strict=True))[1:], strict=True
        ):
            if not piece.startswith("▁") and piece != "</s>":
                assert weight == before
                several += 1
    assert several > 5


def test_frequencies_leave_out_special_pieces(tmp_path):
    trainer = tiny.trainer(tmp_path, objective="freq-exp")
    row = trainer.token_weights(trainer.train_dataset)[0]
    assert row["pieces"][-1] == "</s>"
    assert row["weights"][-1] == 1
    counts: dict[int, int] = {}
    for labels in trainer.train_dataset["labels"]:
        for label in labels[:-1]:
            counts[label] = counts.get(label, 0) + 1
    median = sorted(counts.values(), reverse=True)[len(counts) // 2]
    first = trainer.train_dataset[0]["labels"][0]
    expected = torch.exp(torch.tensor(-1.75 * counts[first] / median)) + 1
    assert row["weights"][0] == pytest.approx(expected.item(), abs=1e-5)


def test_evaluation_is_the_stock_trainers(tmp_path):
    trainer = tiny.trainer(tmp_path)
    stock = Seq2SeqTrainer(
        copy.deepcopy(trainer.model),
        trainer.args,
        eval_dataset=trainer.eval_dataset.remove_columns("lm"),
        data_collator=AdaptiveCollator(tiny.tokenizer(), model=trainer.model),
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(stock.evaluate()["eval_loss"], abs=1e-6)


def test_generates_for_evaluation(tmp_path):
    def lengths(prediction) -> dict[str, float]:
        return {"length": prediction.predictions.shape[1]}

    trainer = tiny.trainer(
        tmp_path, predict_with_generate=True, generation_max_length=9, max_steps=2
    )
    trainer.compute_metrics = lengths
    trainer.train()
    found = trainer.evaluate()
    assert found["eval_length"] >= 9
    assert found["eval_loss"] > 0
    predicted = trainer.predict(trainer.train_dataset.select(range(3)))
    assert len(predicted.predictions) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"torch_compile": True, "torch_compile_backend": "eager"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_trains_with(tmp_path, settings):
    trainer = tiny.trainer(tmp_path, gradient_accumulation_steps=2, max_steps=3, **settings)
    result = trainer.train()
    assert 0 < result.training_loss < 10


def test_accumulation_changes_nothing_but_rounding_in_bf16(tmp_path):
    """Weights of the step are taken beforehand, without a graph; the gradient must not go too."""
    whole = trained(tmp_path, per_device_train_batch_size=16, bf16=True, max_steps=5)
    parts = trained(
        tmp_path,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        bf16=True,
        max_steps=5,
    )
    before = tiny.weights_of(tiny.model("marian"))
    moved = max((whole[name] - before[name]).abs().max().item() for name in whole)
    apart = max((whole[name] - parts[name]).abs().max().item() for name in whole)
    assert moved > 0.01
    assert apart < moved / 20


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_trains_adapters(tmp_path, kind):
    from peft import LoraConfig, get_peft_model

    data = tiny.scored(tiny.causal_dataset() if kind == "llama" else tiny.dataset())
    trainer = tiny.trainer(tmp_path, kind, data=data)
    adapted = get_peft_model(tiny.model(kind), LoraConfig(target_modules=["q_proj", "v_proj"]))
    collator = AdaptiveCollator(tiny.tokenizer(), None if kind == "llama" else adapted)
    trainer = type(trainer)(
        adapted, trainer.args, objective="cbmi", train_dataset=data, data_collator=collator
    )
    before = tiny.weights_of(adapted)
    trainer.train()
    changed = {
        name for name, value in tiny.weights_of(adapted).items() if not before[name].equal(value)
    }
    assert changed
    assert all("lora_" in name for name in changed)


def test_log_shows_the_weights(tmp_path):
    trainer = tiny.trainer(tmp_path)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == 4
    for line in lines:
        assert 0.8 < line["weight_mean"] < 1.2
        assert 0 < line["weight_std"] < 1
        assert 0 <= line["weight_p05"] < line["weight_p50"] < line["weight_p95"]


def test_without_weights_the_log_has_none(tmp_path):
    trainer = tiny.trainer(tmp_path, objective="ce")
    trainer.train()
    assert not any("weight_mean" in line for line in trainer.state.log_history)


def refused(tmp_path, match: str, **settings) -> None:
    with pytest.raises(UserError, match=match) as error:
        tiny.trainer(tmp_path, **settings)
    assert str(error.value).count(". ") == 0


def test_collators_that_know_no_columns_are_refused(tmp_path):
    data = tiny.scored(tiny.dataset(4))
    network = tiny.model("marian")
    stock = transformers.DataCollatorForSeq2Seq(tiny.tokenizer(), model=network)
    for collator, match in (
        (None, "data_collator: give AdaptiveCollator"),
        (stock, "DataCollatorForSeq2Seq knows no column 'lm'"),
        (transformers.default_data_collator, "default_data_collator knows no column 'lm'"),
    ):
        with pytest.raises(UserError, match=match):
            AdaptiveSeq2SeqTrainer(
                network,
                tiny.arguments(tmp_path),
                objective="cbmi",
                train_dataset=data,
                data_collator=collator,
            )


def test_a_collator_without_the_model_is_refused(tmp_path):
    """It would take rows of equal length for those of a decoder-only model."""
    network = tiny.model("marian")
    with pytest.raises(UserError, match="data_collator: give AdaptiveCollator the model"):
        AdaptiveSeq2SeqTrainer(
            network,
            tiny.arguments(tmp_path),
            objective="ce",
            train_dataset=tiny.dataset(4),
            data_collator=AdaptiveCollator(tiny.tokenizer()),
        )


def test_bad_choices_are_refused(tmp_path, monkeypatch):
    refused(tmp_path, "'cbmi' needs the column 'lm'.*; add it with LanguageM", data=tiny.dataset())
    refused(tmp_path, "unknown objective 'cbmy' .did you mean 'cbmi'", objective="cbmy")
    refused(tmp_path, "give a name, or a mapping", objective={"scale_token": 0.1})
    refused(tmp_path, "give a name, or a mapping with a name.*not None", objective=None)
    refused(tmp_path, "give a name, or a mapping with a name", objective=["ce"])
    refused(tmp_path, "unknown key 'scale'", objective={"name": "ce", "scale": 1.0})
    arguments = tiny.arguments(tmp_path)
    arguments.use_liger_kernel = True
    monkeypatch.setattr(tiny, "arguments", lambda *args, **kwargs: arguments)
    refused(tmp_path, "Liger|fused loss")
    arguments.use_liger_kernel = False
    arguments.packing = True
    refused(tmp_path, "packing")


def test_packed_batches_are_refused(tmp_path):
    trainer = tiny.trainer(tmp_path)
    batch = trainer.data_collator(list(trainer.train_dataset.select(range(2))))
    batch["seq_idx"] = torch.zeros_like(batch["input_ids"])
    with pytest.raises(UserError, match="packed"):
        trainer.compute_loss(trainer.model, batch)


def test_batches_of_another_collator_are_refused(tmp_path):
    trainer = tiny.trainer(tmp_path)
    batch = trainer.data_collator(list(trainer.train_dataset.select(range(2))))
    del batch["lm"]
    with pytest.raises(UserError, match="the batch has no 'lm': use AdaptiveCollator"):
        trainer.compute_loss(trainer.model, batch)


@pytest.mark.parametrize("kind", ["bart", "mbart", "marian"])
def test_decoder_inputs_are_made_of_the_labels(tmp_path, kind):
    """Whatever the collator: without labels, some models would read the source instead."""
    trainer = tiny.trainer(tmp_path, kind)
    batch = trainer.data_collator(list(trainer.train_dataset.select(range(4))))
    expected = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=20)
    del batch["decoder_input_ids"]
    found = trainer.compute_loss(trainer.model, batch, num_items_in_batch=20)
    assert found.item() == expected.item()


def test_batches_need_no_attention_mask(tmp_path):
    trainer = tiny.trainer(tmp_path)
    batch = trainer.data_collator([trainer.train_dataset[0]])
    expected = trainer.compute_loss(trainer.model, dict(batch))
    del batch["attention_mask"]
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected.item())


def test_columns_that_are_not_needed_are_left_out(tmp_path):
    """As the stock trainer does: a stock collator would not know them."""
    from transformers import DataCollatorForSeq2Seq

    trainer = tiny.trainer(tmp_path, objective="ce")
    stock = DataCollatorForSeq2Seq(tiny.tokenizer(), model=trainer.model)
    trainer = AdaptiveSeq2SeqTrainer(
        trainer.model,
        tiny.arguments(tmp_path, max_steps=2),
        objective="ce",
        train_dataset=trainer.train_dataset,
        data_collator=stock,
    )
    assert trainer.train().training_loss > 0


def test_token_weights_are_computed_in_parts(tmp_path, monkeypatch):
    """As many rows at a time as in training; the weights are those of all of them."""
    whole = tiny.trainer(tmp_path, per_device_train_batch_size=16)
    parts = tiny.trainer(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=4)
    sizes = []
    collate = parts.data_collator

    def spy(rows):
        sizes.append(len(rows))
        return collate(rows)

    parts.data_collator = spy
    parts.data_collator.tokenizer = collate.tokenizer
    data = whole.train_dataset.select(range(16))
    for one, other in zip(whole.token_weights(data), parts.token_weights(data), strict=True):
        assert one["weights"] == pytest.approx(other["weights"], abs=1e-5)
    assert sizes == [4, 4, 4, 4]


def test_steps_without_a_finite_weight_are_logged(tmp_path):
    """One step that overflows does not end a training that would go on."""
    log = WeightLog()
    log.add(torch.tensor([torch.nan, torch.nan]), torch.tensor([True, True]))
    assert log.summary() == {}
    log.add(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False]))
    assert log.summary()["weight_mean"] == 2


def test_columns_stay_in_single_precision(tmp_path, monkeypatch):
    """DeepSpeed turns a batch's numbers into the model's precision."""
    trainer = tiny.trainer(tmp_path)
    monkeypatch.setattr(
        Seq2SeqTrainer,
        "_prepare_inputs",
        lambda self, inputs: {
            name: value.half() if value.is_floating_point() else value
            for name, value in inputs.items()
        },
    )
    batch = trainer.data_collator([trainer.train_dataset[0]])
    assert trainer._prepare_inputs(batch)["lm"].dtype == torch.float32


def test_shared_sentences_are_refused(tmp_path):
    trainer = tiny.trainer(tmp_path)
    for name in ("cp_size", "sp_size", "tp_size"):
        trainer.accelerator = SimpleNamespace(parallelism_config=SimpleNamespace(**{name: 2}))
        with pytest.raises(UserError, match=name):
            trainer._refuse_unfit_processes()


def test_models_with_a_loss_of_their_own_are_refused(tmp_path):
    trainer = tiny.trainer(tmp_path)
    config = trainer.model.config
    config.output_router_logits = True
    config.router_aux_loss_coef = 0.0
    trainer._refuse_unfit_model()
    config.router_aux_loss_coef = 0.01
    with pytest.raises(UserError, match="the loss of the model's router would be left out"):
        trainer._refuse_unfit_model()
    del config.router_aux_loss_coef  # an unknown coefficient may be anything
    with pytest.raises(UserError, match="the loss of the model's router would be left out"):
        trainer._refuse_unfit_model()
    config.ffn_config = SimpleNamespace(moe_loss_weight=0.0)
    trainer._refuse_unfit_model()
    config.ffn_config.moe_loss_weight = 0.5
    with pytest.raises(UserError, match="the loss of the model's router would be left out"):
        trainer._refuse_unfit_model()


def test_a_search_for_hyperparameters_sets_its_own_objective(tmp_path):
    """transformers puts a trial's outcome into `trainer.objective` before and after each."""
    trainer = tiny.trainer(tmp_path, max_steps=1)
    for outcome in (None, 0.5):
        trainer.objective = outcome
        trainer.train()
    assert name_of(trainer.adaptive_objective) == "cbmi"


def test_a_second_training_logs_its_own_weights(tmp_path):
    trainer = tiny.trainer(tmp_path, max_steps=1, logging_steps=1)
    trainer._weight_log.add(torch.full((3,), 5.0), torch.ones(3, dtype=torch.bool))
    trainer.train()
    assert max(line.get("weight_p95", 0.0) for line in trainer.state.log_history) < 5


def test_frequencies_are_those_of_the_dataset_that_is_trained_on(tmp_path):
    trainer = tiny.trainer(tmp_path, objective="freq-exp", max_steps=1)
    first = trainer._objective_inputs(tiny.SIZE, torch.device("cpu")).frequency
    trainer.train_dataset = tiny.dataset(8, seed=9)
    second = trainer._objective_inputs(tiny.SIZE, torch.device("cpu")).frequency
    assert not torch.equal(first, second)


def test_a_column_of_weights_needs_no_file(tmp_path, capsys):
    data = tiny.dataset(16)
    data = data.add_column("weights", [[2.0] * len(row) for row in data["labels"]])
    for objective in ("weights-file", {"name": "weights-file", "file": "none.txt"}):
        trainer = tiny.trainer(
            tmp_path, objective=objective, data=data, max_steps=1, logging_steps=1
        )
        trainer.train()
        lines = [line for line in trainer.state.log_history if "weight_mean" in line]
        assert [line["weight_mean"] for line in lines] == [2.0]
    assert "has the column 'weights', so none.txt is not read" in capsys.readouterr().err
    with pytest.raises(UserError, match="file: this key is missing"):
        tiny.trainer(tmp_path, objective="weights-file", data=tiny.dataset(16))

    class Own(Weighting):
        def needs(self):
            return frozenset({"weights"})

        def token_weights(self, scores):
            return scores.given

    tiny.trainer(tmp_path, objective=Own(), data=data, max_steps=1).train()


def test_weights_are_shown_of_what_training_reads(tmp_path):
    """A column that training leaves out, and a batch that auto_find_batch_size has halved."""
    data = tiny.scored(tiny.dataset(16))
    network = tiny.model("marian")
    trainer = AdaptiveSeq2SeqTrainer(
        network,
        tiny.arguments(tmp_path, max_steps=1),
        DataCollatorForSeq2Seq(tiny.tokenizer(), model=network),
        data,
        objective="focal",
    )
    assert len(trainer.token_weights(data)) == 16
    trainer = tiny.trainer(tmp_path, data=data)
    whole = trainer.token_weights(data)
    trainer._train_batch_size = 8
    halves = trainer.token_weights(data)
    assert whole["nmt"] == halves["nmt"]
    assert whole["weights"] != halves["weights"]


def test_a_step_that_is_broken_off_leaves_nothing(tmp_path):
    class Stop(TrainerCallback):
        def on_substep_end(self, args, state, control, **others):
            control.should_training_stop = True

    trainer = tiny.trainer(
        tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=2
    )
    trainer.add_callback(Stop())
    trainer.train()
    assert trainer._known_weights == [] == trainer._accumulated


def test_streams_are_refused_where_rows_are_counted(tmp_path):
    trainer = tiny.trainer(tmp_path, objective="freq-exp", max_steps=1)
    stream = trainer.train_dataset.to_iterable_dataset()
    with pytest.raises(UserError, match="token_weights: the data are a stream"):
        trainer.token_weights(stream)
    trainer.train_dataset = stream
    with pytest.raises(UserError, match="objective 'freq-exp' counts the labels"):
        trainer.train()


def test_rows_without_a_label_have_no_line(tmp_path):
    trainer = tiny.trainer(tmp_path, "llama")
    rows = [dict(row) for row in trainer.train_dataset.select(range(3))]
    rows[1]["labels"] = [-100] * len(rows[1]["labels"])
    rows[1]["lm"] = []
    lines = trainer.token_weights(Dataset.from_list(rows))
    assert len(lines) == 2


def test_version_is_one_that_is_tested():
    assert transformers.__version__.startswith(("4.57.", "5."))
