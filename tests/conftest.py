"""What the tests share: one thread a process (so that tests run side by side), and tiny tasks."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("cbmi", deadline=None, max_examples=60)
settings.load_profile("cbmi")
