"""A run directory of November 2026 is still read, used and resumed.

tests/fixtures/run-0.1 holds a corpus, a run that was stopped after step 6 of 10, what the code of
that day translated and scored with it, and the log of the same run trained without interruption.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tasks import cbmi as command
from tasks import read_log

import cbmi

pytestmark = pytest.mark.slow

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run-0.1"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy to work in; its paths are relative."""
    folder = tmp_path / "old"
    shutil.copytree(FIXTURE, folder, symlinks=True)
    monkeypatch.chdir(folder)
    return folder


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_it_translates_and_scores_as_it_did(old):
    model = cbmi.load("run", precision="fp32")
    assert model.translate(lines(old / "corpus/test.src")) == lines(old / "translations.txt")
    pairs = zip(lines(old / "corpus/test.src"), lines(old / "corpus/test.tgt"), strict=True)
    expected = [json.loads(line) for line in lines(old / "scores.jsonl")]
    for scored, record in zip(model.score(pairs), expected, strict=True):
        found = scored.to_json()
        assert found.keys() == record.keys()
        for key, value in record.items():
            if key in ("source", "target", "pieces"):
                assert found[key] == value
            else:
                assert found[key] == pytest.approx(value, abs=2e-5)


def test_it_is_resumed_where_it_stopped(old):
    """The last four steps have the losses of the run that was never stopped."""
    result = command("train", "run.yaml")
    assert result.returncode == 0, result.stderr.decode()
    assert "Resuming from run/checkpoints/step-6" in result.stderr.decode()
    expected = json.loads((old / "log-without-interruption.json").read_text())
    found = read_log(old / "run")
    assert [record["step"] for record in found] == [record["step"] for record in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["stage"] == theirs["stage"]
        numbers = {key: value for key, value in theirs.items() if key != "stage"}
        assert {key: ours[key] for key in numbers} == pytest.approx(numbers, rel=1e-4)
