"""What the tests share: one thread per process, so that tests run side by side; tiny tasks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
# For test_kernels.py; Triton reads it when it is imported, which transformers does.
os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from hypothesis import settings
from tasks import cbmi, write_run, write_task

from cbmi.locks import locked

torch.set_num_threads(1)
settings.register_profile("cbmi", deadline=None, max_examples=60)
settings.load_profile("cbmi")


def pytest_collection_modifyitems(items: list) -> None:
    """The demo first: it is by far the longest, and the rest fits beside it."""
    items.sort(
        key=lambda item: "test_demo.py" not in item.nodeid or "end_to_end" not in item.nodeid
    )


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Gives a folder that the first process to ask for it has filled, and all others find."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def folder_of(name: str, fill: Callable[[Path], None]) -> Path:
        folder = root / name
        made = root / f"{name}.made"
        with locked(root / f"{name}.lock"):
            if not made.exists():
                folder.mkdir(exist_ok=True)
                fill(folder)
                made.touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def small_run(tmp_path_factory) -> Path:
    """The folder of a tiny task with a run of both stages; it has not learnt much."""
    folder = tmp_path_factory.mktemp("small")
    write_task(folder)
    result = cbmi("train", write_run(folder))
    assert result.returncode == 0, result.stderr.decode()
    return folder


@pytest.fixture(scope="session")
def without_language_model(small_run, tmp_path_factory) -> Path:
    """A run of the same task that has trained a translator only."""
    folder = tmp_path_factory.mktemp("plain")
    stages = [{"name": "ce", "steps": 4}]
    result = cbmi("train", write_run(small_run, "plain.yaml", stages=stages, output=str(folder)))
    assert result.returncode == 0, result.stderr.decode()
    return folder
