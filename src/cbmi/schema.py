"""How settings are written and checked: types of values, and mistakes as sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from cbmi.errors import UserError
from cbmi.overrides import nearest

T = TypeVar("T", bound=BaseModel)
Fraction = Annotated[float, Field(ge=0, lt=1, strict=True)]
NonNegativeFloat = Annotated[float, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, strict=True)]
PositiveInt = Annotated[int, Field(gt=0, lt=1 << 31, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


def _two(values: Any) -> Any:
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise ValueError(f"should be two numbers, [low, high], not {values!r}")
    return values


def _in_order(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not low <= high:
        raise ValueError(f"the first bound {low} should not be above the second, {high}")
    return bounds


Bounds = Annotated[
    tuple[NonNegativeFloat, NonNegativeFloat], BeforeValidator(_two), AfterValidator(_in_order)
]
FloatOrInfinity = Annotated[float, Field(strict=True, allow_inf_nan=True)]
Interval = Annotated[
    tuple[FloatOrInfinity, FloatOrInfinity], BeforeValidator(_two), AfterValidator(_in_order)
]


def _fit_for_files(name: Any) -> Any:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*", name):
        raise ValueError(
            f"{name!r} is not a name: use letters, digits and _ . = + -, and begin with a letter, "
            "a digit or _"
        )
    return name


Name = Annotated[str, BeforeValidator(_fit_for_files)]  # of what has a file or folder of its own


class Settings(BaseModel):
    """A frozen group of settings. An unknown key is an error that names the nearest right one."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            names = [field.alias or name for name, field in cls.model_fields.items()]
            for key in values:
                if key not in names:
                    raise ValueError(f"unknown key '{key}'{nearest(str(key), names)}")
        return values


def check(kind: type[T], values: Any, where: str) -> T:
    """Build settings, or say in one sentence what is wrong with the values."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {sentence_of(error, values)}.") from None


def sentence_of(error: ValidationError, values: Any = None) -> str:
    """The first of its complaints, without a full stop.

    `values` are what it complains of: items of lists that have a name are called by it.
    """
    first = error.errors(include_url=False)[0]
    kind = first["type"]
    place = ".".join(_place(first["loc"], values))
    prefix = f"{place}: " if place else ""
    message = first["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return f"{prefix}this key is missing"
    if kind == "too_short":
        return f"{prefix}there should be at least {first['ctx']['min_length']}"
    if kind == "too_long":
        most = first["ctx"]["max_length"]
        return f"{prefix}there should be at most {most}, not {first['ctx']['actual_length']}"
    if kind == "tuple_type":
        return f"{prefix}should be a list, not {first['input']!r}"
    if kind == "value_error":
        return prefix + message
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        message = "should be a mapping of keys to values"
    value = repr(first["input"])
    if len(value) >= 60:
        value = value[:57] + "..."
    return f"{prefix}{message[0].lower()}{message[1:]}, not {value}"


def _place(location: Iterable[str | int], values: Any) -> list[str]:
    """The keys that lead to a value, as a user would write them."""
    internal = ("tuple[str, ...]", "[key]")  # pydantic's names of levels that no file has
    keys = []
    for key in location:
        if key in internal:
            continue
        try:
            values = values[key]
        except (KeyError, IndexError, TypeError):
            values = None
        name = values.get("name") if isinstance(key, int) and isinstance(values, dict) else None
        keys.append(name if isinstance(name, str) else str(key))
    return keys
