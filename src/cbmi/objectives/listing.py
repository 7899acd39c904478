"""All objectives as text, for people who want to choose one."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticUndefined

from cbmi.errors import UserError
from cbmi.objectives.base import NEEDS, Objective
from cbmi.objectives.registry import TABLE, find, registered
from cbmi.objectives.weighting import Weighting


def listing() -> str:
    """A paragraph an objective: key, what it does, equation, settings with defaults, needs, presets, paper."""
    paragraphs = [paragraph(name, kind) for name, kind in TABLE.items()]
    for name in registered():
        try:
            paragraphs.append(paragraph(name, find(name, name)))
        except UserError as error:  # somebody else's mistake should not hide the others
            paragraphs.append(str(error))
    common = ", ".join(_setting(name, field.default) for name, field in Weighting.model_fields.items())
    paragraphs.append(f"Every objective that weighs tokens (w ≠ 1) also has: {common}.")
    return "\n\n".join(paragraphs)


def paragraph(name: str, kind: type[Objective]) -> str:
    summary = (kind.__doc__ or "").strip().partition("\n")[0]
    lines = [f"{name}: {summary}" if summary else name]
    facts = {
        "equation": kind.equation,
        "settings": ", ".join(settings(kind)),
        "needs": ", ".join(needs(kind)),
        "presets": "; ".join(
            f"{pair}: {', '.join(_setting(*item) for item in values.items())}"
            for pair, values in kind.presets.items()
        ),
        "paper": kind.paper,
    }
    lines += [f"  {title:<9} {text}" for title, text in facts.items() if text]
    return "\n".join(lines)


def settings(kind: type[Objective]) -> list[str]:
    """Its own settings with their defaults, without those that all weighting objectives have."""
    common = Weighting.model_fields if issubclass(kind, Weighting) else {}
    return [_setting(name, field.default) for name, field in kind.model_fields.items() if name not in common]


def needs(kind: type[Objective]) -> list[str]:
    return [NEEDS[need] for need in NEEDS if need in kind.model_construct().needs]


def _setting(name: str, default: Any) -> str:
    if default is PydanticUndefined:
        return f"{name} (required)"
    if isinstance(default, tuple):
        default = list(default)
    return f"{name} {'none' if default is None else str(default).lower()}"
