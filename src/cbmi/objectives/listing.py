"""All objectives as text, for people who want to choose one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticUndefined

from cbmi.errors import UserError
from cbmi.objectives.base import NEEDS, Objective
from cbmi.objectives.registry import TABLE, find, registered
from cbmi.objectives.weighting import Weighting


def list_objectives() -> str:
    """One paragraph per objective: name, summary, equation, settings, needs, presets, paper."""
    paragraphs = [paragraph(name, kind) for name, kind in TABLE.items()]
    for name in registered():
        try:
            paragraphs.append(paragraph(name, find(name, name)))
        except UserError as error:  # a mistake in another package must not hide the rest
            paragraphs.append(str(error))
    common = _settings_text({name: field.default for name, field in Weighting.model_fields.items()})
    paragraphs.append(f"Every objective that weights tokens (w ≠ 1) also has: {common}.")
    return "\n\n".join(paragraphs)


def paragraph(name: str, kind: type[Objective]) -> str:
    summary = (kind.__doc__ or "").strip().partition("\n")[0]
    lines = [f"{name}: {summary}" if summary else name]
    needs = kind.model_construct().needs()
    presets = [f"{pair}: {_settings_text(values)}" for pair, values in kind.presets.items()]
    details = {
        "equation": kind.equation,
        "settings": _settings_text(own_settings(kind)),
        "needs": ", ".join(NEEDS[need] for need in NEEDS if need in needs),
        "presets": "; ".join(presets),
        "paper": kind.paper,
    }
    lines += [f"  {title:<9} {text}" for title, text in details.items() if text]
    return "\n".join(lines)


def own_settings(kind: type[Objective]) -> dict[str, Any]:
    """Its settings with their defaults, without those that all weighting objectives have."""
    common = Weighting.model_fields if issubclass(kind, Weighting) else {}
    return {name: field.default for name, field in kind.model_fields.items() if name not in common}


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(_setting(name, value) for name, value in settings.items())


def _setting(name: str, default: Any) -> str:
    if default is PydanticUndefined:
        return f"{name} (required)"
    if default is None:
        return f"{name} none"
    if isinstance(default, tuple):
        default = list(default)
    return f"{name} {str(default).lower()}"
