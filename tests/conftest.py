"""What the tests share: one thread a process (so that tests run side by side), and tiny tasks."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("cbmi", deadline=None, max_examples=60)
settings.load_profile("cbmi")


def pytest_collection_modifyitems(items: list) -> None:
    """The demo first: it is by far the longest, and the rest fits beside it."""
    items.sort(key=lambda item: "test_demo.py" not in item.nodeid or "end_to_end" not in item.nodeid)
