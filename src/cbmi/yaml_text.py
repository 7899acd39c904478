"""YAML as people write it: read strictly, written so that it reads back the same."""

from __future__ import annotations

import re
from typing import Any

import yaml

from cbmi.errors import UserError


class _Loader(yaml.SafeLoader):
    """Scalars as people mean them (`no` is Norwegian, `7e-4` is a number, `12:30` is none), and no key twice."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)  # as it was written; `<<` has not been followed yet
        keys = [key for key, _ in node.value]
        for i, key in enumerate(keys):
            if any(key.value == other.value for other in keys[:i]):
                message = f"key '{key.value}' stands there twice"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
        return node


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back as it was."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":int", ":float", ":timestamp"))
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), "tTfF")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), "-+0123456789")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf)$"),
    "-+0123456789.",
)


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def _unshared(value: Any) -> Any:
    """What an anchor and its aliases stand for, each on its own: a change of one is none of the others."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


def dump_yaml(values: Any) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, where: str) -> Any:
    try:
        return _unshared(yaml.load(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{place}: {getattr(error, 'problem', None) or 'not YAML'}.") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{where}: a value here is not of the kind that it looks like; put text in quotes.") from None
