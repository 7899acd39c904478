"""Runs exported to Hugging Face: scores, translations and ids as the run has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from tasks import cbmi, write_run, write_task

pytest.importorskip("transformers")

import transformers

import cbmi as library
from cbmi.data.vocabulary import BOS, EOS
from cbmi.errors import UserError
from cbmi.interop import hf
from cbmi.interop.export import ExportSettings, export_run

SETTINGS = ExportSettings("huggingface", language_model=True)
HARD = [
    "mu ro bo",
    "Straße – 日本語のテキスト 😀🎉",
    "</s> <s> <unk> <pad> <0x0A>",
    "ab " * 300,
    "x",
    "a\u00a0b\ttab",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Runs that have learnt to end their sentences: shared and separate vocabularies."""
    made = {}
    for name, shared in (("one", True), ("two", False)):
        folder = tmp_path_factory.mktemp(name)
        write_task(folder)
        stages = [
            {"name": "train", "objective": "ce", "language_model": "train", "steps": 120},
        ]
        path = write_run(folder, stages=stages)
        vocabulary = f"data.vocabulary={{size: 330, shared: {str(shared).lower()}}}"
        result = cbmi("train", path, vocabulary, "validate.every=120")
        assert result.returncode == 0, result.stderr.decode()
        made[name] = folder / "run"
    return made


@pytest.fixture(scope="module")
def exports(runs, tmp_path_factory) -> dict[str, Path]:
    made = {}
    for name, run in runs.items():
        made[name] = tmp_path_factory.mktemp("exports") / name
        export_run(run, made[name], SETTINGS)
    return made


def load(folder: Path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer, transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("name", ["one", "two"])
def test_scores_of_hard_text(runs, exports, name):
    """Text in, as a user would: the tokenizer, padding and the networks together."""
    own = library.load(runs[name], device="cpu", precision="fp32")
    tokenizer, network = load(exports[name])
    generator = transformers.AutoModelForCausalLM.from_pretrained(exports[name] / "language_model")
    draw = np.random.default_rng(1)
    pairs = [(HARD[a], HARD[b]) for a, b in draw.integers(0, len(HARD), (24, 2))]
    batch = tokenizer([source for source, _ in pairs], return_tensors="pt", padding=True)
    labels = [tokenizer(text_target=target)["input_ids"] for _, target in pairs]
    scored = own.score(pairs)
    for number, gold in enumerate(labels):
        wanted = torch.tensor(gold)[None]
        inputs = torch.cat([torch.tensor([[BOS]]), wanted[:, :-1]], 1)
        with torch.inference_mode():
            found = network(
                input_ids=batch["input_ids"][number : number + 1],
                attention_mask=batch["attention_mask"][number : number + 1],
                decoder_input_ids=inputs,
            ).logits
            lm = generator(input_ids=inputs).logits
        for logits, expected in (
            (found, scored[number].log_p_nmt),
            (lm, scored[number].log_p_lm),
        ):
            log_p = logits.log_softmax(-1).gather(-1, wanted[..., None]).flatten()
            np.testing.assert_allclose(log_p, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["one", "two"])
def test_translations_are_those_of_the_run(runs, exports, name):
    own = library.load(runs[name], device="cpu", precision="fp32")
    tokenizer, network = load(exports[name])
    lines = (runs[name].parent / "valid.src").read_text().splitlines()[:16]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    found = tokenizer.batch_decode(network.generate(**batch), skip_special_tokens=True)
    assert found == own.translate(lines)


def test_n_best_scores_are_those_of_the_run(runs, exports):
    own = library.load(runs["one"], device="cpu", precision="fp32")
    tokenizer, network = load(exports["one"])
    lines = (runs["one"].parent / "valid.src").read_text().splitlines()[:8]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    found = network.generate(
        **batch, num_return_sequences=2, return_dict_in_generate=True, output_scores=True
    )
    expected = [one.score for several in own.translate(lines, nbest=2) for one in several]
    np.testing.assert_allclose(found.sequences_scores, expected, rtol=0, atol=1e-4)


def test_loads_without_cbmi(exports):
    """As its card says."""
    folder = exports["two"]
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = "import sys\nsys.modules['cbmi'] = None\n" + code
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
    assert b"newly initialized" not in result.stderr


def test_the_card_and_the_digest(runs, exports):
    card = (exports["one"] / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers"
    assert "save_pretrained" in card
    note = json.loads((exports["one"] / "cbmi.json").read_text())
    with safe_open(exports["one"] / "model.safetensors", "pt") as file:
        assert file.metadata()["cbmi_weights"] == note["weights"][0]
    with pytest.raises(UserError, match=r"exported for another program \(huggingface\)"):
        library.load(exports["one"])


@pytest.mark.parametrize("mistake", ["positions", "key and value", "embedding", "end", "pieces"])
def test_mistakes_are_caught(runs, tmp_path, monkeypatch, mistake):
    original = hf.marian_weights

    def broken(translator):
        weights = original(translator)
        if mistake == "positions":
            name = "model.decoder.embed_positions.weight"
            weights[name] = weights[name].roll(-1, 0)
        elif mistake == "key and value":
            key, value = (f"model.decoder.layers.0.encoder_attn.{one}_proj.weight" for one in "kv")
            weights[key], weights[value] = weights[value], weights[key]
        elif mistake == "embedding":
            weights["model.shared.weight"] = weights["model.shared.weight"].roll(1, 0)
        elif mistake == "end":
            weights["final_logits_bias"] = weights["final_logits_bias"].clone()
            weights["final_logits_bias"][0, EOS] = -9.0
        return weights

    monkeypatch.setattr(hf, "marian_weights", broken)
    if mistake == "pieces":
        monkeypatch.setattr(hf, "to_json", lambda value: json.dumps(shifted(value)))
    with pytest.raises(UserError, match="nothing was written"):
        export_run(runs["one"], tmp_path / "out", SETTINGS)
    assert not list(tmp_path.iterdir())


def shifted(value):
    """A vocabulary in which two pieces have changed places."""
    if "▁" in value:
        value["▁"], value["a"] = value["a"], value["▁"]
    return value


def test_what_it_cannot_do_is_refused(runs, tmp_path):
    def message(*options) -> str:
        result = cbmi("export", runs["one"], "--to", "huggingface", "-o", tmp_path / "o", *options)
        assert result.returncode == 2
        return result.stderr.decode()

    assert "'int8' is not one of float32, float16, bfloat16" in message("--quantization", "int8")
    result = cbmi(
        "export", runs["one"], "--to", "huggingface", "-o", tmp_path / "o", "--quantization=float16"
    )
    assert result.returncode == 0, result.stderr.decode()
    load(tmp_path / "o")
    assert json.loads((tmp_path / "o" / "config.json").read_text())["torch_dtype"] == "float16"
    folder = tmp_path / "pre"
    folder.mkdir()
    write_task(folder)
    sizes = {"preset": "tiny", "width": 32, "feed_forward": 64, "heads": 2, "norm": "pre"}
    assert cbmi("train", write_run(folder, model=sizes)).returncode == 0
    with pytest.raises(UserError, match="Marian has no pre-norm"):
        export_run(folder / "run", tmp_path / "p", SETTINGS)
