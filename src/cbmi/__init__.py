"""cbmi: train translation models by deciding, token by token, how much each token should count.

    import cbmi

    run = cbmi.train("mine.yaml")
    model = cbmi.load(run)
    model.translate(["A sentence."])

Everything is imported when it is first used: `import cbmi` alone costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cbmi.errors import MissingExtra, TrainingStopped, UserError
from cbmi.version import __version__

if TYPE_CHECKING:
    from cbmi import objectives
    from cbmi.config import RunSettings
    from cbmi.decoding import Sampling
    from cbmi.evaluation.metrics import EvaluationReport
    from cbmi.filtering.filter import FilterResult
    from cbmi.inference.base import Model

__all__ = [
    "MissingExtra",
    "Sampling",
    "TrainingStopped",
    "UserError",
    "__version__",
    "evaluate",
    "filter",
    "load",
    "objectives",
    "prepare",
    "read_config",
    "train",
]


def load(
    run: str | Path,
    checkpoint: str | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> Model:
    """Load a trained run, or what `cbmi export --to ctranslate2` wrote.

    `run` is a run directory: returns a `TrainedModel`; `checkpoint` is a folder of its checkpoints
    to use instead of the best. Or it is an exported folder. `device` is auto, cpu, cuda or cuda:N;
    `precision` auto, fp32, bf16 or fp16.
    """
    from cbmi.inference.loading import load_model

    return load_model(run, checkpoint, device, precision)


def read_config(path: str | Path, overrides: Iterable[str] = ()) -> RunSettings:
    """Read and check a run file; `overrides` are key=value, as on the command line."""
    from cbmi.config import read_config as read

    return read(path, overrides)


def train(
    config: RunSettings | Mapping[str, Any] | str | Path,
    *,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    progress: bool = True,
    restart: bool = False,
    strict: bool = False,
    **changes: Any,
) -> Path:
    """Train a run to its end, or resume it; returns its run directory.

    `config` is the path of a run file, its values as a mapping, or what `read_config` returned.
    Further keywords replace keys of it: `output="runs/other"`, or, below the top level,
    `**{"optimizer.peak_lr": 5e-4}`. `on_log` is called with every record that goes to log.jsonl:
    figures of training and of validation. `progress=False` prints nothing. `restart` sets aside
    what was trained before, and starts from scratch. `strict` refuses data that look wrong, such as
    swapped sides.

    While it runs in the main thread, SIGTERM and Ctrl-C finish the step, save, and raise
    `TrainingStopped`; the previous signal handlers are restored afterwards.
    """
    from cbmi.inference.training import train_and_test

    return train_and_test(config, changes, on_log, progress, restart, strict)


def prepare(
    config: RunSettings | Mapping[str, Any] | str | Path,
    *,
    progress: bool = True,
    again: bool = False,
    strict: bool = False,
    **changes: Any,
) -> Path:
    """Learn the vocabulary and encode the corpus of a run, without training it.

    Arguments as for `train`; returns the run directory. `again` encodes the corpus again, with the
    existing vocabulary.
    """
    from cbmi.inference.training import prepare_data

    return prepare_data(config, changes, progress, again, strict)


def evaluate(
    references: Sequence[str] | Sequence[Sequence[str]],
    systems: Mapping[str, Sequence[str]],
    *,
    bootstrap: int = 1000,
    seed: int = 12345,
    language: str = "",
    multi_bleu: bool = False,
    tokenize: str | None = None,
    split_compounds: bool = False,
) -> EvaluationReport:
    """Score the lines of each system (name → lines) against the references: BLEU, chrF, TER.

    `references` are lines; several references of every line are several such sequences.
    With `bootstrap` resamples, every score gets a confidence interval, and later systems are tested
    against the first. `language` decides how text without spaces is split. `multi_bleu` adds
    tokenised BLEU; `tokenize` names the language of the Moses tokenizer, `split_compounds` splits
    at hyphens. Returns an `EvaluationReport`; needs the extra `eval`.
    """
    from cbmi.evaluation.metrics import evaluate as score

    return score(
        references,
        systems,
        bootstrap=bootstrap,
        seed=seed,
        language=language,
        multi_bleu=multi_bleu,
        tokenize=tokenize,
        split_compounds=split_compounds,
    )


def filter(
    run: str | Path | Model,
    source: str | Path,
    target: str | Path | None = None,
    *,
    output: str | Path,
    keep: float | None = None,
    minimum: float | None = None,
    by: str = "cbmi",
    drop_copies: bool = False,
    drop_duplicates: bool = False,
    max_ratio: float | None = None,
    checkpoint: str | None = None,
    device: str = "auto",
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> FilterResult:
    """Split a parallel corpus by a score of its pairs, and by rules.

    `source` and `target` are aligned files, or `source` alone holds both sides; they may be URLs
    and have wildcards. All files that are written begin with `output`. `keep` is a share of the
    pairs, `minimum` a score; `by` is "cbmi" or "likelihood". Rules drop copies of the source,
    duplicates, and pairs with a side over `max_ratio` times as long as usual beside the other. If
    nothing is to be dropped, the corpus is only scored. Returns a `FilterResult`. `checkpoint` and
    `device` are those of `load`. With the engine "ray", `workers` actors score the pairs, on the
    cluster at `address` or on this machine. `progress=False` prints nothing.
    """
    from contextlib import nullcontext

    from cbmi.filtering.cluster import RayCluster
    from cbmi.filtering.filter import filter_files
    from cbmi.filtering.rules import FilterSettings
    from cbmi.progress import quiet

    settings = FilterSettings(
        keep=keep,
        minimum=minimum,
        by=by,
        drop_copies=drop_copies,
        drop_duplicates=drop_duplicates,
        max_ratio=max_ratio,
    )
    files = [str(source)] if target is None else [str(source), str(target)]
    if engine not in ("local", "ray"):
        raise UserError(f"engine is '{engine}', but should be local or ray.")
    if engine == "local" and (address is not None or workers is not None):
        raise UserError("address and workers are for engine ray.")
    cluster = RayCluster(address, workers) if engine == "ray" else None
    with nullcontext() if progress else quiet():
        return filter_files(run, files, settings, Path(output), checkpoint, device, cluster)


def __getattr__(name: str) -> Any:
    """`cbmi.objectives` and `cbmi.Sampling` are imported when they are first used."""
    if name == "objectives":
        import importlib

        return importlib.import_module("cbmi.objectives")
    if name == "Sampling":
        from cbmi.decoding import Sampling

        return Sampling
    raise AttributeError(f"module 'cbmi' has no attribute '{name}'")
