"""docs/api.md: every example is run, in order, in one namespace."""

from __future__ import annotations

import numpy as np
import pytest
from pages import blocks, write_corpus
from tasks import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
RUN_FILE = """
output: runs/mine
data:
  source: en
  target: de
  train: [corpus/train.en, corpus/train.de]
  valid: [corpus/valid.en, corpus/valid.de]
  test: {test: [corpus/test.en, corpus/test.de]}
  vocabulary: {size: 700}
model: {preset: tiny, width: 32, feed_forward: 64, heads: 2}
batch: {tokens: 300}
validate: {every: 4}
stages:
  - {name: pretrain, objective: ce, language_model: train, steps: 4}
  - {name: adapt, objective: cbmi, language_model: cached, steps: 4}
"""


@pytest.mark.timeout(240)
def test_the_examples_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus")
    (tmp_path / "mine.yaml").write_text(RUN_FILE)
    names: dict = {}
    examples = blocks(PAGE, "python")
    assert len(examples) >= 10
    for example in examples:
        exec(compile(example, "docs/api.md", "exec"), names)
    assert len(names["losses"]) == 8
    assert names["config"].model.dropout == 0.3
    assert len(names["texts"]) == 15
    assert [len(found) for found in names["samples"]] == [3, 3]
    assert names["report"].systems[1].metrics["BLEU"].score == pytest.approx(100)
    assert names["result"].kept + names["result"].dropped == 150
    assert np.all(names["weights"].numpy()[~names["mask"].numpy()] == 0)
    assert "there is no such run directory" in capsys.readouterr().out
