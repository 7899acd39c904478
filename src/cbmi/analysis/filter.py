"""`cbmi filter`: a parallel corpus parted by a score of its pairs into what to keep and what to drop.

The corpus is read as a stream, several times: for its mistakes; to score it, chunk by chunk, each with a file of its
own, so that the work can be interrupted and shared; and, the threshold known, to write its lines where they belong.
The scores stay in PREFIX.scores: another threshold, or the other score, costs no more scoring.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from itertools import compress, islice
from pathlib import Path

import numpy as np

from cbmi.analysis.drawing import check_plotting
from cbmi.analysis.filter_page import QUANTILES, Group, Sample, View, write_filter_page
from cbmi.analysis.filter_rules import (
    FATES,
    IN_WORDS,
    KEPT,
    RULED_OUT,
    SIGNALS,
    Choice,
    Table,
    count_text,
    facts_of,
    outcome,
    score_text,
)
from cbmi.analysis.score import WINDOW, Scorer
from cbmi.data.text import check_pairs, read_pairs, report_repaired
from cbmi.errors import UserError
from cbmi.files import alone_in, atomic_file, read_json, sha256, to_json, write_atomically
from cbmi.progress import Bar, bar, say
from cbmi.training import checkpoint as store
from cbmi.training.trained import Trained
from cbmi.training.world import World

COLUMNS = [*SIGNALS, "empty", "copies", "lengths", "texts"]  # of a chunk of scores
SAMPLES = 6  # pairs shown at each quantile, and of what each rule drops
Pair = tuple[str, str]


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
        try:
            scores.complete(world)
        except KeyboardInterrupt:
            if world.first:
                say(f"Stopped. The same command goes on; what was finished is in {scores.folder}.")
            raise
        world.barrier()
        if not world.first:
            return None
        table = scores.read(choice.by)
        if table.empty.all():
            raise UserError(f"{' and '.join(files)}: every pair has an empty side.")
        fates = choice.fates(table)
        if not (fates == KEPT).any():
            raise UserError(f"{' and '.join(files)}: nothing would be left. {_nothing(choice, table, fates)}")
        _write_page(model, files, choice, table, fates, prefix)
        if choice.made:
            _write(files, table.scores, fates, prefix, _sides(model))
    return _say(choice, table, fates, prefix, _sides(model))


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
        plan = {
            "corpus": files,
            "weights": weights,
            "window": WINDOW,
            "columns": COLUMNS,
        }
        if not self.plan_file.exists():
            write_atomically(self.plan_file, to_json(plan))
        elif (known := read_json(self.plan_file)) != plan:
            same = all(known.get(key) == plan[key] for key in ("corpus", "weights"))
            of = "an older version of cbmi" if same else "another corpus or another model"
            raise UserError(f"{self.folder} holds the scores of {of}: choose another -o, or delete it.")

    def chunk(self, number: int) -> Path:
        return self.folder / f"{number:07}.npy"

    def complete(self, world: World) -> None:
        """Score the chunks that are missing; of several processes each takes its share."""
        sizes = {n: min(WINDOW, self.lines - n * WINDOW) for n in range(-(-self.lines // WINDOW))}
        missing = [number for number, size in sizes.items() if not self._scored(number, size)]
        world.barrier()  # all have looked before the first writes
        if not missing:
            return
        if len(missing) < len(sizes) and world.first:
            say(f"{self.lines - sum(sizes[n] for n in missing):,} of {self.lines:,} pairs have been scored before.")
        mine = set(missing[world.rank :: world.size])
        scorer, counts = Scorer(self.model), Counter()
        title = "Scoring" if world.size == 1 else f"Scoring, share 1 of {world.size}"
        with bar(title, sum(sizes[n] for n in mine), "pairs", quiet=not world.first) as progress:
            for number, pairs in enumerate(_windows(read_pairs(self.files, counts))):
                if number in mine:
                    self._score(scorer, number, pairs, progress)
        self.model.truncated = sum(world.gather(self.model.truncated))
        if world.first:
            self.model.report_truncated()
            report_repaired(counts)

    def _scored(self, number: int, size: int) -> bool:
        """Whether a chunk is there and whole."""
        try:
            return np.load(self.chunk(number), mmap_mode="r", allow_pickle=False).shape == (size, len(COLUMNS))
        except (OSError, ValueError, EOFError):
            return False

    def _score(self, scorer: Scorer, number: int, pairs: list[Pair], progress: Bar) -> None:
        rows = np.column_stack([scorer.sentence_scores(pairs, progress.advance), *facts_of(pairs)])
        with atomic_file(self.chunk(number)) as temporary, open(temporary, "wb") as file:
            np.save(file, rows, allow_pickle=False)

    def read(self, by: str) -> Table:
        kinds = (float, bool, bool, np.float32, float)
        columns = [np.empty(self.lines, kind) for kind in kinds]
        for number, start in enumerate(range(0, self.lines, WINDOW)):
            chunk = dict(zip(COLUMNS, np.load(self.chunk(number), allow_pickle=False).T, strict=True))
            for column, name in zip(columns, (by, *COLUMNS[len(SIGNALS) :]), strict=True):
                column[start : start + WINDOW] = chunk[name]
        scores = columns[0]
        if not np.isfinite(scores).all():
            line = int(np.flatnonzero(~np.isfinite(scores))[0]) + 1
            raise UserError(f"{self.model.folder} gives no number for line {line} of {self.files[0]}: it is damaged.")
        return Table(*columns)


def _windows(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    while window := list(islice(pairs, WINDOW)):
        yield window


def _names(prefix: Path, sides: tuple[str, str]) -> dict[tuple[str, str], Path]:
    """The files of both parts: (part, end) → name."""
    ends = {"kept": (*sides, "scores"), "dropped": (*sides, "scores", "reasons")}
    return {(part, end): Path(f"{prefix}.{part}.{end}") for part, own in ends.items() for end in own}


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


def _write(files: Sequence[str], scores: np.ndarray, fates: np.ndarray, prefix: Path, sides: tuple[str, str]) -> None:
    """PREFIX.kept.* and PREFIX.dropped.*: both sides, the scores, and why a pair was dropped; all of them appear when
    all are complete."""
    ends = (*sides, "scores", "reasons")
    with ExitStack() as stack:
        names = _names(prefix, sides)
        places = {key: stack.enter_context(atomic_file(path)) for key, path in names.items()}
        streams = {key: open(path, "w", encoding="utf-8", newline="\n") for key, path in places.items()}
        with bar("Writing", len(scores), "pairs") as progress:
            for start, window in zip(
                range(0, len(scores), WINDOW), _windows(read_pairs(files, Counter())), strict=True
            ):
                numbers, own = scores[start : start + WINDOW].tolist(), fates[start : start + WINDOW]
                reasons = [FATES[fate] for fate in own]
                columns = zip(window, numbers, reasons, strict=True)
                rows = [(*pair, f"{score:.6f}", reason) for pair, score, reason in columns]
                for part, wanted in (("kept", own == KEPT), ("dropped", own != KEPT)):
                    chosen = list(compress(rows, wanted))
                    for end, lines in zip(ends, zip(*chosen, strict=True), strict=True) if chosen else ():
                        if (part, end) in streams:
                            streams[part, end].write("\n".join(lines) + "\n")
                progress.advance(len(window))
        for stream in streams.values():
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()


def _write_page(
    model: Trained, files: Sequence[str], choice: Choice, table: Table, fates: np.ndarray, prefix: Path
) -> None:
    """What people choose by: pairs by their score, apart from those that a rule drops."""
    scores = table.scores
    shown = np.flatnonzero(~np.isin(fates, RULED_OUT))
    order = shown[np.argsort(scores[shown], kind="stable")]
    signal = SIGNALS[choice.by]
    levels = np.quantile(scores[shown], list(QUANTILES.values()))
    wanted = [
        (name, f"{signal.name} {score_text(level)}", _around(order, quantile))
        for (name, quantile), level in zip(QUANTILES.items(), levels, strict=True)
    ]
    for fate in RULED_OUT:
        if len(dropped := np.flatnonzero(fates == fate)):
            wanted.append((f"Dropped {IN_WORDS[FATES[fate]]}", count_text(len(dropped)), _spread(dropped)))
    places = {int(place) for *_, group in wanted for place in group}
    pairs = {n: pair for n, pair in enumerate(read_pairs(files, Counter())) if n in places}
    records = dict(zip(pairs, Scorer(model).score(list(pairs.values())), strict=True))
    groups = [
        Group(name, detail, [Sample(int(place) + 1, records[int(place)], fates[place] != KEPT) for place in group])
        for name, detail, group in wanted
    ]
    threshold = choice.threshold(scores, fates)
    notes = [f"{count_text(len(fates))} of {' and '.join(files)}.", *_notes(choice, table)]
    if choice.made:
        notes.append(outcome(choice, fates, threshold))
    view = View(signal, notes, scores[shown], len(fates) - len(shown), threshold, groups)
    write_filter_page(Path(f"{prefix}.html"), view)


def _around(order: np.ndarray, quantile: float) -> np.ndarray:
    """Places of a few pairs at a quantile of the scores."""
    middle = round(quantile * (len(order) - 1))
    first = max(0, min(middle - SAMPLES // 2, len(order) - SAMPLES))
    return order[first : first + SAMPLES]


def _spread(places: np.ndarray) -> np.ndarray:
    """A few of them, from the first to the last."""
    return places[np.linspace(0, len(places) - 1, min(SAMPLES, len(places))).round().astype(int)]


def _nothing(choice: Choice, table: Table, fates: np.ndarray) -> str:
    """Why nothing is kept, and what the best score would have been."""
    text = outcome(choice, fates, choice.minimum)
    fit = ~np.isin(fates, RULED_OUT)
    return f"{text} The highest is {score_text(table.scores[fit].max())}." if fit.any() else text


def _notes(choice: Choice, table: Table) -> list[str]:
    """What else is to be known of the corpus."""
    notes = []
    if table.empty.any() and not choice.made:
        notes.append(f"{count_text(int(table.empty.sum()))} with an empty side: never kept.")
    if table.copies.any() and not choice.drop_copies:
        copies = count_text(int(table.copies.sum()))
        notes.append(f"{copies} with a target that only copies the source; --drop-copies drops them.")
    if not choice.drop_duplicates and (repeated := int(table.repeated.sum())):
        notes.append(f"{count_text(repeated)} that repeat an earlier one; --drop-duplicates drops them.")
    return notes


def _say(
    choice: Choice, table: Table, fates: np.ndarray, prefix: Path, sides: tuple[str, str]
) -> dict[str, int] | None:
    for note in _notes(choice, table):
        say(note)
    if not choice.made:
        say(f"{count_text(len(fates))} scored. Look at {prefix}.html, then say --keep SHARE or --min SCORE.")
        if any(path.exists() for path in _names(prefix, sides).values()):
            say(f"{prefix}.kept.* and {prefix}.dropped.* are there from an earlier choice.")
        return None
    say(outcome(choice, fates, choice.threshold(table.scores, fates)))
    say(f"{prefix}.kept.{{{sides[0]},{sides[1]},scores}}, {prefix}.dropped.{{…}}, {prefix}.html")
    kept = int((fates == KEPT).sum())
    return {"kept": kept, "dropped": len(fates) - kept}
