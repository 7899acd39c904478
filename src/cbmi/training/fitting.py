"""What a run file leaves out, as measurements say: most of it by the number of pairs.

docs/guide.md says how it was measured. What a run file says always counts. A run that has begun
keeps what was chosen for it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from cbmi.config import PRESETS, ModelSettings, RunSettings
from cbmi.data.formats.entry import Languages
from cbmi.data.lines import count_some
from cbmi.data.text import is_plain, read_pairs
from cbmi.errors import UserError
from cbmi.progress import counted
from cbmi.schema import Settings, check
from cbmi.training.run import RunDirectory

T = TypeVar("T", bound=Settings)


@dataclass(frozen=True)
class Sizes:
    """What suits corpora of up to so many pairs."""

    pairs: float
    preset: str
    dropout: float
    pieces: int  # of the vocabulary, if the text has as many
    tokens: int  # of a batch


TABLE = (
    Sizes(20_000, "small", 0.3, 8000, 2048),
    Sizes(60_000, "medium", 0.3, 8000, 4096),
    Sizes(1_000_000, "medium", 0.1, 16000, 8192),
    Sizes(inf, "base", 0.1, 32000, 8192),
)
LARGEST = 1_000_000  # pairs that are counted: above, all is the same
BYTES_OF_PIECE = 4
WARMUP = 4000  # steps at most
WARMUP_EPOCHS = 4
VALIDATION = (50, 5000)  # steps: an epoch, within these bounds
# Whatever the corpus. `RunSettings` has the defaults of runs from before these were chosen.
EMA = 0.999
SCHEDULE = "linear"
NO_DECAY = "inverse-sqrt"
OF_THE_START = ("model", "model.dropout")  # of a run that starts from another


class Extent(NamedTuple):
    """How much text there is; of a large corpus, of its first pairs."""

    pairs: int
    pieces: int  # of the longer side, roughly


def sizes_for(pairs: int) -> Sizes:
    return next(sizes for sizes in TABLE if pairs <= sizes.pairs)


def epoch_steps(extent: Extent, tokens: int) -> int:
    """The steps of an epoch, roughly; `tokens` of a step. What is not counted is many."""
    if extent.pairs >= LARGEST:
        return VALIDATION[1]
    return max(1, extent.pieces // tokens)


def warmup_for(epoch: int, first_stage: int) -> int:
    """Steps; `first_stage`: its length."""
    return _rounded(min(WARMUP, WARMUP_EPOCHS * epoch, first_stage // 4))


def validation_for(epoch: int) -> int:
    low, high = VALIDATION
    return _rounded(max(low, min(high, epoch)))


def _rounded(value: int) -> int:
    """To two digits."""
    return int(float(f"{value:.2g}"))


class Fitted(NamedTuple):
    config: RunSettings
    chosen: list[str]  # the keys that the run file leaves out
    pairs: int


def fit_to_corpus(config: RunSettings, restart: bool = False) -> Fitted:
    """The settings, with what is left out filled in.

    A run that has begun keeps what was chosen for it, unless it is to `restart`. A run that starts
    from another has its model. Files that are missing are reported later.
    """
    run = RunDirectory(config.output)
    if run.begun and not restart:
        return Fitted(as_begun(config, run.known_config()), [], 0)
    files = config.data.train_files()
    if not all(Path(file).is_file() for file in files):
        return Fitted(config, [], 0)
    extent = extent_of([corpus.files for corpus in config.data.train], config.data.languages)
    sizes = sizes_for(extent.pairs)
    chosen = _left_out(config)
    values: dict[str, Any] = {
        "model": sizes.preset,
        "model.dropout": sizes.dropout,
        "data.vocabulary.size": sizes.pieces,
        "batch.tokens": sizes.tokens,
        "ema": EMA,
    }
    if config.initialize is not None:
        config = _with(config, model=_model_of_start(config))
        chosen = [key for key in chosen if key not in OF_THE_START]
    config = _filled(config, chosen, values)
    epoch = epoch_steps(extent, config.batch.tokens * config.batch.accumulate)
    values |= {
        "optimizer.warmup": warmup_for(epoch, config.stages[0].steps),
        "validate.every": validation_for(epoch),
    }
    config = _filled(config, chosen, values)
    decays = reach_decay(config) or config.optimizer.decay is not None
    values["optimizer.schedule"] = SCHEDULE if decays else NO_DECAY
    return Fitted(_filled(config, chosen, values), chosen, extent.pairs)


def as_begun(config: RunSettings, begun: RunSettings) -> RunSettings:
    """The settings, with what is left out as it was when the run began."""
    left_out = _left_out(config)
    if "model" in left_out:
        config = _with(config, model=_merged(begun.model, config.model))
    keys = [key for key in left_out if key not in ("model", "model.dropout")]
    if config.model.preset == begun.model.preset and "model.dropout" in left_out:
        keys.append("model.dropout")
    return _filled(config, keys, {key: _get(begun, key) for key in keys})


def with_choices(
    values: Mapping[str, Any], config: RunSettings, fitted: RunSettings
) -> dict[str, Any]:
    """A run file's values with what it leaves out, as in `fitted`; `config`: what they say."""
    result = copy.deepcopy(dict(values))
    plain = fitted.plain()
    for key in _left_out(config):
        if key.startswith("model"):
            result["model"] = plain["model"]
            continue
        *groups, name = key.split(".")
        place = result
        for group in groups:
            place[group] = dict(place.get(group) or {})
            place = place[group]
        place[name] = _get(fitted, key)
    return result


def reach_decay(config: RunSettings) -> bool:
    """Whether every stage gets as far as a learning rate that falls at its end."""
    return not config.validate_.patience and not any(
        ends_in_warmup(config, number) for number in range(len(config.stages))
    )


