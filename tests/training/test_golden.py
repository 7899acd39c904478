"""A short run whose losses must not change unless the change says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tasks import cbmi, write_run, write_task

GOLDEN = Path(__file__).with_name("golden.json")


def test_the_trajectory_is_the_committed_one(tmp_path):
    """Two stages with dropout: losses, gradient norms, spread of the weights.

    To accept a change, replace golden.json by what this test prints.
    """
    write_task(tmp_path, train=120, valid=5)
    assert cbmi("train", write_run(tmp_path)).returncode == 0
    records = [
        json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    ]
    keys = ("step", "loss", "grad_norm", "lm_ppl", "weight_std", "valid_loss")
    found = [{key: record[key] for key in keys if key in record} for record in records]
    print(json.dumps(found))
    expected = json.loads(GOLDEN.read_text())
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
