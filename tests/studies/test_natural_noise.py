"""Telling human from machine translations: the table, and the whole program on a tiny run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tasks import ROOT, cbmi, environment, write_run, write_task

STAGE = {"name": "ce", "objective": "ce", "language_model": "train", "steps": 2}


def ask(run, kinds, out):
    command = [sys.executable, str(ROOT / "studies" / "natural_noise.py")]
    command += [str(run), str(kinds), str(out), "--device", "cpu"]
    return subprocess.run(command, env=environment(), capture_output=True, text=True)


@pytest.mark.slow
def test_scores_are_compared_within_collections(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    # Every other pair is a machine translation: too long, so that the lengths give it away.
    targets = (tmp_path / "train.tgt").read_text().splitlines()
    kinds = []
    for number, target in enumerate(targets):
        is_human = number % 2 == 0
        collection = ("a", "b", "human-only")[number % 3]
        if collection == "human-only" and not is_human:
            collection = "a"
        kinds.append(f"{'ht' if is_human else 'mt'}\t{collection}/page-{number}.md")
        if not is_human:
            targets[number] = " ".join([target] * 4)
    (tmp_path / "train.tgt").write_text("".join(line + "\n" for line in targets))
    kinds_file = tmp_path / "kinds.txt"
    kinds_file.write_text("".join(line + "\n" for line in kinds))
    assert cbmi("train", write_run(tmp_path, stages=[STAGE])).returncode == 0
    result = ask(tmp_path / "run", kinds_file, tmp_path / "out")
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "out" / "natural_noise.json").read_text())
    assert list(found) == ["(all)", "a", "b"]
    assert (found["(all)"]["ht"], found["(all)"]["mt"]) == (20, 20)
    assert found["(all)"]["length ratio"] > 0.8
    assert 0.2 < found["(all)"]["random"] < 0.8
    assert f"| (all) | 20 | 20 | {found['(all)']['CBMI']:.3f} |" in result.stdout
    kinds_file.write_text("".join(line + "\n" for line in kinds[:-1]))
    refused = ask(tmp_path / "run", kinds_file, tmp_path / "out")
    assert refused.returncode == 2
    assert "it has 39 lines, but the training text" in refused.stderr
    kinds_file.write_text("ht\tpage\nhuman\tpage\n")
    assert "kinds.txt:2: should be ht or mt" in ask(tmp_path / "run", kinds_file, "x").stderr
