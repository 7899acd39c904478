"""The scripts of examples/huggingface, run as they are with tiny models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import tiny

SCRIPTS = Path(__file__).parents[2] / "examples" / "huggingface"


@pytest.fixture
def corpus(tmp_path) -> dict[str, str]:
    """Files of the corpus, and a tiny model of each kind with its tokenizer."""
    for side, lines in zip(("en", "de"), zip(*tiny.pairs(40), strict=True), strict=True):
        (tmp_path / f"train.{side}").write_text("\n".join(lines) + "\n")
    return {"en": str(tmp_path / "train.en"), "de": str(tmp_path / "train.de")}


def saved(folder: Path, kind: str) -> str:
    model = tiny.language_model() if kind == "lm" else tiny.model(kind, dropout=0.1)
    model.save_pretrained(folder / kind)
    tiny.tokenizer(ends=kind != "llama").save_pretrained(folder / kind)
    return str(folder / kind)


def run(script: str, *arguments: str) -> None:
    command = [sys.executable, str(SCRIPTS / script), *arguments, "--steps", "3"]
    result = subprocess.run(command, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr.decode()[-3000:]


@pytest.mark.slow
def test_marian(tmp_path, corpus):
    files = [corpus["en"], corpus["de"]]
    model, lm = saved(tmp_path, "marian"), saved(tmp_path, "lm")
    options = ["--train", *files, "--valid", *files, "--output", str(tmp_path / "out")]
    run("marian.py", model, *options, "--language-model", lm)
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert (tmp_path / "out" / "weights.parquet").exists()


@pytest.mark.slow
def test_nllb(tmp_path, corpus):
    options = ["--train", corpus["en"], corpus["de"], "--output", str(tmp_path / "out")]
    options += ["--languages", "eng_Latn", "deu_Latn"]
    run("nllb.py", saved(tmp_path, "m2m100"), *options)  # trains a language model, too
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.slow
def test_lora(tmp_path, corpus):
    options = ["--train", corpus["en"], corpus["de"], "--output", str(tmp_path / "out")]
    run("lora.py", saved(tmp_path, "llama"), *options)
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


def test_page_shows_the_scripts():
    """docs/huggingface.md has them word for word."""
    page = (SCRIPTS.parents[1] / "docs" / "huggingface.md").read_text()
    for script in SCRIPTS.glob("*.py"):
        assert f"(../examples/huggingface/{script.name})" in page
        assert f"```python\n{script.read_text()}```" in page
