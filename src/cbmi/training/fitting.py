"""What a run file leaves out, as measurements say: most of it by the number of pairs.

docs/guide.md says how it was measured. What a run file says always counts. A run that has begun
keeps what was chosen for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
from cbmi.schema import Settings
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
    choices: list[str]  # as key value, of what the run file leaves out
    pairs: int


def fit_to_corpus(config: RunSettings, restart: bool = False) -> Fitted:
    """The settings, with what is left out filled in.

    A run that starts from another has its model. Files that are missing are reported later.
    `restart`: the run starts from scratch, whatever it has done.
    """
    run = RunDirectory(config.output)
    if run.begun and not restart:
        return Fitted(_as_begun(config, run.known_config()), [], 0)
    choices: list[str] = []
    files = config.data.train_files()
    if not all(Path(file).is_file() for file in files):
        return Fitted(config, choices, 0)
    corpora = [corpus.files for corpus in config.data.train]
    extent = extent_of(corpora, config.data.languages)
    sizes = sizes_for(extent.pairs)
    model = _fitted_model(config, sizes, choices)
    vocabulary = config.data.vocabulary
    if vocabulary.files() is None and config.initialize is None:
        vocabulary = _filled(vocabulary, "data.vocabulary", choices, size=sizes.pieces)
    batch = _filled(config.batch, "batch", choices, tokens=sizes.tokens)
    epoch = epoch_steps(extent, batch.tokens * batch.accumulate)
    first_stage = config.stages[0].steps
    optimizer = _filled(
        config.optimizer, "optimizer", choices, warmup=warmup_for(epoch, first_stage)
    )
    schedule = SCHEDULE if _can_decay(config, optimizer.warmup) else NO_DECAY
    changes = {
        "model": model,
        "data": _with(config.data, vocabulary=vocabulary),
        "batch": batch,
        "optimizer": _filled(optimizer, "optimizer", choices, schedule=schedule),
        "validate_": _filled(config.validate_, "validate", choices, every=validation_for(epoch)),
    }
    fitted = _filled(_with(config, **changes), "", choices, ema=EMA)
    return Fitted(fitted, choices, extent.pairs)


def _can_decay(config: RunSettings, warmup: int) -> bool:
    """Whether no stage ends within its warm-up, or because patience has run out."""
    if config.validate_.patience:
        return False
    for number, stage in enumerate(config.stages):
        warms_up = number == 0 or stage.restart_optimizer
        if warms_up and stage.steps <= warmup:
            return False
    return True


def _as_begun(config: RunSettings, begun: RunSettings) -> RunSettings:
    """The settings, with what is left out as it was chosen when the run began."""
    none: list[str] = []
    model = config.model
    if model.preset == "auto":
        given = {name: getattr(model, name) for name in model.model_fields_set - {"preset"}}
        model = ModelSettings.model_validate(begun.model.model_dump() | given)
    elif model.preset == begun.model.preset:
        model = _filled(model, "", none, dropout=begun.model.dropout)
    vocabulary = config.data.vocabulary
    if vocabulary.files() is None:
        vocabulary = _filled(vocabulary, "", none, size=begun.data.vocabulary.size)
    optimizer = begun.optimizer
    changes = {
        "model": model,
        "data": _with(config.data, vocabulary=vocabulary),
        "batch": _filled(config.batch, "", none, tokens=begun.batch.tokens),
        "optimizer": _filled(
            config.optimizer, "", none, warmup=optimizer.warmup, schedule=optimizer.schedule
        ),
        "validate_": _filled(config.validate_, "", none, every=begun.validate_.every),
    }
    return _filled(_with(config, **changes), "", none, ema=begun.ema)


def choices_for(config: RunSettings, restart: bool = False) -> str | None:
    """What is chosen because the run file leaves it out, as a line for people."""
    fitted = fit_to_corpus(config, restart)
    if not fitted.choices:
        return None
    is_large = fitted.pairs >= LARGEST
    pairs = "over a million pairs" if is_large else counted(fitted.pairs, "pair")
    return f"Chosen for {pairs}: {', '.join(fitted.choices)}."


def _fitted_model(config: RunSettings, sizes: Sizes, choices: list[str]) -> ModelSettings:
    model = config.model
    if model.preset == "auto":
        given = {name: getattr(model, name) for name in model.model_fields_set - {"preset"}}
        if config.initialize is not None:
            start = RunDirectory(config.initialize)
            if start.config_file.exists():
                return ModelSettings.model_validate(start.config().model.model_dump() | given)
            return model
        known = {"preset": sizes.preset, "dropout": sizes.dropout}
        choices.append(f"model {sizes.preset}")
        if "dropout" not in given:
            choices.append(f"model.dropout {sizes.dropout}")
        return ModelSettings.model_validate(PRESETS[sizes.preset] | known | given)
    if model.preset == "tiny" or config.initialize is not None:
        return model  # what is very small, or trained already, needs no more dropout
    return _filled(model, "model", choices, dropout=sizes.dropout)


def _filled(settings: T, key: str, choices: list[str], **values: Any) -> T:
    """A copy with the values that were not given; says which in `choices`."""
    missing = {}
    for name, value in values.items():
        if name not in settings.model_fields_set:
            missing[name] = value
            shown = value if isinstance(value, str) else f"{value:,}"
            choices.append(f"{key}.{name} {shown}" if key else f"{name} {shown}")
    return _with(settings, **missing)


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
