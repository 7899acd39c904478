"""Top-1 accuracy of the priors, by CBMI, against a plain reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tasks import cbmi, refused, write_run, write_task

from cbmi.analysis.prior_accuracy import EDGES, _binned, pairs_of, prior_accuracy
from cbmi.analysis.score import packed_batches
from cbmi.data.vocabulary import BOS
from cbmi.model import shift_right
from cbmi.model.distribution import keep_states
from cbmi.training.trained import Trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("priors")
    write_task(folder)
    stages = [{"name": "pretrain", "language_model": "train", "steps": 60}]
    assert cbmi("train", write_run(folder, stages=stages, validate={"every": 60, "beam": 0})).returncode == 0
    return folder / "run"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_it_is_the_plain_computation(run):
    model = Trained(run, device="cpu", precision="fp32")
    pairs = pairs_of(model, ())
    found = prior_accuracy(model, pairs)
    values, right = [], {"lm": [], "tm": [], "cbmi": []}
    language_model = model.language_model()
    for _, source, target in packed_batches(model, pairs):
        inputs = shift_right(target, BOS)
        with torch.no_grad():
            translator = model.translator(source, inputs, target.ids, head=keep_states)
            language = language_model(inputs, target.ids, head=keep_states)
        tm, lm = (log_softmax((s.hidden @ s.weight.T).double().numpy()) for s in (translator, language))
        gold = target.ids.numpy()
        rows = np.arange(len(gold))
        values.append(tm[rows, gold] - lm[rows, gold])
        for name, scores in {"lm": lm, "tm": tm, "cbmi": tm - np.maximum(lm, np.log(1e-9))}.items():
            right[name].append(scores.argmax(axis=1) == gold)
    cbmi_values = np.concatenate(values)
    assert found["tokens"] == len(cbmi_values)
    assert found["mean_cbmi"] == pytest.approx(cbmi_values.mean(), abs=1e-5)
    for name, parts in right.items():
        hits = np.concatenate(parts)
        assert found[name] == pytest.approx(hits.mean())
        for record, low, high in zip(found["bins"], EDGES, EDGES[1:], strict=False):
            inside = (cbmi_values > low) & (cbmi_values <= high)
            assert record["tokens"] == inside.sum()
            if inside.any():
                assert record[name] == pytest.approx(hits[inside].mean())


def test_edges_belong_to_the_bin_below():
    found = _binned(np.array([-4.0, 0.0, 0.1, 12.0, 12.1]), np.ones((3, 5), bool))
    counts = {(record["above"], record["to"]): record["tokens"] for record in found["bins"]}
    wanted = {(None, -4.0): 1, (-2.0, 0.0): 1, (0.0, 2.0): 1, (10.0, 12.0): 1, (12.0, None): 1}
    assert {key: count for key, count in counts.items() if count} == wanted


def test_the_command(run, tmp_path):
    shown = cbmi("prior-accuracy", run, "--device", "cpu").stdout.decode()
    assert shown.splitlines()[0].split() == ["CBMI", "tokens", "lm", "tm", "cbmi"]
    assert shown.splitlines()[-1].split()[0] == "all"
    files = ("--source", run.parent / "test.src", "--target", run.parent / "test.tgt")
    assert cbmi("prior-accuracy", run, *files, "--json", "-o", tmp_path / "a.json").returncode == 0
    assert json.loads((tmp_path / "a.json").read_text())["tokens"] > 50
    columns = [(run.parent / f"test.{side}").read_text().splitlines() for side in ("src", "tgt")]
    (tmp_path / "test.tsv").write_text("".join("\t".join(pair) + "\n" for pair in zip(*columns, strict=True)))
    both = cbmi("prior-accuracy", run, "--source", tmp_path / "test.tsv", "--json")
    assert json.loads(both.stdout) == json.loads((tmp_path / "a.json").read_text())
    assert "--target: name the translations of" in refused("prior-accuracy", run, *files[:2])
    assert "name --source as well" in refused("prior-accuracy", run, *files[2:])
