"""Run files as plain values, and `key=value` overrides of them."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cbmi.errors import UserError
from cbmi.yaml_text import parse_yaml

SHORTHANDS = {"model": "preset", "objective": "name"}  # `model: small` is short for {preset: small}


def nearest(name: str, names: Iterable[str]) -> str:
    """A remark that names the right word for a misspelt one, e.g. " (did you mean 'steps'?)"."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(known)})"


def read_mapping(path: str | Path, kind: str) -> dict[str, Any]:
    """The values of a YAML file; `kind` is for errors."""
    try:
        if Path(path).is_dir():
            raise UserError(f"{path}: this is a folder; the {kind} is a .yaml file.")
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read the {kind}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot read the {kind}: not valid UTF-8.") from None
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path}: the {kind} should be a mapping of keys to values.")
    return values


def with_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of nested values with `key=value` overrides put in."""
    changed = copy.deepcopy(dict(values))
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise UserError(
                f"'{override}': an override has the form key=value, e.g. optimizer.peak_lr=5e-4."
            )
        value = parse_yaml(text, f"'{override}'")
        _put(changed, path, value, override)
    return changed


def with_changes(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested values with some replaced, by dotted keys: {"optimizer.peak_lr": 5e-4}."""
    changed = copy.deepcopy(dict(values))
    for path, value in changes.items():
        _put(changed, path, copy.deepcopy(value), path)
    return changed


def _put(values: dict[str, Any], path: str, value: Any, override: str) -> None:
    """Put a value at `a.b.c`; list items go by index or `name`. `override` is for errors."""
    *parents, last = path.split(".")
    place: Any = values
    for depth, key in enumerate(parents):
        if isinstance(place, list):
            place = place[_item(place, key, override)]
        else:
            if key in SHORTHANDS and isinstance(place.get(key), str):
                place[key] = {SHORTHANDS[key]: place[key]}
            place = place.setdefault(key, {})
        if not isinstance(place, dict | list):
            where = ".".join(parents[: depth + 1])
            raise UserError(f"'{override}': {where} has no settings below it.")
    if isinstance(place, list):
        place[_item(place, last, override)] = value
    else:
        place[last] = value


def _item(items: list[Any], key: str, override: str) -> int:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if key in names:
        return names.index(key)
    if key.isdecimal() and int(key) < len(items):
        return int(key)
    known = [name for name in names if name] + [str(number) for number in range(len(items))]
    raise UserError(f"'{override}': there is no item '{key}'{nearest(key, known)}.")
