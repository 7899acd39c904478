"""A language model trained on the labels."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

import tiny
from transformers import LlamaConfig

from cbmi.errors import UserError
from cbmi.huggingface import LanguageModelScores, language_model, train_language_model


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

    again = train_language_model(tiny.tokenizer(), data, args=None, **settings)
    for first, second in zip(trained.parameters(), again.parameters(), strict=True):
        assert torch.equal(first.cpu(), second.cpu())
    with pytest.raises(UserError, match="was trained on other data"):
        train_language_model(tiny.tokenizer(), tiny.dataset(8), args=None, **settings)
    larger = small_config()
    larger.hidden_size = 32
    with pytest.raises(UserError, match="was trained on other settings"):
        train_language_model(tiny.tokenizer(), data, args=None, **(settings | {"config": larger}))
    # Checkpoints of something else are not taken for those of a language model.
    (tmp_path / "work" / "checkpoint-3").mkdir(parents=True, exist_ok=True)
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

    class Breaking(language_model.Trainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step == 7:
                raise Interrupted
            return super().training_step(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(language_model, "Trainer", Breaking)
        with pytest.raises(Interrupted):
            train_language_model(
                tiny.tokenizer(), data, output=tmp_path / "b", args=arguments("work-b"), **settings
            )
    resumed = train_language_model(
        tiny.tokenizer(), data, output=tmp_path / "b", args=arguments("work-b"), **settings
    )
    for first, second in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(first, second)


def test_a_stream_is_refused(tmp_path):
    stream = tiny.dataset(2).to_iterable_dataset()
    with pytest.raises(UserError, match="the data are a stream"):
        train_language_model(tiny.tokenizer(), stream, start=1, output=tmp_path)
