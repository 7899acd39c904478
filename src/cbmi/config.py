"""What a run is: typed settings, read from YAML, checked before anything starts.

`read_run_file` turns a file and `key=value` overrides into a `RunConfig`; `differences` compares two of them.
Settings of objectives stand beside the objectives; here they are kept as they were written.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from cbmi.errors import UserError
from cbmi.yaml_text import parse_yaml

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(width=128, feed_forward=512, heads=4, encoder_layers=2, decoder_layers=2),
    "small": dict(width=256, feed_forward=1024, heads=4, encoder_layers=4, decoder_layers=4),
    "base": dict(width=512, feed_forward=2048, heads=8, encoder_layers=6, decoder_layers=6),
    "big": dict(width=1024, feed_forward=4096, heads=16, encoder_layers=6, decoder_layers=6, dropout=0.3),
}
BIG_PEAK_LR = 5e-4  # where nothing is said: what other sizes learn with is too fast for the big one

T = TypeVar("T", bound=BaseModel)
Share = Annotated[float, Field(ge=0, lt=1, strict=True)]
NotNegative = Annotated[float, Field(ge=0, strict=True)]
AboveZero = Annotated[float, Field(gt=0, strict=True)]
Positive = Annotated[int, Field(gt=0, lt=1 << 31, strict=True)]
Count = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


def _two(values: Any) -> Any:
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise ValueError(f"should be two numbers, [low, high], not {values!r}")
    return values


def _in_order(bounds: tuple[float, float]) -> tuple[float, float]:
    if not bounds[0] <= bounds[1]:
        raise ValueError(f"the first bound {bounds[0]} should not be above the second, {bounds[1]}")
    return bounds


Bounds = Annotated[tuple[NotNegative, NotNegative], BeforeValidator(_two), AfterValidator(_in_order)]
Infinite = Annotated[float, Field(strict=True, allow_inf_nan=True)]
Interval = Annotated[tuple[Infinite, Infinite], BeforeValidator(_two), AfterValidator(_in_order)]


def _fit_for_files(name: Any) -> Any:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*", name):
        raise ValueError(f"{name!r} is no name: use letters, digits, _ . = + -, and begin with none of . = + -")
    return name


Name = Annotated[str, BeforeValidator(_fit_for_files)]  # of what has a file or folder of its own


def _one_or_two(value: Any) -> Any:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list | tuple) or len(value) not in (1, 2):
        raise ValueError("should name two aligned files, source and target, or one .tsv")
    return value


Files = Annotated[tuple[str, ...], BeforeValidator(_one_or_two)]


def nearest(name: str, names: Iterable[str]) -> str:
    """A remark that names the right word for a misspelt one, e.g. " (did you mean 'steps'?)"."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(names)})"


