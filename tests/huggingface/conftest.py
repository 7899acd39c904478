"""What one training leaves behind does not reach the next."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """TrainingArguments with bf16 or torch_compile set variables that later trainers read."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
