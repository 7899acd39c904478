"""Hugging Face's trainer beside cbmi's own: the program on a tiny run."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from tasks import ROOT, cbmi, environment, write_run, write_task

pytest.importorskip("transformers")

from datasets import Dataset

from cbmi.training.batching.plan import EpochPlan

STAGE = {"name": "ce", "objective": "ce", "language_model": "train", "steps": 2}


def test_a_step_has_as_many_pairs_as_the_runs():
    """However much the lengths of the two sides differ."""
    spec = importlib.util.spec_from_file_location("study", ROOT / "studies" / "huggingface.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    random = np.random.default_rng(1)
    target = random.integers(2, 40, 3000)
    source = np.maximum(target + random.integers(-12, 13, 3000), 2)
    columns = {"input_ids": source, "labels": target}
    data = Dataset.from_dict({name: [[5] * n for n in own] for name, own in columns.items()})
    own = len(data) / len(EpochPlan(np.stack([source, target]), 2000, 1, 0))
    assert study.pairs_per_step(data, 2000) == pytest.approx(own, rel=0.03)


@pytest.mark.slow
def test_models_are_trained_and_tested_once(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    assert cbmi("train", write_run(tmp_path, stages=[STAGE])).returncode == 0
    files = [str(tmp_path / name) for name in ("valid.src", "valid.tgt")]
    train = [str(tmp_path / name) for name in ("train.src", "train.tgt")]
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "studies" / "huggingface.py"), str(tmp_path / "run")]
    command += [str(out), "--train", *train, "--test", *files]
    command += ["--steps", "3", "--save-every", "1"]

    def ask(*options: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*command, *options], env=environment(), capture_output=True, text=True
        )

    def results() -> list[list[str]]:
        with open(out / "results.csv", newline="", encoding="utf-8") as file:
            return list(csv.reader(file))

    # A checkpoint that was being written when the training was stopped is passed over.
    (out / "cbmi" / "checkpoint-2").mkdir(parents=True)
    done = ask()
    assert done.returncode == 0, done.stderr
    header, *rows = results()
    assert header == ["objective", "steps", "bleu", "chrf"]
    assert [row[:2] for row in rows] == [["ce", "3"], ["cbmi", "3"]]
    assert not (out / "cbmi").exists()
    for objective in ("ce", "cbmi"):
        assert len((out / f"{objective}.txt").read_text().splitlines()) == 4
    again = ask("--objectives", "cbmi")
    assert again.returncode == 0, again.stderr
    assert results() == [header, *rows]
