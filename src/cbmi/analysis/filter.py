"""`cbmi filter`: a parallel corpus parted by a score of its pairs into what to keep and what to drop.

The corpus is read as a stream, several times: for its mistakes; to score it, chunk by chunk, each with a file of its
own, so that the work can be interrupted and shared; and, the threshold known, to write its lines where they belong.
The scores stay in PREFIX.scores: another threshold, or the other score, costs no more scoring.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path

import numpy as np

from cbmi.analysis.drawing import check_plotting
from cbmi.analysis.filter_page import QUANTILES, SIGNALS, View, write_filter_page
from cbmi.analysis.score import WINDOW, Scorer
from cbmi.data.text import check_pairs, is_copy, read_pairs, report_repaired
from cbmi.errors import UserError
from cbmi.files import alone_in, atomic_file, read_json, sha256, to_json, write_atomically
from cbmi.progress import Bar, bar, say
from cbmi.training import checkpoint as store
from cbmi.training.trained import Trained
from cbmi.training.world import World

SAMPLES = 6  # pairs shown at each quantile
Pair = tuple[str, str]


@dataclass(frozen=True)
class Choice:
    """What to keep: a share of the pairs, or those of at least a score; copies or not; nothing said: only look."""

    keep: float | None = None
    minimum: float | None = None
    by: str = "cbmi"
    drop_copies: bool = False

    def __post_init__(self) -> None:
        if self.by not in SIGNALS:
            raise UserError(f"--by: '{self.by}' should be {' or '.join(SIGNALS)}.")
        if self.keep is not None and self.minimum is not None:
            raise UserError("filter: say either --keep SHARE or --min SCORE, not both.")
        if self.minimum is not None and not math.isfinite(self.minimum):
            raise UserError(f"--min: {self.minimum} should be a number, such as 0.5.")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise UserError(f"--keep: {self.keep:g} should be a share above 0 and at most 1, such as 0.9.")

    @property
    def made(self) -> bool:
        return self.keep is not None or self.minimum is not None or self.drop_copies

    def kept(self, scores: np.ndarray, unfit: np.ndarray) -> np.ndarray:
        """(pairs,) whether each is kept: never an unfit one; the share is of the others. Of equal scores the first
        are kept."""
        if self.minimum is not None:
            return (scores >= self.minimum) & ~unfit
        candidates = scores[~unfit]
        count = round((1.0 if self.keep is None else self.keep) * len(candidates))
        if not count:
            return np.zeros(len(scores), bool)
        lowest = np.partition(candidates, len(candidates) - count)[len(candidates) - count]
        kept = (scores > lowest) & ~unfit
        equal = np.flatnonzero((scores == lowest) & ~unfit)
        kept[equal[: count - int(kept.sum())]] = True
        return kept


def filter_corpus(
    model: Trained, files: Sequence[str], choice: Choice, prefix: Path, world: World
) -> dict[str, int] | None:
    """Score a corpus, part it, and write the page; gives how many pairs were kept and dropped (None: not asked)."""
    check_plotting()
    scores = Scores(Path(f"{prefix}.scores"), model, files)
    scores.check()
    _check_outputs(prefix, _sides(model), files)
    with alone_in(scores.folder) if world.first else nullcontext():
        if world.first:
            scores.claim()
        world.barrier()
        scores.complete(world)
        world.barrier()
        if not world.first:
            return None
        table = scores.read(choice.by)
        values, unfit = table.scores, table.empty | (table.copies & choice.drop_copies)
        if unfit.all():
            what = "has an empty side or is a copy" if choice.drop_copies else "has an empty side"
            raise UserError(f"{' and '.join(files)}: every pair {what}.")
        kept = None
        if choice.made:
            kept = choice.kept(values, unfit)
            _write(files, values, kept, prefix, _sides(model))
        _write_page(model, files, choice, values, unfit, kept, prefix)
    _say_unfit(table, choice)
    return _say(choice.by, values, kept, prefix, _sides(model))


@dataclass(frozen=True)
class Table:
    """What is known of each pair, (pairs,) each: its score, whether a side is empty, whether it is a copy."""

    scores: np.ndarray
    empty: np.ndarray
    copies: np.ndarray


class Scores:
    """The scores of every pair of a corpus, in chunks of `WINDOW` pairs."""

    def __init__(self, folder: Path, model: Trained, files: Sequence[str]) -> None:
        self.folder, self.files = folder, list(files)
        self.plan_file = folder / "plan.json"
        self.model = model

    def check(self) -> None:
        """Refuse files that cannot be read or are not aligned, before hours are spent on them."""
        for file in self.files:
            if Path(file).exists() and not Path(file).is_file():
                raise UserError(
                    f"{file}: this is read several times, so it has to be a file, not a pipe or a folder."
                )
        self.lines = check_pairs(self.files)
        if not self.lines:
            raise UserError(f"{' and '.join(self.files)}: there is nothing to filter.")

    def claim(self) -> None:
        """Make the folder that of this corpus and model; refuse if it is another's."""
        files = [sha256(Path(file)) for file in self.files]
        sums = read_json(self.model.folder / "manifest.json")
        weights = [sums.get(f"{name}.safetensors") for name in (store.TRANSLATOR, store.LANGUAGE_MODEL)]
        plan = {"corpus": files, "weights": weights, "window": WINDOW, "scores": list(SIGNALS)}
        if not self.plan_file.exists():
            write_atomically(self.plan_file, to_json(plan))
        elif read_json(self.plan_file) != plan:
            raise UserError(
                f"{self.folder} holds the scores of another corpus or another model: choose another -o, or delete it."
            )

    def chunk(self, number: int) -> Path:
        return self.folder / f"{number:07}.npy"

    def complete(self, world: World) -> None:
        """Score the chunks that are missing; of several processes each takes its share."""
        sizes = {n: min(WINDOW, self.lines - n * WINDOW) for n in range(-(-self.lines // WINDOW))}
        missing = [number for number in sizes if not self.chunk(number).exists()]
        world.barrier()  # all have looked before the first writes
        if not missing:
            return
        if len(missing) < len(sizes) and world.first:
            say(f"{self.lines - sum(sizes[n] for n in missing):,} of {self.lines:,} pairs have been scored before.")
        mine = set(missing[world.rank :: world.size])
        scorer, counts = Scorer(self.model), Counter()
        with bar("Scoring", sum(sizes[n] for n in mine), "pairs", quiet=not world.first) as progress:
            for number, pairs in enumerate(_windows(read_pairs(self.files, counts))):
                if number in mine:
                    self._score(scorer, number, pairs, progress)
        self.model.report_truncated()
        if world.first:
            report_repaired(counts)

    def _score(self, scorer: Scorer, number: int, pairs: list[Pair], progress: Bar) -> None:
        empty = np.array([not (source.strip() and target.strip()) for source, target in pairs])
        copies = np.array([is_copy(pair) for pair in pairs]) & ~empty
        rows = np.column_stack([scorer.sentence_scores(pairs, progress.advance), empty, copies])
        with atomic_file(self.chunk(number)) as temporary, open(temporary, "wb") as file:
            np.save(file, rows, allow_pickle=False)

    def read(self, by: str) -> Table:
        table = Table(np.empty(self.lines), *(np.empty(self.lines, bool) for _ in range(2)))
        wanted = (list(SIGNALS).index(by), -2, -1)
        for number, start in enumerate(range(0, self.lines, WINDOW)):
            rows = np.load(self.chunk(number), allow_pickle=False)
            for column, place in zip((table.scores, table.empty, table.copies), wanted, strict=True):
                column[start : start + WINDOW] = rows[:, place]
        return table


def _windows(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    while window := list(islice(pairs, WINDOW)):
        yield window


def _names(prefix: Path, sides: tuple[str, str]) -> dict[tuple[str, str], Path]:
    """The files of both parts: (part, end) → name."""
    ends = (*sides, "scores")
    return {(part, end): Path(f"{prefix}.{part}.{end}") for part in ("kept", "dropped") for end in ends}


def _check_outputs(prefix: Path, sides: tuple[str, str], files: Sequence[str]) -> None:
    """Refuse to write over the corpus."""
    for path in _names(prefix, sides).values():
        for file in files:
            if path.exists() and path.samefile(file):
                raise UserError(f"{file} would be written over by -o {prefix}: choose another prefix.")
            if path.is_dir():
                raise UserError(f"{path}: this is a folder, where a file is to be written: choose another -o.")


def _sides(model: Trained) -> tuple[str, str]:
    """The ends of the files' names."""
    languages = (model.config.data.source, model.config.data.target)
    return languages if languages[0] != languages[1] else ("source", "target")


def _write(files: Sequence[str], scores: np.ndarray, kept: np.ndarray, prefix: Path, sides: tuple[str, str]) -> None:
    """PREFIX.kept.* and PREFIX.dropped.*: both sides and the scores; all of them appear when all are complete."""
    ends = (*sides, "scores")
    with ExitStack() as stack:
        names = _names(prefix, sides)
        places = {key: stack.enter_context(atomic_file(path)) for key, path in names.items()}
        streams = {key: open(path, "w", encoding="utf-8", newline="\n") for key, path in places.items()}
        with bar("Writing", len(scores), "pairs") as progress:
            for start, window in zip(
                range(0, len(scores), WINDOW), _windows(read_pairs(files, Counter())), strict=True
            ):
                numbers = scores[start : start + WINDOW].tolist()
                rows = [(*pair, f"{score:.6f}") for pair, score in zip(window, numbers, strict=True)]
                for part, own in (("kept", kept), ("dropped", ~kept)):
                    chosen = list(compress(rows, own[start : start + WINDOW]))
                    for end, lines in zip(ends, zip(*chosen, strict=True), strict=True) if chosen else ():
                        streams[part, end].write("\n".join(lines) + "\n")
                progress.advance(len(window))
        for stream in streams.values():
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()


def _write_page(
    model: Trained,
    files: Sequence[str],
    choice: Choice,
    scores: np.ndarray,
    unfit: np.ndarray,
    kept: np.ndarray | None,
    prefix: Path,
) -> None:
    """What people choose by: unfit pairs are never kept, so they are not shown either."""
    fit = np.flatnonzero(~unfit)
    order = fit[np.argsort(scores[fit], kind="stable")]
    wanted = {quantile: _around(order, quantile) for quantile in QUANTILES}
    places = {int(place) for group in wanted.values() for place in group}
    pairs = {n: pair for n, pair in enumerate(read_pairs(files, Counter())) if n in places}
    records = dict(zip(pairs, Scorer(model).score(list(pairs.values())), strict=True))
    samples = {
        quantile: [(int(place) + 1, records[int(place)]) for place in group] for quantile, group in wanted.items()
    }
    threshold = float(scores[kept].min()) if kept is not None and kept.any() else None
    others = f"{int(unfit.sum()):,} that have an empty side{' or are copies' if choice.drop_copies else ''}"
    others = others if unfit.any() else None
    view = View(SIGNALS[choice.by], list(files), scores[fit], others, threshold, kept, samples)
    write_filter_page(Path(f"{prefix}.html"), view)


def _around(order: np.ndarray, quantile: float) -> np.ndarray:
    """Places of a few pairs at a quantile of the scores."""
    middle = round(quantile * (len(order) - 1))
    first = max(0, min(middle - SAMPLES // 2, len(order) - SAMPLES))
    return order[first : first + SAMPLES]


def _say_unfit(table: Table, choice: Choice) -> None:
    if table.empty.any():
        say(f"{int(table.empty.sum()):,} pairs have an empty side{' and were dropped' if choice.made else ''}.")
    if table.copies.any():
        what = "and were dropped" if choice.drop_copies else "(--drop-copies drops them)"
        say(f"{int(table.copies.sum()):,} pairs are copies, target the same as source {what}.")


def _say(
    by: str, scores: np.ndarray, kept: np.ndarray | None, prefix: Path, sides: tuple[str, str]
) -> dict[str, int] | None:
    if kept is None:
        say(f"{len(scores):,} pairs scored. Look at {prefix}.html, then say --keep SHARE or --min SCORE.")
        return None
    counts = {"kept": int(kept.sum()), "dropped": int((~kept).sum())}
    share = counts["kept"] / len(scores)
    lowest = f", {SIGNALS[by].name} {scores[kept].min():.3f} or more" if kept.any() else ""
    say(f"Kept {counts['kept']:,} of {len(scores):,} pairs ({share:.1%}{lowest}), dropped {counts['dropped']:,}.")
    say(f"{prefix}.kept.{{{sides[0]},{sides[1]},scores}}, {prefix}.dropped.{{…}}, {prefix}.html")
    return counts
