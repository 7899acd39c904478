"""YAML as people write it: read strictly, written so that it reads back the same."""

from __future__ import annotations

import re
from typing import Any

import yaml

from cbmi.errors import UserError

LONGEST_TEXT = 4_000_000  # characters
MOST_VALUES = 200_000  # aliases followed


class _Loader(yaml.SafeLoader):
    """Reads scalars as people mean them and refuses a duplicate key.

    `no` is Norwegian, `7e-4` is a number, and `12:30` is text.
    """

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        # The keys are checked as they were written. `<<` is followed later, and may repeat them.
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                message = "a key should be a word"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            if key.value in seen:
                message = f"duplicate key '{key.value}'"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            seen.add(key.value)
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
    if len(text) > LONGEST_TEXT:
        raise UserError(f"{where}: this is over {LONGEST_TEXT:,} characters long.")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node) > MOST_VALUES:
            raise UserError(f"{where}: with its aliases, this has over {MOST_VALUES:,} values.")
        return _unshared(loader.construct_document(node))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"{where}{place}: {problem}.") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(
            f"{where}: a value here is not of the kind that it looks like; put text in quotes."
        ) from None


def _size(node: yaml.Node) -> int:
    """How many values a document has if every alias is followed, up to just above the most.

    A few lines of aliases of aliases can stand for more values than fit into memory.
    """
    sizes: dict[int, int] = {}
    waiting = [node]
    open_nodes: set[int] = set()  # above the current one
    while waiting:
        current = waiting[-1]
        if id(current) in sizes:
            waiting.pop()
            continue
        children: list[yaml.Node] = []
        if isinstance(current, yaml.SequenceNode):
            children = list(current.value)
        elif isinstance(current, yaml.MappingNode):
            children = [part for pair in current.value for part in pair]
        missing = [child for child in children if id(child) not in sizes]
        if missing and id(current) not in open_nodes:
            open_nodes.add(id(current))
            waiting += missing
            continue
        if missing:
            return MOST_VALUES + 1  # it contains itself
        sizes[id(current)] = min(1 + sum(sizes[id(child)] for child in children), MOST_VALUES + 1)
        waiting.pop()
    return sizes[id(node)]


def _unshared(value: Any) -> Any:
    """A copy in which every alias has its own value: changing one leaves the others alone."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return value
