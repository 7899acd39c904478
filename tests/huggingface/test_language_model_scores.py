"""Scores of a language model as a column."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")

import tiny
from datasets import Dataset, DatasetDict
from transformers import BertConfig, BertLMHeadModel

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


def test_start_may_be_a_tokenizers_output():
    lm = tiny.language_model()
    encoded = tiny.tokenizer()("ein haus")
    assert LanguageModelScores(lm, start=encoded).start == encoded["input_ids"]
    assert LanguageModelScores(lm, start=torch.tensor(1)).start == [1]
    for start in ("<s>", [[1, 2]], 1.0):
        with pytest.raises(UserError, match="start: give an id or a list of ids"):
            LanguageModelScores(lm, start=start)


@pytest.mark.parametrize("kind", ["marian", "bart", "mbart"])
def test_a_translators_folder_is_no_language_model(tmp_path, kind):
    """Its decoder alone could be loaded as one, without the encoder that it needs."""
    tiny.model(kind).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="the model here has an encoder"):
        LanguageModelScores(tmp_path, start=tiny.BOS)


def test_models_that_read_ahead_are_refused():
    config = BertConfig(
        vocab_size=tiny.SIZE,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    data = tiny.dataset(4)
    with pytest.raises(UserError, match="BertLMHeadModel reads ahead"):
        LanguageModelScores(BertLMHeadModel(config).eval(), start=tiny.BOS).add_to(data)
    config.is_decoder = True
    LanguageModelScores(BertLMHeadModel(config).eval(), start=tiny.BOS).add_to(data)


def test_weights_that_are_elsewhere_are_refused():
    lm = tiny.language_model().to("meta")
    with pytest.raises(UserError, match="offloaded"):
        LanguageModelScores(lm, start=tiny.BOS)


def test_a_process_with_one_gpu_of_its_own_uses_it(monkeypatch):
    """As Slurm's tasks see it, whatever their number."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    for gpus, expected in ((1, 0), (2, 1), (8, 3)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert language_model_scores._device() == torch.device(f"cuda:{expected}")


def test_rows_that_are_tables_are_refused():
    scores = LanguageModelScores(tiny.language_model(), start=tiny.BOS)
    for form in ("arrow", "pandas"):
        with pytest.raises(UserError, match=r"gives its rows as tables.*with_format\(None\)"):
            scores.add_to(tiny.dataset(4).with_format(form))


def test_adapters_are_part_of_the_model(tmp_path):
    """What is cached with an adapter is not what the model gives without, or with another."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(tiny.language_model(), config)
    adapted.add_adapter("other", config)
    data = tiny.dataset(4)
    scores = LanguageModelScores(adapted, start=tiny.BOS)

    def column(cached: bool) -> list[list[float]]:
        return list(scores.add_to(data, cache=tmp_path / "cache" if cached else None)["lm"])

    found = [column(cached=True)]
    adapted.set_adapter("other")
    found.append(column(cached=True))
    assert found[1] == column(cached=False)
    with adapted.disable_adapter():
        found.append(column(cached=True))
        assert found[2] == column(cached=False)
    assert found[0] != found[1] != found[2] != found[0]
    adapted.set_adapter("default")
    assert column(cached=True) == found[0]


def test_a_prompt_that_was_learnt_is_not_scored(tmp_path):
    from peft import PromptTuningConfig, get_peft_model

    lm = tiny.language_model()
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    prompted = get_peft_model(lm, config)
    scores = LanguageModelScores(prompted, start=tiny.BOS)
    (row,) = scores.log_probabilities([[5, 6]])
    ids = torch.tensor([[tiny.BOS, 5]])
    logits = prompted(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -2:]
    expected = logits.log_softmax(-1)[[0, 1], [5, 6]]
    assert row == pytest.approx(expected.tolist(), abs=1e-5)
    # Without the prompt, the model is another one.
    data = tiny.dataset(4)
    column = list(scores.add_to(data, cache=tmp_path)["lm"])
    with prompted.disable_adapter():
        assert list(scores.add_to(data, cache=tmp_path)["lm"]) != column


def test_other_tokenizers_are_refused(tmp_path):
    tokenizer = tiny.tokenizer()
    tiny.language_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    LanguageModelScores(tmp_path, start=tiny.BOS, tokenizer=tokenizer)
    other = tiny.tokenizer()
    other.add_tokens(["haus haus"])
    with pytest.raises(UserError, match="its tokenizer is not the translator's"):
        LanguageModelScores(tmp_path, start=tiny.BOS, tokenizer=other)


def test_a_gap_in_the_labels_is_refused():
    """What follows it would be scored as the text that it is not."""
    data = Dataset.from_list([{"labels": [5, 6, -100, 7, 2]}])
    scores = LanguageModelScores(tiny.language_model(), start=tiny.BOS)
    with pytest.raises(UserError, match="give each turn a row of its own"):
        scores.add_to(data)
    around = Dataset.from_list([{"labels": [-100, 5, 6, -100]}])
    assert [len(row) for row in scores.add_to(around)["lm"]] == [2]


@pytest.mark.parametrize(
    ("labels", "problem"),
    [([5, -1], "has the label -1"), (None, "should be a list of ids"), (3, "should be a list")],
)
def test_rows_that_have_no_labels(labels, problem):
    data = Dataset.from_dict({"labels": [labels]})
    with pytest.raises(UserError, match=problem):
        LanguageModelScores(tiny.language_model(), start=tiny.BOS).add_to(data)


def test_a_compiled_language_model():
    lm = tiny.language_model()
    data = tiny.dataset(2)
    compiled = LanguageModelScores(torch.compile(lm), start=tiny.BOS).add_to(data)
    assert list(compiled["lm"]) == list(LanguageModelScores(lm, start=tiny.BOS).add_to(data)["lm"])


@pytest.mark.parametrize("lm", [None, torch.nn.Linear(2, 2)])
def test_what_is_no_language_model(lm):
    with pytest.raises(UserError, match="lm: give a causal language model, its folder or name"):
        LanguageModelScores(lm, start=tiny.BOS)


def test_a_cache_is_a_folder(tmp_path):
    (tmp_path / "file").touch()
    scores = LanguageModelScores(tiny.language_model(), start=tiny.BOS)
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"cache: .*file is not a folder"):
            scores.add_to(tiny.dataset(2), cache=place)
