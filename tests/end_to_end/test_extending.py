"""The code of docs/extending.md, run as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from batches import batch, on_two_ranks
from tasks import ROOT, cbmi, environment, write_run, write_task

from cbmi.objectives import NEEDS

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_task(tmp_path, train=40, valid=4)
    for name, code in zip(("my_objectives", "entropy"), blocks("python"), strict=True):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_the_example_trains(folder):
    """From the folder where its file lies, with the run file's stages (but fewer steps)."""
    (stages,) = [yaml.safe_load(text)["stages"] for text in blocks("yaml")]
    path = write_run(folder, stages=[stage | {"steps": 3} for stage in stages])
    command = [str(Path(sys.executable).parent / "cbmi"), "train", str(path)]
    result = subprocess.run(command, capture_output=True, env=environment())
    assert result.returncode == 0, result.stderr.decode()
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    weighted = [
        record for record in records if record["stage"] == "adapt" and "weight_mean" in record
    ]
    assert len(weighted) == 3
    assert all(record["weight_mean"] == pytest.approx(1, abs=0.02) for record in weighted)
    assert all(record["weight_std"] > 0 for record in weighted)


def test_the_example_says_what_it_computes(folder):
    from my_objectives import Surprise

    case = batch((3, 5))
    weights = case.losses(Surprise(power=2.0))[1]
    guessed = torch.softmax(case.lm.hidden @ case.lm.weight.T, dim=1)[torch.arange(8), case.gold]
    assert torch.allclose(weights, (1 - guessed) ** 2 / ((1 - guessed) ** 2).mean())

    def half(number, ranks):
        mine = case.rows(
            torch.arange(3) if number == 0 else torch.arange(3, 8), ((3,), (5,))[number]
        )
        return mine.losses(Surprise(power=2.0), ranks=ranks)[1]

    assert torch.allclose(torch.cat(on_two_ranks(half)), weights)


def test_the_example_is_short(folder):
    code = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(code) <= 20


def test_the_example_of_a_term(folder):
    from entropy import Entropy

    case = batch()
    log_p = torch.log_softmax(case.hidden @ case.weight.T, dim=1)
    term = 0.1 * (log_p.exp() * log_p).sum(1)
    plain = case.losses(Entropy(strength=0.0))[0]
    assert torch.allclose(case.losses(Entropy(), chunk=3)[0], plain + term)
    path = write_run(folder, stages=[{"name": "term", "objective": "entropy:Entropy", "steps": 2}])
    assert cbmi("train", path).returncode == 0


def test_the_entry_point_is_that_of_the_package():
    (toml,) = blocks("toml")
    assert '"cbmi.objectives"' in toml
    assert "my_objectives:Surprise" in toml


def test_the_page_names_every_need():
    assert all(f'"{need}"' in PAGE for need in NEEDS)
