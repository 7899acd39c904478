"""What the tests share: one thread a process (so that tests run side by side), and tiny tasks."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings
from tasks import cbmi, write_run, write_task

torch.set_num_threads(1)
settings.register_profile("cbmi", deadline=None, max_examples=60)
settings.load_profile("cbmi")


# Modules whose tests share what takes long to make, the longest first: each is one worker's.
TOGETHER = ("end_to_end/test_demo.py", "experiments/test_experiment.py", "end_to_end/test_tasks.py")


@pytest.hookimpl(tryfirst=True)  # xdist looks at the marks in the same hook
def pytest_collection_modifyitems(items: list) -> None:
    """Tests that share a fixture go to one worker, and begin first: the rest fits beside them."""
    places = [next((n for n, name in enumerate(TOGETHER) if name in item.nodeid), len(TOGETHER)) for item in items]
    for item, place in zip(items, places, strict=True):
        if place < len(TOGETHER):
            item.add_marker(pytest.mark.xdist_group(TOGETHER[place]))
    items[:] = [item for _, item in sorted(zip(places, items, strict=True), key=lambda pair: pair[0])]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory) -> Path:
    """The folder of a tiny task with a run that has been through both stages; it has not learnt much."""
    folder = tmp_path_factory.mktemp("small")
    write_task(folder)
    result = cbmi("train", write_run(folder))
    assert result.returncode == 0, result.stderr.decode()
    return folder