class Settings(BaseModel):
    """A frozen group of settings. An unknown key is an error that names the nearest right one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        names = [field.alias or name for name, field in cls.model_fields.items()]
        for key in values if isinstance(values, dict) else ():
            if key not in names:
                raise ValueError(f"unknown key '{key}'{nearest(str(key), names)}")
        return values


class Vocabulary(Settings):
    size: Annotated[int, Field(ge=300, lt=1 << 31, strict=True)] = 32000  # 256 byte pieces and 4 special ones too
    shared: Flag = True


class Data(Settings):
    source: Name
    target: Name
    train: Files  # two aligned files, or one .tsv; .gz, .xz and .zst are read as they are
    valid: Files | None = None
    test: dict[Name, Files] = {}
    vocabulary: Vocabulary = Vocabulary()
    max_length: Positive = 256  # pieces per side, end of sentence included; longer training pairs are left out
    drop_copies: Flag = False  # leave out training pairs whose target is the same as their source


class Model(Settings):
    preset: Literal["tiny", "small", "base", "big"] = "base"
    width: Annotated[int, Field(ge=4, strict=True)]
    feed_forward: Positive
    heads: Positive
    encoder_layers: Positive
    decoder_layers: Positive  # the language model has as many
    dropout: Share = 0.1
    attention_dropout: Share = 0.1
    activation_dropout: Share = 0.1

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        values = {"preset": values} if isinstance(values, str) else values
        if not isinstance(values, dict):
            raise ValueError("should be a preset's name or a mapping")
        preset = values.get("preset", "base")
        if not isinstance(preset, str) or preset not in PRESETS:
            raise ValueError(f"unknown preset '{preset}'{nearest(str(preset), PRESETS)}")
        return PRESETS[preset] | values

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Model:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} should be divisible by twice the heads ({self.heads})")
        return self


class Batch(Settings):
    tokens: Positive = 4096  # pieces on either side, for one device and one accumulated part of the step
    accumulate: Positive = 1


class Optimizer(Settings):
    peak_lr: AboveZero = 7e-4
    warmup: Count = 4000
    initial_lr: NotNegative = 1e-7
    clip: NotNegative = 5.0  # of the gradient's norm, each network on its own; 0: none
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: AboveZero = 1e-8


class Stage(Settings):
    name: Name
    objective: dict[str, Any] = {"name": "ce"}
    language_model: Literal["train", "joint", "frozen", "cached", "off"] | None = None  # frozen if needed, else off
    cache_precision: Literal["float32", "float16"] = "float32"  # of the numbers of language_model: cached
    steps: Positive
    restart_optimizer: Flag = True  # Adam's state and the schedule begin anew; no matter in the first stage

    @field_validator("language_model", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value

    @field_validator("objective", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        value = {"name": value} if isinstance(value, str) else value
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ValueError("should be an objective's name, or a mapping with 'name' and its settings")
        return value


class Validate(Settings):
    every: Positive = 5000
    beam: Count = 4  # 0: loss and perplexity only, and the lowest loss is the best
    length_penalty: NotNegative = 0.6
    patience: Count = 0  # a stage ends after so many validations without a new best; 0: never


class Checkpoints(Settings):
    every: Count = 0  # steps; 0: as often as validation
    keep_last: Positive = 5
    keep_best: Positive = 1


class Memory(Settings):
    """What may be traded for time where a GPU is too small."""

    recompute_layers: Flag = False  # keep only the layers' inputs; the backward pass computes the rest anew
    head_tokens: Count = 0  # tokens whose logits are made at a time, and made anew in the backward pass; 0: all kept


class Log(Settings):
    every: Positive = 100
    tensorboard: Flag = False


class RunConfig(Settings):
    """One training run, whole."""

    seed: Count = 1
    output: str
    data: Data
    model: Model
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    initialize: str | None = None  # a run directory whose vocabulary and best weights this run starts from
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    label_smoothing: Share = 0.1
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: Literal["auto", "off"] = "auto"  # off: every step computed as it comes, by PyTorch's own operations
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    memory: Memory = Memory()
    parallel: Literal["ddp", "fsdp"] = "ddp"  # fsdp: weights and moments are spread over the ranks
    validate_: Annotated[Validate, Field(alias="validate")] = Validate()  # pydantic has a method of that name
    checkpoints: Checkpoints = Checkpoints()
    log: Log = Log()

    @model_validator(mode="before")
    @classmethod
    def _rate_of_big(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        model, optimizer = values.get("model"), values.get("optimizer") or {}
        preset = model.get("preset") if isinstance(model, dict) else model
        if preset == "big" and isinstance(optimizer, dict):
            return values | {"optimizer": {"peak_lr": BIG_PEAK_LR} | optimizer}
        return values

    @model_validator(mode="after")
    def _stages_fit_together(self) -> RunConfig:
        if self.parallel == "fsdp" and self.precision == "fp16":
            raise ValueError("parallel: fsdp does not go with the loss scaling of precision: fp16; use bf16")
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"stages: two stages are named '{name}'")
        known = self.initialize is not None  # whether that run has a language model is seen when it is read
        for stage in self.stages:
            part = stage.language_model
            if part in ("frozen", "cached") and not known:
                raise ValueError(
                    f"stages.{stage.name}.language_model: '{part}' needs a language model that an earlier "
                    "stage trained; give an earlier stage language_model: train"
                )
            known = known or part in ("train", "joint")
        return self

    def objective(self, name: str) -> dict[str, Any]:
        """The settings that the last stage with this objective gives it; none where there is no such stage."""
        chosen = [stage.objective for stage in self.stages if stage.objective["name"] == name]
        return dict(chosen[-1]) if chosen else {"name": name}

    def plain(self) -> dict[str, Any]:
        """The resolved settings as plain YAML types."""
        return self.model_dump(mode="json", by_alias=True)


def read_run_file(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """The run that a YAML file and `key=value` overrides describe."""
    values = read_mapping(path, "run file")
    if "tasks" in values:
        raise UserError(f"{path}: this is an experiment file; say cbmi experiment {path}.")
    return check(RunConfig, with_overrides(values, overrides), str(path))


def read_mapping(path: str | Path, kind: str) -> dict[str, Any]:
    """The values of a YAML file; `kind` is for errors."""
    try:
        if Path(path).is_dir():
            raise UserError(f"{path}: this is a folder; the {kind} is a .yaml file.")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not valid UTF-8"
        raise UserError(f"{path}: cannot read the {kind}: {reason}.") from None
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path}: the {kind} should be a mapping of keys to values.")
    return values


def with_overrides(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Put `key=value` overrides into nested values."""
    for override in overrides:
        _override(values, override)
    return values


