"""`cbmi filter`: split a parallel corpus, by a score of its pairs and by rules.

The corpus is read as a stream, several times: to check it; to score it; and, once the threshold is
known, to write its lines to the files of what is kept and of what is dropped. The scores stay in
PREFIX.scores: another threshold, or the other score, costs no more scoring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from cbmi.data.formats.entry import Languages
from cbmi.data.shards import corpus_name, find_shards
from cbmi.digests import unchanged
from cbmi.errors import UserError
from cbmi.files import atomic_files, check_outputs, write_together
from cbmi.filtering.cluster import RayCluster
from cbmi.filtering.page import filter_page
from cbmi.filtering.rules import (
    RULED_OUT,
    FilterSettings,
    PairTable,
    Verdict,
    outcome,
    score_text,
)
from cbmi.filtering.scores import CorpusScores, read_windows
from cbmi.inference.base import Model
from cbmi.inference.loading import load_model
from cbmi.inference.model import TrainedModel
from cbmi.locks import alone_in
from cbmi.progress import bar, counted, say
from cbmi.reporting.drawing import check_plotting
from cbmi.training.world import World, join_world
from cbmi.urls import name_of, scheme_of

PRECISION = "fp32"  # CBMI is a difference of logarithms: half precision would be too coarse


@dataclass(frozen=True)
class FilterResult:
    """What was done with a corpus.

    Of several processes, only the first knows `kept` and `dropped` and has files.
    """

    pairs: int  # that were scored
    kept: int | None  # None: nothing was to be dropped
    dropped: int | None
    page: Path
    # By the end of their names: the languages, "scores" and, of what was dropped, "reasons".
    kept_files: dict[str, Path]
    dropped_files: dict[str, Path]


@dataclass(frozen=True)
class _Outputs:
    """The files of a filtered corpus."""

    page: Path
    kept: dict[str, Path]
    dropped: dict[str, Path]

    def parts(self) -> list[Path]:
        return [*self.kept.values(), *self.dropped.values()]


def filter_files(
    run: str | Path | Model,
    files: Sequence[str],
    settings: FilterSettings,
    output: Path,
    checkpoint: str | None = None,
    device: str = "auto",
    cluster: RayCluster | None = None,
) -> FilterResult:
    """Score a corpus and split it, alone or with the other processes that torchrun started.

    `run` is a run directory or a folder exported from one, or a model in float32 that is used as it
    is: `checkpoint` and `device` are for the former. `files` are two aligned files, or one that
    holds both sides, as paths or URLs; wildcards stand for several. What is written begins with
    `output`.
    """
    if isinstance(run, Model):
        if isinstance(run, TrainedModel) and run.precision is not torch.float32:
            raise UserError(
                f"{run.run.path}: filtering needs float32 scores; load the model with "
                "precision='fp32'."
            )
        with join_world(str(run.device)) as world:
            return filter_corpus(run, files, settings, output, world, cluster)
    with join_world(device) as world:
        model = load_model(run, checkpoint, str(world.device), PRECISION)
        return filter_corpus(model, files, settings, output, world, cluster)


def filter_corpus(
    model: Model,
    files: Sequence[str],
    settings: FilterSettings,
    prefix: Path,
    world: World,
    cluster: RayCluster | None = None,
) -> FilterResult:
    """Score a corpus, write the page and, if anything is to be dropped, split the corpus."""
    check_plotting()
    if cluster is not None and world.size > 1:
        raise UserError("--engine ray: Ray starts the processes itself; leave out torchrun.")
    if scheme_of(prefix) is not None:
        raise UserError(f"-o {prefix}: results are written to files here, not to a URL.")
    if settings.by == "cbmi" and not model.has_language_model:
        raise UserError(
            f"{model.path} has no language model, which CBMI needs: filter by likelihood "
            f"instead (--by likelihood), or {model.language_model_remedy}."
        )
    shards = find_shards(files)
    named = " and ".join(name_of(file) for file in files)
    scores = CorpusScores(Path(f"{prefix}.scores"), model, shards)
    scores.check()
    outputs = _outputs(prefix, model)
    check_outputs(outputs.parts(), prefix, scores.files)
    alone = alone_in(scores.folder) if world.first else nullcontext()
    with alone, unchanged(scores.files) as check_unchanged:
        if world.first:
            scores.claim()
        world.barrier()
        _complete(scores, world, cluster)
        world.barrier()
        if not world.first:
            return FilterResult(scores.lines, None, None, outputs.page, {}, {})
        table = scores.read(settings.by)
        verdicts = _verdicts(settings, table, named)
        notes = _notes(settings, table)
        sentences = [f"{counted(len(verdicts), 'pair')} of {named}.", *notes]
        if settings.drops_pairs:
            threshold = settings.threshold(table.scores, verdicts)
            sentences.append(outcome(settings, verdicts, threshold))
        page = filter_page(outputs.page, model, shards, settings, table, verdicts, sentences)
        if settings.drops_pairs:
            corpus = (shards, model.languages)
            _write_all(corpus, table.scores, verdicts, outputs, page, check_unchanged)
        else:
            write_together(page)
    for note in notes:
        say(note)
    if not settings.drops_pairs:
        _say_scored(prefix, outputs, len(verdicts))
        return FilterResult(len(verdicts), None, None, outputs.page, {}, {})
    say(sentences[-1])
    _say_written(prefix, outputs)
    kept = int((verdicts == Verdict.KEPT).sum())
    dropped = len(verdicts) - kept
    return FilterResult(len(verdicts), kept, dropped, outputs.page, outputs.kept, outputs.dropped)


def _outputs(prefix: Path, model: Model) -> _Outputs:
    """PREFIX.html, PREFIX.kept.* and PREFIX.dropped.*."""
    source, target = model.languages
    if source == target:
        source = "source"
        target = "target"
    return _Outputs(
        page=Path(f"{prefix}.html"),
        kept={end: Path(f"{prefix}.kept.{end}") for end in (source, target, "scores")},
        dropped={
            end: Path(f"{prefix}.dropped.{end}") for end in (source, target, "scores", "reasons")
        },
    )


def _complete(scores: CorpusScores, world: World, cluster: RayCluster | None) -> None:
    try:
        scores.complete(world, cluster)
    except KeyboardInterrupt:
        if world.first:
            say(f"Stopped. The same command resumes; what was finished is in {scores.folder}.")
        raise


def _verdicts(settings: FilterSettings, table: PairTable, where: str) -> np.ndarray:
    """(pairs,) what becomes of each pair; an error if nothing would be kept."""
    if table.features.empty.all():
        raise UserError(f"{where}: every pair has an empty side.")
    verdicts = settings.verdicts(table)
    if (verdicts == Verdict.KEPT).any():
        return verdicts
    text = outcome(settings, verdicts, settings.minimum)
    judged = table.scores[~np.isin(verdicts, RULED_OUT)]  # those that no rule drops
    if len(judged):
        text += f" The highest is {score_text(judged.max())}."
    raise UserError(f"{where}: nothing would be left. {text}")


def _write_all(
    corpus: tuple[Sequence[Sequence[str]], Languages],
    scores: np.ndarray,
    verdicts: np.ndarray,
    outputs: _Outputs,
    page: Mapping[Path, str | bytes],
    check_unchanged: Callable[[], None],
) -> None:
    """Both sides, the scores, why a pair was dropped, and the page.

    They take their places together, when all are complete.
    """
    parts = outputs.parts()
    with atomic_files([*parts, *page]) as temporaries:
        for temporary, content in zip(temporaries[len(parts) :], page.values(), strict=True):
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        _write_parts(*corpus, scores, verdicts, temporaries[: len(parts)], len(outputs.kept))
        check_unchanged()  # before anything takes the place of what was there


def _write_parts(
    shards: Sequence[Sequence[str]],
    languages: Languages,
    scores: np.ndarray,
    verdicts: np.ndarray,
    parts: Sequence[Path],
    kept_parts: int,
) -> None:
    """Write the files of what is kept, the first `kept_parts`, and of what is dropped."""
    with ExitStack() as stack:
        streams = [_open(stack, path) for path in parts]
        kept = streams[:kept_parts]
        dropped = streams[kept_parts:]
        seen = 0
        with bar("Writing", len(scores), "pairs") as progress:
            for window in read_windows(shards, languages, Counter()):
                own = slice(seen, seen + len(window))
                seen += len(window)
                if seen > len(scores):
                    break
                rows = zip(window, scores[own].tolist(), verdicts[own].tolist(), strict=True)
                for (source, target), score, verdict in rows:
                    columns = [source, target, f"{score:.6f}"]
                    if verdict == Verdict.KEPT:
                        _write_row(kept, columns)
                    else:
                        _write_row(dropped, [*columns, Verdict(verdict).label])
                progress.advance(len(window))
        if seen != len(scores):
            raise UserError(
                f"{corpus_name(shards)}: this has changed while it was read; filter it again."
            )


def _open(stack: ExitStack, path: Path) -> TextIO:
    return stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))


def _write_row(streams: Sequence[TextIO], columns: Sequence[str]) -> None:
    for stream, column in zip(streams, columns, strict=True):
        stream.write(column + "\n")


def _notes(settings: FilterSettings, table: PairTable) -> list[str]:
    """What else one should know of the corpus."""
    features = table.features
    notes = []
    if features.empty.any() and not settings.drops_pairs:
        empty = counted(int(features.empty.sum()), "pair")
        notes.append(f"{empty} with an empty side: never kept.")
    if features.copies.any() and not settings.drop_copies:
        copies = counted(int(features.copies.sum()), "pair")
        notes.append(
            f"{copies} with a target that only copies the source; --drop-copies drops them."
        )
    if table.repeated.any() and not settings.drop_duplicates:
        repeated = counted(int(table.repeated.sum()), "pair")
        notes.append(f"{repeated} that repeat an earlier one; --drop-duplicates drops them.")
    return notes


def _say_scored(prefix: Path, outputs: _Outputs, pairs: int) -> None:
    say(
        f"{counted(pairs, 'pair')} scored. Look at {outputs.page}, then give --keep SHARE or --min "
        "SCORE."
    )
    if any(path.exists() for path in outputs.parts()):
        say(f"{prefix}.kept.* and {prefix}.dropped.* still exist from an earlier choice.")


def _say_written(prefix: Path, outputs: _Outputs) -> None:
    ends = ",".join(outputs.kept)
    say(f"{prefix}.kept.{{{ends}}}, {prefix}.dropped.{{…}}, {outputs.page}")
