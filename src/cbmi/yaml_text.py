"""YAML as people write it: read strictly, written so that it reads back the same."""

from __future__ import annotations

import re
from typing import Any

import yaml

from cbmi.errors import UserError


class _Loader(yaml.SafeLoader):
    """Reads scalars as people mean them and refuses a duplicate key.

    `no` is Norwegian, `7e-4` is a number, and `12:30` is text.
    """

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        # The keys are checked as they were written. `<<` is followed later, and may repeat them.
        node = super().compose_mapping_node(anchor)
        seen = []
        for key, _ in node.value:
            if key.value in seen:
                message = f"duplicate key '{key.value}'"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            seen.append(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back as it was."""


_BOOL_TAG = "tag:yaml.org,2002:bool"
_INT_TAG = "tag:yaml.org,2002:int"
_FLOAT_TAG = "tag:yaml.org,2002:float"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"


def _set_resolvers() -> None:
    """Replace PyYAML's rules for plain scalars that are truth values, numbers or dates."""
    replaced = (_BOOL_TAG, _INT_TAG, _FLOAT_TAG, _TIMESTAMP_TAG)
    kept = {}
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
        kept[first] = [(tag, pattern) for tag, pattern in resolvers if tag not in replaced]
    _Loader.yaml_implicit_resolvers = kept

    true_or_false = re.compile(r"^(?:true|True|false|False)$")
    # No leading zero: 010 is text, not the octal 8.
    integer = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$")
    # Unlike PyYAML's, this one takes 7e-4, without a point.
    number = re.compile(
        r"^[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf)$"
    )
    _Loader.add_implicit_resolver(_BOOL_TAG, true_or_false, "tTfF")
    _Loader.add_implicit_resolver(_INT_TAG, integer, "-+0123456789")
    _Loader.add_implicit_resolver(_FLOAT_TAG, number, "-+0123456789.")
    # Written by the same rules, text that looks like a number gets its quotes.
    _Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


_set_resolvers()


def dump_yaml(values: Any) -> str:
    """Plain values (dicts, lists, strings, numbers) as YAML, in the order given."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, where: str) -> Any:
    """The values of a YAML text; `where` is for errors."""
    try:
        return _unshared(yaml.load(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"{where}{place}: {problem}.") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(
            f"{where}: a value here is not of the kind that it looks like; put text in quotes."
        ) from None


def _unshared(value: Any) -> Any:
    """A copy in which every alias has its own value: changing one leaves the others alone."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return value
