"""Hugging Face's trainer beside cbmi's own: the program on a tiny run."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest
from tasks import ROOT, cbmi, environment, write_run, write_task

pytest.importorskip("transformers")

STAGE = {"name": "ce", "objective": "ce", "language_model": "train", "steps": 2}


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
