"""What a run is: typed settings, read from YAML, checked before anything starts.

`read_config` turns a file and `key=value` overrides into `RunSettings`. The settings of an
objective stand beside the objective; here they are kept as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from cbmi.data_settings import DataSettings
from cbmi.errors import UserError
from cbmi.overrides import nearest, read_mapping, with_overrides
from cbmi.schema import (
    Flag,
    Fraction,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
    check,
)

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "width": 128,
        "feed_forward": 512,
        "heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
    },
    "small": {
        "width": 256,
        "feed_forward": 1024,
        "heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 4,
    },
    "medium": {
        "width": 512,
        "feed_forward": 2048,
        "heads": 8,
        "encoder_layers": 4,
        "decoder_layers": 4,
    },
    "base": {
        "width": 512,
        "feed_forward": 2048,
        "heads": 8,
        "encoder_layers": 6,
        "decoder_layers": 6,
    },
    "big": {
        "width": 1024,
        "feed_forward": 4096,
        "heads": 16,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "dropout": 0.3,
    },
}
RANK_TIMEOUT = 600.0  # seconds
BIG_PEAK_LR = 5e-4  # the default for `big`: the other sizes' 7e-4 is too high for it


def _known_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError(f"should be auto, cpu, cuda or cuda:N (the N-th GPU), not {name!r}")
    return name


class ModelSettings(Settings):
    # auto: by the size of the corpus, once it is known.
    preset: Literal["auto", "tiny", "small", "medium", "base", "big"] = "auto"
    width: Annotated[int, Field(ge=4, strict=True)] = 512
    feed_forward: PositiveInt = 2048
    heads: PositiveInt = 8
    encoder_layers: PositiveInt = 6
    decoder_layers: PositiveInt = 6  # the language model has as many
    # Where layers normalise: after adding to the residual stream, as the paper, or before each
    # sub-layer, which trains deep stacks more easily.
    norm: Literal["post", "pre"] = "post"
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.1
    activation_dropout: Fraction = 0.1

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if isinstance(values, str):
            values = {"preset": values}
        if not isinstance(values, dict):
            raise ValueError("should be a preset's name or a mapping")
        preset = values.get("preset", "auto")
        if preset == "auto":
            return values
        if not isinstance(preset, str) or preset not in PRESETS:
            known = ["auto", *PRESETS]
            raise ValueError(f"unknown preset '{preset}'{nearest(str(preset), known)}")
        return PRESETS[preset] | values

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelSettings:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} should be divisible by twice the heads ({self.heads})"
            )
        return self


class BatchSettings(Settings):
    tokens: PositiveInt = 4096  # pieces on either side, per device and micro-batch
    accumulate: PositiveInt = 1  # micro-batches per step


class OptimizerSettings(Settings):
    peak_lr: PositiveFloat = 7e-4
    warmup: NonNegativeInt = 4000  # steps
    initial_lr: NonNegativeFloat = 1e-7
    # After the warm-up. All but inverse-sqrt fall to zero at the end of each stage.
    schedule: Literal["inverse-sqrt", "linear", "cosine", "wsd"] = "inverse-sqrt"
    # The share of a stage over which they fall. None: all of it, or the last fifth for wsd.
    decay: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    clip: NonNegativeFloat = 5.0  # of the gradient's norm, each network on its own; 0: none
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    eps: PositiveFloat = 1e-8

    @model_validator(mode="after")
    def _decays_at_all(self) -> OptimizerSettings:
        given = "schedule" in self.model_fields_set
        if self.decay is not None and given and self.schedule == "inverse-sqrt":
            raise ValueError(
                "decay has no meaning with schedule: inverse-sqrt, which never ends; choose "
                "linear, cosine or wsd"
            )
        return self

    def decay_share(self) -> float:
        """The share of a stage over which the learning rate falls to zero."""
        if self.decay is not None:
            return self.decay
        return 0.2 if self.schedule == "wsd" else 1.0


class StageSettings(Settings):
    name: Name
    objective: dict[str, Any] = Field(default_factory=lambda: {"name": "ce"})
    # None: frozen if the objective needs one, else off.
    language_model: Literal["train", "joint", "frozen", "cached", "off"] | None = None
    cache_precision: Literal["float32", "float16"] = "float32"  # of language_model: cached
    steps: PositiveInt
    # Adam's state and the schedule start again; makes no difference in the first stage.
    restart_optimizer: Flag = True
    # Steps are made of groups of sentences of like length, each of at most so many tokens on either
    # side with its padding, as fairseq makes batches. None: 4096 if the objective compares groups,
    # else of sentences of any length.
    groups: PositiveInt | None = None

    @field_validator("language_model", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value

    @field_validator("objective", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ValueError(
                "should be an objective's name, or a mapping with 'name' and its settings"
            )
        return value


class ValidationSettings(Settings):
    every: PositiveInt = 5000  # steps
    beam: NonNegativeInt = 4  # 0: loss and perplexity only, and the lowest loss is the best
    length_penalty: NonNegativeFloat = 0.6
    patience: NonNegativeInt = (
        0  # a stage ends after this many validations without a new best; 0: never
    )

    def scored_by(self) -> str:
        """What decides which checkpoint is the best; scores of different kinds do not compare."""
        if self.beam == 0:
            return "loss"
        return f"BLEU, beam {self.beam}, length penalty {self.length_penalty}"


class CheckpointSettings(Settings):
    every: NonNegativeInt = 0  # steps; 0: as often as validation
    keep_last: PositiveInt = 5
    keep_best: PositiveInt = 1


class MemorySettings(Settings):
    """What can be traded for time if a GPU is too small."""

    # Keep only the layers' inputs; the backward pass computes the rest again.
    recompute_layers: Flag = False
    # Tokens whose logits are held at a time, and computed again in the backward pass; 0: all kept.
    head_tokens: NonNegativeInt = 0


class LogSettings(Settings):
    every: PositiveInt = 100  # steps
    # What gets the figures besides log.jsonl.
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _earlier_key(cls, values: Any) -> Any:
        """`tensorboard: true`, as run files had it."""
        if isinstance(values, dict) and isinstance(values.get("tensorboard"), bool):
            rest = {key: value for key, value in values.items() if key != "tensorboard"}
            return {"trackers": ["tensorboard"]} | rest if values["tensorboard"] else rest
        return values


class RunSettings(Settings):
    """One training run, whole."""

    seed: NonNegativeInt = 1
    output: str
    data: DataSettings
    model: ModelSettings = ModelSettings()
    stages: Annotated[tuple[StageSettings, ...], Field(min_length=1)]
    # A run directory whose vocabulary and best weights this run starts from.
    initialize: str | None = None
    batch: BatchSettings = BatchSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    # Decay per step of the moving average of the weights, which is the model that is validated,
    # tested and used; 0: none, the weights themselves are.
    ema: Fraction = 0.0
    label_smoothing: Fraction = 0.1
    # Strength of R-Drop: each batch is computed under two dropout masks, which should give the same
    # distributions. 0: none.
    r_drop: NonNegativeFloat = 0.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    # off: no CUDA graph and no fused kernels, PyTorch's own operations only.
    compile: Literal["auto", "off"] = "auto"
    device: Annotated[str, AfterValidator(_known_device)] = "auto"
    memory: MemorySettings = MemorySettings()
    parallel: Literal["ddp", "fsdp"] = "ddp"  # fsdp: weights and moments are sharded
    # Seconds after which a rank that is not heard from ends the run.
    rank_timeout: Annotated[float, Field(ge=60, strict=True)] = RANK_TIMEOUT
    # The key is `validate`; pydantic has a method of that name.
    validate_: Annotated[ValidationSettings, Field(alias="validate")] = ValidationSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="before")
    @classmethod
    def _rate_of_big(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        model = values.get("model")
        optimizer = values.get("optimizer") or {}
        preset = model.get("preset") if isinstance(model, dict) else model
        if preset == "big" and isinstance(optimizer, dict):
            return values | {"optimizer": {"peak_lr": BIG_PEAK_LR} | optimizer}
        return values

    @model_validator(mode="after")
    def _stages_fit_together(self) -> RunSettings:
        if self.parallel == "fsdp" and self.precision == "fp16":
            raise ValueError(
                "parallel: fsdp cannot be combined with the loss scaling of precision: fp16; "
                "use bf16"
            )
        rates = (self.model.dropout, self.model.attention_dropout, self.model.activation_dropout)
        if self.r_drop and not any(rates):
            raise ValueError("r_drop: without dropout in the model, both passes would be the same")
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"stages: two stages are named '{name}'")
        # Whether the run to start from has a language model is checked when it is read.
        has_language_model = self.initialize is not None
        for stage in self.stages:
            choice = stage.language_model
            if choice in ("frozen", "cached") and not has_language_model:
                raise ValueError(
                    f"stages.{stage.name}.language_model: '{choice}' needs a language model that "
                    "an earlier stage trained; give an earlier stage language_model: train"
                )
            if choice in ("train", "joint"):
                has_language_model = True
        return self

    def objective(self, name: str) -> dict[str, Any]:
        """What the last stage with this objective says of it; its name alone if there is none."""
        stage = self.last_stage_with(name)
        return dict(stage.objective) if stage else {"name": name}

    def last_stage_with(self, objective: str) -> StageSettings | None:
        """The last stage with the objective of this name, if there is one."""
        chosen = [stage for stage in self.stages if stage.objective["name"] == objective]
        return chosen[-1] if chosen else None

    def plain(self) -> dict[str, Any]:
        """The resolved settings as plain YAML types."""
        return self.model_dump(mode="json", by_alias=True)

    def given(self) -> dict[str, Any]:
        """As `plain`, but without defaults: what is missing is chosen to fit the corpus."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def read_config(path: str | Path, overrides: Iterable[str] = ()) -> RunSettings:
    """The run that a YAML file and `key=value` overrides describe."""
    return check(RunSettings, with_overrides(read_run_values(path), overrides), str(path))


def read_run_values(path: str | Path) -> dict[str, Any]:
    """The values of a run file, as written."""
    values = read_mapping(path, "run file")
    if "tasks" in values:
        raise UserError(f"{path}: this is an experiment file; use cbmi experiment {path}.")
    return values
