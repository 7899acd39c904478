"""Scores of a language model as a column."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")

import tiny
from datasets import Dataset, DatasetDict

from cbmi.errors import UserError
from cbmi.huggingface import LanguageModelScores, language_model_scores


def by_hand(lm, start: list[int], labels: list[int]) -> list[float]:
    """One sentence alone, without padding."""
    ids = torch.tensor([[*start, *labels]])
    with torch.no_grad():
        log_p = F.log_softmax(lm(input_ids=ids).logits[0].double(), -1)
    places = range(len(start) - 1, ids.shape[1] - 1)
    return [log_p[place, ids[0, place + 1]].item() for place in places]


@pytest.mark.parametrize("start", [tiny.BOS, [tiny.BOS, 9, 10]])
@pytest.mark.parametrize("limit", [30, 4096])
def test_scores_are_those_of_each_sentence_alone(monkeypatch, start, limit):
    monkeypatch.setitem(language_model_scores.TOKENS, "cpu", limit)
    lm = tiny.language_model()
    data = tiny.dataset(40)
    scored = LanguageModelScores(lm, start=start).add_to(data)
    ids = [start] if isinstance(start, int) else start
    for row in scored:
        expected = by_hand(lm, ids, row["labels"])
        assert row["lm"] == pytest.approx(expected, abs=1e-5)


def test_prompts_are_not_scored():
    """Labels of -100 have no score: the prompt without the source takes their place."""
    lm = tiny.language_model()
    data = tiny.causal_dataset(10)
    scored = LanguageModelScores(lm, start=[tiny.BOS, tiny.UNK]).add_to(data)
    for row in scored:
        labels = [label for label in row["labels"] if label != -100]
        assert row["lm"] == pytest.approx(by_hand(lm, [tiny.BOS, tiny.UNK], labels), abs=1e-5)


def test_scores_are_cached(tmp_path, monkeypatch):
    calls = []
    score = LanguageModelScores._score_rows

    def counting(self, rows):
        calls.append(len(rows))
        return score(self, rows)

    monkeypatch.setattr(LanguageModelScores, "_score_rows", counting)
    lm = tiny.language_model()
    data = tiny.dataset(8)
    first = LanguageModelScores(lm, start=tiny.BOS).add_to(data, cache=tmp_path)
    assert calls == [8]
    again = LanguageModelScores(tiny.language_model(), start=tiny.BOS).add_to(data, cache=tmp_path)
    assert calls == [8]
    assert list(again["lm"]) == list(first["lm"])
    # Another start, another model, other data: scored again.
    LanguageModelScores(lm, start=tiny.EOS).add_to(data, cache=tmp_path)
    LanguageModelScores(tiny.language_model(8), start=tiny.BOS).add_to(data, cache=tmp_path)
    LanguageModelScores(lm, start=tiny.BOS).add_to(tiny.dataset(8, seed=2), cache=tmp_path)
    assert calls == [8, 8, 8, 8]


def test_streaming_data_is_scored_as_it_is_read():
    lm = tiny.language_model(dropout=0.5).train()
    scores = LanguageModelScores(lm, start=tiny.BOS)
    stream = scores.add_to(tiny.dataset(6).to_iterable_dataset())
    expected = scores.add_to(tiny.dataset(6))
    assert lm.training
    with torch.no_grad():  # what becomes of it later makes no difference
        lm.lm_head.weight.zero_()
    for row, other in zip(stream, expected, strict=True):
        assert row["lm"] == pytest.approx(other["lm"], abs=1e-5)


def test_bad_language_models_are_refused(tmp_path):
    lm = tiny.language_model()
    with pytest.raises(UserError, match="start: give at least one id"):
        LanguageModelScores(lm, start=[])
    with pytest.raises(UserError, match="has no id 99"):
        LanguageModelScores(lm, start=99)
    with pytest.raises(UserError, match="there is no language model here"):
        LanguageModelScores(tmp_path / "none", start=1)
    with pytest.raises(UserError, match="start: it is None"):
        LanguageModelScores(lm, start=None)
    with pytest.raises(UserError, match="give one dataset"):
        LanguageModelScores(lm, start=1).add_to(DatasetDict(train=tiny.dataset(2)))
    with pytest.raises(UserError, match="T5ForConditionalGeneration has an encoder"):
        LanguageModelScores(tiny.model("t5"), start=1)
    lm.config.max_position_embeddings = 4
    LanguageModelScores(lm, start=1).log_probabilities([[5, 6, 7, 8]])
    with pytest.raises(
        UserError, match="a row of 5 labels, but the language model reads at most 4"
    ):
        LanguageModelScores(lm, start=1).log_probabilities([[5], [5, 6, 7, 8, 9]])
    data = Dataset.from_list([{"labels": [5, 70]}])
    with pytest.raises(UserError, match=r"label 70.*belongs to another tokenizer"):
        LanguageModelScores(lm, start=tiny.BOS).add_to(data)
    with pytest.raises(UserError, match="needs the column 'labels'"):
        LanguageModelScores(lm, start=tiny.BOS).add_to(Dataset.from_list([{"text": "a"}]))


def test_other_tokenizers_are_refused(tmp_path):
    tokenizer = tiny.tokenizer()
    tiny.language_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    LanguageModelScores(tmp_path, start=tiny.BOS, tokenizer=tokenizer)
    other = tiny.tokenizer()
    other.add_tokens(["haus haus"])
    with pytest.raises(UserError, match="its tokenizer is not the translator's"):
        LanguageModelScores(tmp_path, start=tiny.BOS, tokenizer=other)
