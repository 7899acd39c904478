"""From a job's files to its result."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch

from cbmi.errors import UserError
from cbmi.experiments import benchmark, results
from cbmi.training.records import read_log
from cbmi.training.world import device_name


def git(folder, *arguments):
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_of_our_own_repository(tmp_path, monkeypatch):
    """A package that is installed inside another repository has no commit."""
    package = tmp_path / ".venv" / "experiments"
    package.mkdir(parents=True)
    file = package / "results.py"
    file.write_text("")
    monkeypatch.setattr(results, "__file__", str(file))
    assert results._commit() is None  # no repository
    git(tmp_path, "init")
    (tmp_path / "theirs.py").write_text("")
    git(tmp_path, "add", "theirs.py")
    git(tmp_path, "commit", "-m", "theirs")
    assert results._commit() is None  # not in the repository
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "ours")
    head = (tmp_path / ".git" / "HEAD").read_text().removeprefix("ref: ").strip()
    commit = (tmp_path / ".git" / head).read_text()
    assert commit.startswith(results._commit())


def test_a_torn_last_line_of_the_log_is_skipped(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "stage": "a"}\n{"step": 2, "sta')
    assert read_log(log) == [{"step": 1, "stage": "a"}]
    log.write_text('{"step": 1\n{"step": 2}\n')
    with pytest.raises(UserError, match="line 1: this is not JSON"):
        read_log(log)


def test_a_device_has_one_name():
    cpu = torch.device("cpu")
    assert f", {device_name(cpu)}, " in benchmark.machine(cpu)
