"""What differs between two run files, as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """A setting that differs between two run files."""

    path: str  # such as "optimizer.peak_lr", or "stages.adapt.steps"
    old: Any
    new: Any

    def within(self, *keys: str) -> bool:
        """Whether it is one of these keys, or lies below one of them."""
        return any(self.path == key or self.path.startswith(f"{key}.") for key in keys)

    def __str__(self) -> str:
        return f"{self.path}: {_as_yaml(self.old)}, now {_as_yaml(self.new)}"


def changes_between(old: Any, new: Any, path: str = "") -> list[Change]:
    """What differs between two groups of plain settings, key by key."""
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            pairs.append((str(key), old.get(key), new.get(key)))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            pairs.append((_label(number, before, after), before, after))
    else:
        return [] if old == new else [Change(path, old, new)]
    changes = []
    for key, before, after in pairs:
        changes += changes_between(before, after, f"{path}.{key}" if path else key)
    return changes


def describe_changes(changes: Sequence[Change], most: int | None = None) -> str:
    """The changes in a sentence; only the first `most` of them, if it is given."""
    return "; ".join(str(change) for change in changes[:most])


def _as_yaml(value: Any) -> str:
    """A value in a sentence; of a list of named things, such as stages, the names."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list) and all(isinstance(one, dict) and "name" in one for one in value):
        return f"[{', '.join(str(one['name']) for one in value)}]"
    return str(value)


def _label(number: int, old: Any, new: Any) -> str:
    """What an item of a list is called: by its name, if it has kept it."""
    if isinstance(old, dict) and isinstance(new, dict) and old.get("name") == new.get("name"):
        return str(old.get("name") or number)
    return str(number)