def ends_in_warmup(config: RunSettings, number: int) -> bool:
    """Whether a stage is over before the learning rate could fall."""
    stage = config.stages[number]
    warms_up = number == 0 or stage.restart_optimizer
    return warms_up and stage.steps <= config.optimizer.warmup


def choices_for(config: RunSettings, restart: bool = False) -> str | None:
    """What is chosen because the run file leaves it out, as a line for people."""
    if RunDirectory(config.output).begun and not restart:
        return _kept(config)
    fitted = fit_to_corpus(config, restart)
    if not fitted.chosen:
        return None
    is_large = fitted.pairs >= LARGEST
    pairs = "over a million pairs" if is_large else counted(fitted.pairs, "pair")
    return f"Chosen for {pairs}: {_listed(fitted.config, fitted.chosen)}."


def _kept(config: RunSettings) -> str | None:
    """What a run that has begun keeps although it would now be chosen otherwise."""
    begun = fit_to_corpus(config).config
    fitted = fit_to_corpus(config, restart=True)
    kept = [key for key in fitted.chosen if _get(begun, key) != _get(fitted.config, key)]
    return f"Kept as the run has it: {_listed(begun, kept)}." if kept else None


def _listed(config: RunSettings, keys: Iterable[str]) -> str:
    texts = []
    for key in keys:
        value = _get(config, key)
        texts.append(f"{key} {value}" if isinstance(value, str) else f"{key} {value:,}")
    return ", ".join(texts)


def _left_out(config: RunSettings) -> list[str]:
    """The keys that the run file leaves to us, of those in `_path_of`."""
    model = config.model
    keys = []
    if model.preset == "auto":
        keys.append("model")
    if model.preset != "tiny" and "dropout" not in model.model_fields_set:
        keys.append("model.dropout")  # what is very small needs no more
    if config.data.vocabulary.files() is None and config.initialize is None:
        keys += ["data.vocabulary.size"]
    keys += ["batch.tokens", "optimizer.warmup", "optimizer.schedule", "validate.every", "ema"]
    return [key for key in keys if key.startswith("model") or not _is_given(config, key)]


def _path_of(key: str) -> list[str]:
    """The names of the fields that lead to a key."""
    if key == "model":
        return ["model", "preset"]
    return ["validate_" if name == "validate" else name for name in key.split(".")]


def _is_given(config: RunSettings, key: str) -> bool:
    *groups, name = _path_of(key)
    settings: Any = config
    for group in groups:
        settings = getattr(settings, group)
    return name in settings.model_fields_set


def _get(config: RunSettings, key: str) -> Any:
    value: Any = config
    for name in _path_of(key):
        value = getattr(value, name)
    return value


def _filled(config: RunSettings, keys: Iterable[str], values: Mapping[str, Any]) -> RunSettings:
    """A copy with the values of these keys, where there is one."""
    for key in keys:
        if key == "model" and key in values:
            preset = PRESETS[values[key]] | {"preset": values[key]}
            config = _with(config, model=_merged(preset, config.model))
        elif key in values:
            config = _put(config, _path_of(key), values[key])
    return config


def _put(settings: T, path: Sequence[str], value: Any) -> T:
    name, *rest = path
    return _with(settings, **{name: _put(getattr(settings, name), rest, value) if rest else value})


def _merged(base: ModelSettings | Mapping[str, Any], given: ModelSettings) -> ModelSettings:
    """The sizes of `base`, except for what the run file gives."""
    known = base.model_dump() if isinstance(base, ModelSettings) else dict(base)
    own = {name: getattr(given, name) for name in given.model_fields_set - {"preset"}}
    return check(ModelSettings, known | own, "model")


def _model_of_start(config: RunSettings) -> ModelSettings:
    """That of the run which it starts from, where the run file leaves it out."""
    start = RunDirectory(config.initialize or "")
    if config.model.preset != "auto" or not start.config_file.exists():
        return config.model
    return _merged(start.config().model, config.model)


def _with(settings: T, **values: Any) -> T:
    """A copy with other values; `model_fields_set` stays what the user gave."""
    known = {name: getattr(settings, name) for name in type(settings).model_fields}
    given = set(settings.model_fields_set)
    return cast(T, type(settings).model_construct(_fields_set=given, **(known | values)))


def extent_of(corpora: Iterable[Sequence[str]], languages: Languages) -> Extent:
    """How much text several corpora have, each of two files or of one."""
    pairs = 0
    size = 0
    for files in corpora:
        marks = tuple(Path(file).stat().st_mtime_ns for file in files)
        corpus = _extent_of(tuple(files), languages, marks)
        pairs += corpus.pairs
        size += corpus.size
    return Extent(pairs, size // BYTES_OF_PIECE)


class _Counted(NamedTuple):
    pairs: int
    size: int  # bytes of the longer side


@lru_cache(maxsize=64)
def _extent_of(files: tuple[str, ...], languages: Languages, changed: tuple[int, ...]) -> _Counted:
    """Of a corpus whose files were last changed then."""
    if not is_plain(files[0], languages):
        return _read_extent(files, languages)
    counts = [count_some(file, LARGEST) for file in files]
    longest = max(size for _, size in counts)
    return _Counted(min(lines for lines, _ in counts), longest // (3 - len(files)))


def _read_extent(files: tuple[str, ...], languages: Languages) -> _Counted:
    pairs = 0
    sizes = [0, 0]
    try:
        for pair in islice(read_pairs(files, languages, Counter()), LARGEST):
            pairs += 1
            for side, text in enumerate(pair):
                sizes[side] += len(text.encode())
    except UserError:
        pass  # whoever reads it in earnest is told what is wrong
    return _Counted(pairs, max(sizes))
