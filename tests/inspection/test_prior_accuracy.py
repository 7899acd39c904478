"""Top-1 accuracy of the priors, by CBMI, against a plain reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tasks import cbmi, refused, write_run, write_task

from cbmi.data.vocabulary import BOS
from cbmi.inference.model import TrainedModel
from cbmi.inference.scoring import packed_batches
from cbmi.inspection.prior_accuracy import (
    EDGES,
    PriorAccuracy,
    accuracy_table,
    binned_accuracy,
    pairs_of,
    prior_accuracy,
)
from cbmi.model import shift_right
from cbmi.model.distribution import keep_states


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("priors")
    write_task(folder)
    stages = [{"name": "pretrain", "language_model": "train", "steps": 60}]
    path = write_run(folder, stages=stages, validate={"every": 60, "beam": 0})
    assert cbmi("train", path).returncode == 0
    return folder / "run"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_it_is_the_plain_computation(run):
    model = TrainedModel(run, device="cpu", precision="fp32")
    pairs = pairs_of(model, ())
    found = prior_accuracy(model, pairs)
    values = []
    right = {"lm": [], "tm": [], "cbmi": []}
    language_model = model.language_model()
    for _, source, target in packed_batches(model, pairs):
        inputs = shift_right(target, BOS)
        with torch.no_grad():
            translator = model.translator(source, inputs, target.ids, head=keep_states)
            language = language_model(inputs, target.ids, head=keep_states)
        tm = log_softmax((translator.hidden @ translator.weight.T).double().numpy())
        lm = log_softmax((language.hidden @ language.weight.T).double().numpy())
        gold = target.ids.numpy()
        rows = np.arange(len(gold))
        values.append(tm[rows, gold] - lm[rows, gold])
        for name, scores in {"lm": lm, "tm": tm, "cbmi": tm - np.maximum(lm, np.log(1e-9))}.items():
            right[name].append(scores.argmax(axis=1) == gold)
    cbmi_values = np.concatenate(values)
    assert found.tokens == len(cbmi_values)
    assert found.mean_cbmi == pytest.approx(cbmi_values.mean(), abs=1e-5)
    for name, parts in right.items():
        hits = np.concatenate(parts)
        assert found.shares[name] == pytest.approx(hits.mean())
        for own, low, high in zip(found.bins, EDGES[:-1], EDGES[1:], strict=True):
            inside = (cbmi_values > low) & (cbmi_values <= high)
            assert own.tokens == inside.sum()
            if inside.any():
                assert own.shares[name] == pytest.approx(hits[inside].mean())


def test_edges_belong_to_the_bin_below():
    found = binned_accuracy(np.array([-4.0, 0.0, 0.1, 12.0, 12.1]), np.ones((3, 5), bool))
    counts = {(own.above, own.to): own.tokens for own in found.bins if own.tokens}
    expected = {(None, -4.0): 1, (-2.0, 0.0): 1, (0.0, 2.0): 1, (10.0, 12.0): 1, (12.0, None): 1}
    assert counts == expected


def test_json_and_back():
    right = np.array([[True, False], [True, True], [False, False]])
    found = binned_accuracy(np.array([-5.0, 1.0]), right)
    record = json.loads(json.dumps(found.to_json()))
    shares = {"lm": 0.5, "tm": 1.0, "cbmi": 0.0}
    assert {key: record[key] for key in record if key != "bins"} == {
        "tokens": 2,
        "mean_cbmi": -2.0,
        **shares,
    }
    first = {"above": None, "to": -4.0, "tokens": 1, "lm": 1.0, "tm": 1.0, "cbmi": 0.0}
    assert record["bins"][0] == first
    assert record["bins"][1] == {"above": -4.0, "to": -2.0, "tokens": 0}  # no tokens, no shares
    assert PriorAccuracy.from_json(record) == found


def test_the_table_names_every_bin():
    found = binned_accuracy(np.array([-5.0, 1.0]), np.ones((3, 2), bool))
    lines = accuracy_table(found).splitlines()
    assert lines[:2] == [
        "    CBMI  tokens      lm      tm    cbmi",
        "    ≤ −4       1  100.0%  100.0%  100.0%",
    ]
    assert lines[1].split() == ["≤", "−4", "1", "100.0%", "100.0%", "100.0%"]
    assert lines[2].split() == ["−4", "to", "−2", "0", "–", "–", "–"]
    assert lines[-1].split() == ["all", "2", "100.0%", "100.0%", "100.0%"]


def test_the_command(run, tmp_path):
    shown = cbmi("prior-accuracy", run, "--device", "cpu").stdout.decode()
    assert shown.splitlines()[0].split() == ["CBMI", "tokens", "lm", "tm", "cbmi"]
    assert shown.splitlines()[-1].split()[0] == "all"
    files = ("--source", run.parent / "test.src", "--target", run.parent / "test.tgt")
    assert cbmi("prior-accuracy", run, *files, "--json", "-o", tmp_path / "a.json").returncode == 0
    assert json.loads((tmp_path / "a.json").read_text())["tokens"] > 50
    sources = (run.parent / "test.src").read_text().splitlines()
    targets = (run.parent / "test.tgt").read_text().splitlines()
    rows = [f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)]
    (tmp_path / "test.tsv").write_text("".join(rows))
    both = cbmi("prior-accuracy", run, "--source", tmp_path / "test.tsv", "--json")
    assert json.loads(both.stdout) == json.loads((tmp_path / "a.json").read_text())
    assert "--target: name the translations of" in refused("prior-accuracy", run, *files[:2])
    assert "name --source as well" in refused("prior-accuracy", run, *files[2:])
