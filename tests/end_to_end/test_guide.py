"""The guide's recipes, in its own words, on a small corpus with the guide's file names."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import subprocess

import pytest
from pages import blocks
from tasks import ROOT, cbmi

from cbmi.config import read_config
from cbmi.demo.corpus import generate

GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
SMALL = [
    "model.width=32",
    "model.heads=2",
    "stages.pretrain.steps=3",
    "stages.adapt.steps=2",
    "optimizer.warmup=1",
    "validate.every=100",
    "data.vocabulary.size=500",
    "batch.tokens=300",
]


def section(title: str) -> str:
    """What stands under a heading of the guide."""
    found = re.search(rf"^### {title}.*?(?=^##)", GUIDE, flags=re.MULTILINE | re.DOTALL)
    assert found, title
    return found.group()


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A small data/multi30k, and the recipes."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    pairs = generate(200, seed=1)
    parts = {"train": pairs[:160], "valid": pairs[160:170]}
    parts |= {"test2016": pairs[170:180], "test2017": pairs[180:190]}
    for name, chosen in parts.items():
        for side, texts in (
            ("en", [pair.source for pair in chosen]),
            ("de", [pair.target for pair in chosen]),
        ):
            with gzip.open(folder / f"{name}.{side}.gz", "wt", encoding="utf-8") as file:
                file.writelines(f"{text}\n" for text in texts)
    return tmp_path


def run_block(title: str) -> None:
    (block,) = blocks(section(title), "bash")
    text = block.replace("\\\n", " ").replace("14500", "80").replace("14501", "81")
    for command in text.splitlines():
        words = shlex.split(command, comments=True)
        if words[:1] != ["cbmi"]:
            subprocess.run(["bash", "-ec", command], check=True)
            continue
        if "train" in words:
            words += SMALL if "stages=" not in command else [*SMALL[:2], *SMALL[4:]]
            words += ["stages.0.steps=3"]
        result = cbmi(*words[1:])
        assert result.returncode == 0, result.stderr.decode()


@pytest.mark.slow
def test_back_translation(corpus):
    run_block("Use monolingual text")
    # An untrained model samples any character, so only line feeds end a line.
    assert (corpus / "both.en").read_bytes().count(b"\n") == 160
    assert (corpus / "both.de").read_bytes().endswith((corpus / "mono.de").read_bytes())
    assert (corpus / "runs" / "back-translated" / "test" / "results.json").exists()


@pytest.mark.slow
def test_distillation(corpus):
    run_block("Train a small, fast model")
    assert len((corpus / "distilled.de").read_text().splitlines()) == 160
    assert len((corpus / "test2016.student").read_text().splitlines()) == 10


@pytest.mark.slow
def test_better_translations(corpus):
    (corpus / "run.yaml").write_text(blocks(GUIDE, "yaml")[0])  # that of the first section
    run_block("Get better translations")
    config = read_config(corpus / "runs" / "stronger" / "config.yaml")
    assert config.r_drop == 5.0
    assert [stage.name for stage in config.stages] == ["pretrain", "adapt"]
