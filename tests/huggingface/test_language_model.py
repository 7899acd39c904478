"""A language model trained on the labels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import tiny
from datasets import Dataset
from transformers import LlamaConfig

from cbmi.errors import UserError
from cbmi.huggingface import (
    AdaptiveCollator,
    AdaptiveSeq2SeqTrainer,
    LanguageModelScores,
    language_model,
    train_language_model,
)
from cbmi.huggingface.language_model import last_checkpoint


def small_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=tiny.SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=tiny.PAD,
    )


def test_a_language_model_is_trained_once(tmp_path):
    data = tiny.dataset(64)
    arguments = tiny.arguments(
        tmp_path / "work", "llama", optim="adamw_torch", learning_rate=0.02, max_steps=60
    )
    settings = {"start": tiny.BOS, "output": tmp_path / "lm", "config": small_config()}
    trained = train_language_model(tiny.tokenizer(), data, args=arguments, **settings)
    scored = LanguageModelScores(trained, start=tiny.BOS).add_to(data)
    mean = sum(sum(row) for row in scored["lm"]) / sum(len(row) for row in scored["lm"])
    assert mean > -2.6  # pieces drawn at random: -3.6

    again = train_language_model(tiny.tokenizer(), data, args=arguments, **settings)
    for first, second in zip(trained.parameters(), again.parameters(), strict=True):
        assert torch.equal(first.cpu(), second.cpu())
    with pytest.raises(UserError, match="was trained on other data"):
        train_language_model(tiny.tokenizer(), tiny.dataset(8), args=arguments, **settings)
    larger = small_config()
    larger.hidden_size = 32
    with pytest.raises(UserError, match="was trained with other settings"):
        train_language_model(
            tiny.tokenizer(), data, args=arguments, **(settings | {"config": larger})
        )
    # Checkpoints of something else are not taken for those of a language model.
    (tmp_path / "work" / "checkpoint-3").mkdir()
    (tmp_path / "work" / "checkpoint-3" / "trainer_state.json").touch()
    with pytest.raises(UserError, match="was trained on other data"):
        train_language_model(
            tiny.tokenizer(),
            tiny.dataset(8),
            args=arguments,
            **(settings | {"output": tmp_path / "c"}),
        )
    (tmp_path / "work" / "cbmi.json").unlink()
    with pytest.raises(UserError, match="checkpoints of another training"):
        train_language_model(
            tiny.tokenizer(), data, args=arguments, **(settings | {"output": tmp_path / "c"})
        )


def test_an_interrupted_language_model_goes_on(tmp_path, monkeypatch):
    data = tiny.dataset(64)
    own = {"save_strategy": "steps", "save_steps": 5, "max_steps": 10, "save_total_limit": 1}
    settings = {"start": tiny.BOS, "config": small_config()}

    def arguments(folder: str):
        return tiny.arguments(tmp_path / folder, "llama", **own)

    whole = train_language_model(
        tiny.tokenizer(), data, output=tmp_path / "a", args=arguments("work-a"), **settings
    )

    class Interrupted(Exception):
        pass

    class Breaking(language_model.AdaptiveTrainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step == 7:
                raise Interrupted
            return super().training_step(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(language_model, "AdaptiveTrainer", Breaking)
        with pytest.raises(Interrupted):
            train_language_model(
                tiny.tokenizer(), data, output=tmp_path / "b", args=arguments("work-b"), **settings
            )
    resumed = train_language_model(
        tiny.tokenizer(), data, output=tmp_path / "b", args=arguments("work-b"), **settings
    )
    for first, second in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(first, second)


def test_other_arguments_make_another_model(tmp_path):
    settings = {"start": tiny.BOS, "output": tmp_path / "lm", "config": small_config()}

    def trained(folder: str, **own):
        arguments = tiny.arguments(tmp_path / folder, "llama", max_steps=1, **own)
        return train_language_model(tiny.tokenizer(), tiny.dataset(8), args=arguments, **settings)

    trained("work")
    trained("work", logging_steps=7, disable_tqdm=True)
    for other in ({"learning_rate": 0.5}, {"adam_beta2": 0.5}, {"bf16": True}):
        with pytest.raises(UserError, match="was trained with other settings"):
            trained("work", **other)
    with pytest.raises(UserError, match="is where the language model itself goes"):
        trained("lm")


def test_versions_write_the_same_config_differently(tmp_path):
    """transformers 4 has rope_theta where version 5 has rope_parameters."""
    settings = {"start": tiny.BOS, "output": tmp_path / "lm", "config": small_config()}
    arguments = tiny.arguments(tmp_path / "work", "llama", max_steps=1)

    def trained():
        return train_language_model(tiny.tokenizer(), tiny.dataset(8), args=arguments, **settings)

    trained()
    path = tmp_path / "lm" / "cbmi.json"
    note = json.loads(path.read_text())
    parameters = note["config"].pop("rope_parameters", {"rope_theta": 10000.0})
    note["config"]["rope_theta"] = parameters["rope_theta"]
    path.write_text(json.dumps(note))
    trained()
    note["config"]["rope_theta"] = 5.0
    path.write_text(json.dumps(note))
    with pytest.raises(UserError, match="was trained with other settings"):
        trained()


def test_models_of_others_are_left_alone(tmp_path):
    settings = {"start": tiny.BOS, "config": small_config()}
    tiny.language_model(8).save_pretrained(tmp_path / "theirs")
    before = (tmp_path / "theirs" / "model.safetensors").read_bytes()

    def trained(name: str):
        arguments = tiny.arguments(tmp_path / "work", "llama", max_steps=1)
        return train_language_model(
            tiny.tokenizer(), tiny.dataset(8), output=tmp_path / name, args=arguments, **settings
        )

    with pytest.raises(UserError, match="theirs: there is another model here"):
        trained("theirs")
    assert (tmp_path / "theirs" / "model.safetensors").read_bytes() == before
    # A model that is saved over the language model is not taken for it.
    trained("ours")
    tiny.language_model(8).save_pretrained(tmp_path / "ours")
    with pytest.raises(UserError, match="another model was saved here after the language model"):
        trained("ours")


def test_what_its_config_cannot_read_is_refused(tmp_path):
    def trained(start, **changes):
        config = small_config()
        for name, value in changes.items():
            setattr(config, name, value)
        train_language_model(
            tiny.tokenizer(), tiny.dataset(8), start=start, output=tmp_path / "lm", config=config
        )

    with pytest.raises(UserError, match="labels, but the language model reads at most 5 tokens"):
        trained(tiny.BOS, max_position_embeddings=5)
    for start in (tiny.SIZE, -1):
        with pytest.raises(UserError, match=f"start: the language model has no id {start}"):
            trained(start)
    with pytest.raises(UserError, match="start: give at least one id"):
        trained([])
    assert not (tmp_path / "lm").exists()


def test_its_precision_stays_its_own(tmp_path, monkeypatch):
    """bf16 holds for its training alone: neither for others, nor for the model that comes back."""

    def in_bf16(folder, rows):  # as the default is on a GPU
        return tiny.arguments(folder, "llama", max_steps=1, bf16=True)

    monkeypatch.setattr(language_model, "_three_epochs", in_bf16)
    data = tiny.dataset(16)
    translator = tiny.model("marian")
    before = tiny.arguments(tmp_path / "before", max_steps=1)
    environment = dict(os.environ)
    lm = train_language_model(
        tiny.tokenizer(), data, start=tiny.BOS, output=tmp_path / "lm", config=small_config()
    )
    assert dict(os.environ) == environment
    assert lm(input_ids=torch.tensor([[1, 5]])).logits.dtype is torch.float32
    scored = LanguageModelScores(lm, start=tiny.BOS).add_to(data)
    loaded = LanguageModelScores(tmp_path / "lm", start=tiny.BOS).add_to(data)
    assert list(scored["lm"]) == list(loaded["lm"])
    for args in (before, tiny.arguments(tmp_path / "after", max_steps=1)):
        trainer = AdaptiveSeq2SeqTrainer(
            translator,
            args,
            objective="cbmi",
            train_dataset=scored,
            data_collator=AdaptiveCollator(tiny.tokenizer(), model=translator),
        )
        assert trainer.accelerator.mixed_precision == "no"


def test_accumulation_does_not_change_its_loss(tmp_path):
    """With label smoothing, too, on every version of transformers."""
    data = tiny.dataset(16)
    trained = []
    for size, accumulate in ((16, 1), (4, 4)):
        own = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}
        arguments = tiny.arguments(
            tmp_path / f"work-{size}", "llama", max_steps=2, label_smoothing_factor=0.1, **own
        )
        lm = train_language_model(
            tiny.tokenizer(),
            data,
            start=tiny.BOS,
            output=tmp_path / f"lm-{size}",
            config=small_config(),
            args=arguments,
        )
        trained.append(lm)
    for first, second in zip(*(lm.parameters() for lm in trained), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_a_start_that_is_also_padding_is_learnt(tmp_path):
    """As Marian's and T5's; the embedding of padding gets no gradient."""
    config = small_config()
    config.tie_word_embeddings = False
    arguments = tiny.arguments(tmp_path / "work", "llama", max_steps=2, learning_rate=0.1)
    lm = train_language_model(
        tiny.tokenizer(),
        tiny.dataset(16),
        start=tiny.PAD,
        output=tmp_path / "lm",
        config=config,
        args=arguments,
    )
    assert config.pad_token_id == tiny.PAD  # the caller's is left alone
    (one,), (other,) = LanguageModelScores(lm, start=tiny.PAD).log_probabilities([[5], [6]])
    assert one != other


def test_checkpoints_that_are_not_complete_are_passed_over(tmp_path):
    assert last_checkpoint(tmp_path) is None
    for number, is_complete in ((9, True), (10, True), (20, False)):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        if is_complete:
            (folder / "trainer_state.json").touch()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_a_stream_is_refused(tmp_path):
    stream = tiny.dataset(2).to_iterable_dataset()
    with pytest.raises(UserError, match="the data are a stream"):
        train_language_model(tiny.tokenizer(), stream, start=1, output=tmp_path)


def test_the_warm_up_ends_before_a_short_training_does(tmp_path):
    args = language_model._three_epochs(tmp_path, rows=2000)
    assert args.warmup_steps == 3 * 32 // 10
    assert language_model._three_epochs(tmp_path, rows=1_000_000).warmup_steps == 500


@pytest.mark.slow
def test_two_processes_train_one_language_model(tmp_path):
    """Half of the steps of one process, the same folder, and both load the same weights."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, tiny, torch\n"
        "from cbmi.huggingface import train_language_model\n"
        "from test_language_model import small_config\n"
        "args = tiny.arguments(sys.argv[1] + '/work', 'llama', max_steps=-1,\n"
        "    num_train_epochs=1, per_device_train_batch_size=4, ddp_backend='gloo',\n"
        "    save_strategy='epoch')\n"
        "lm = train_language_model(tiny.tokenizer(), tiny.dataset(16), start=tiny.BOS,\n"
        "    output=sys.argv[1] + '/lm', config=small_config(), args=args)\n"
        "print('steps', args.world_size, float(sum(p.double().sum() for p in lm.parameters())))\n"
    )
    folder = str(Path(__file__).parent)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    paths = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [*command, str(script), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("steps ")]
    assert len(said) == 2
    assert len(set(said)) == 1  # the same weights in both
    assert said[0].startswith("steps 2 ")
    state = json.loads(next((tmp_path / "work").glob("*/trainer_state.json")).read_text())
    assert state["global_step"] == 2  # 16 rows, 2 processes of 4 rows a step


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_labels_may_be_tensors(tmp_path, form):
    """Also those beyond the tokenizer's vocabulary."""
    data = Dataset.from_list([{"labels": [50, 2]}] * 4).with_format(form)
    args = tiny.arguments(tmp_path / "work", "llama", max_steps=1)
    lm = train_language_model(
        tiny.tokenizer(), data, start=tiny.BOS, output=tmp_path / "lm", args=args
    )
    assert lm.config.vocab_size == 51