def _override(values: dict[str, Any], override: str) -> None:
    """Put one `a.b.c=value` into nested values; list items go by index or by their `name`."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise UserError(f"'{override}': an override has the form key=value, e.g. optimizer.peak_lr=5e-4.")
    *parents, last = path.split(".")
    place: Any = values
    for depth, key in enumerate(parents):
        shorthand = {"model": "preset", "objective": "name"}.get(key)
        if isinstance(place, list):
            place = place[_item(place, key, override)]
        else:
            if shorthand and isinstance(place.get(key), str):  # `model: small` is short for {preset: small}
                place[key] = {shorthand: place[key]}
            place = place.setdefault(key, {})
        if not isinstance(place, dict | list):
            raise UserError(f"'{override}': {'.'.join(parents[: depth + 1])} has no settings below it.")
    value = parse_yaml(text, f"'{override}'")
    if isinstance(place, list):
        place[_item(place, last, override)] = value
    else:
        place[last] = value


def _item(items: list[Any], key: str, override: str) -> int:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if key in names:
        return names.index(key)
    if key.isdigit() and int(key) < len(items):
        return int(key)
    known = [name for name in names if name] + [str(i) for i in range(len(items))]
    raise UserError(f"'{override}': there is no item '{key}'{nearest(key, known)}.")


def check(kind: type[T], values: Any, where: str) -> T:
    """Build settings, or say in one sentence what is wrong with the values."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {sentence_of(error)}.") from None


def sentence_of(error: ValidationError) -> str:
    """The first of its complaints, without a full stop."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("tuple[str, ...]", "[key]"))
    place = f"{place}: " if place else ""
    if first["type"] == "missing":
        return f"{place}this key is missing"
    if first["type"] == "too_short":
        return f"{place}there should be at least {first['ctx']['min_length']}"
    if first["type"] == "too_long":
        return f"{place}there should be at most {first['ctx']['max_length']}, not {first['ctx']['actual_length']}"
    if first["type"] == "tuple_type":
        return f"{place}should be a list, not {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "Should be a mapping of keys to values"
    if first["type"] == "value_error":
        return place + message
    value = repr(first["input"])
    return f"{place}{message[0].lower()}{message[1:]}, not {value if len(value) < 60 else value[:57] + '...'}"


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """What differs between two plain settings, a line each: `batch.tokens: 4096, now 2048`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(old) + [key for key in new if key not in old]
        pairs = [(f"{path}.{key}" if path else key, old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{path}.{_label(i, a, b)}", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return [] if old == new else [f"{path}: {_as_yaml(old)}, now {_as_yaml(new)}"]
    return [line for name, a, b in pairs for line in differences(a, b, name)]


def _as_yaml(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _label(number: int, old: Any, new: Any) -> str | int:
    """What an item of a list is called: by its name, where it has kept it."""
    named = isinstance(old, dict) and isinstance(new, dict) and old.get("name") == new.get("name")
    return (old.get("name") if named else None) or number
