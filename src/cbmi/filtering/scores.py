"""Scores of every pair of a corpus, kept on disk in chunks.

Each chunk has a file of its own. So work that is interrupted can be resumed, several processes can
share it, and another threshold costs no scoring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cbmi.data.formats.entry import Languages
from cbmi.data.shards import corpus_name
from cbmi.data.text import Pair, check_pairs, no_pairs, read_corpora, report_counts
from cbmi.digests import sha256
from cbmi.errors import UserError
from cbmi.files import atomic_file, read_json, temporary_folder, to_json, write_atomically
from cbmi.filtering.chunks import COLUMNS, FEATURE_COLUMNS, chunk_rows
from cbmi.filtering.cluster import RayCluster, score_on_cluster
from cbmi.filtering.rules import PairFeatures, PairTable
from cbmi.inference.base import Model, truncation_note
from cbmi.inference.scoring import WINDOW, PairScorer
from cbmi.progress import Bar, bar, say
from cbmi.training.world import World
from cbmi.urls import Url, name_of, url_mark


class CorpusScores:
    """The scores and features of every pair of a corpus, in chunks of `WINDOW` pairs.

    `check`, then `claim` in the first process, then `complete` in all, then `read`.
    """

    def __init__(self, folder: Path, model: Model, shards: Sequence[Sequence[str]]) -> None:
        self.folder = folder
        self.plan_file = folder / "plan.json"
        self.model = model
        self.shards = shards  # the files of each part of the corpus
        self.files = [file for files in shards for file in files]
        # Pairs of each part, and of the corpus, as `check` counts them.
        self.pairs_of: list[int] = []
        self.lines = 0

    def check(self) -> None:
        """Refuse files that cannot be read or are not aligned, before hours are spent on them."""
        for file in self.files:
            if not isinstance(file, Url) and Path(file).exists() and not Path(file).is_file():
                raise UserError(
                    f"{file}: this is read several times, so it has to be a file, not a pipe or a "
                    "folder."
                )
        languages = self.model.languages
        self.pairs_of = [check_pairs(files, languages) for files in self.shards]
        self.lines = sum(self.pairs_of)
        if not self.lines:
            problem = no_pairs(self.shards[0], languages)
            raise UserError(f"{corpus_name(self.shards)}: nothing to filter: {problem}.")

    def claim(self) -> None:
        """Make the folder that of this corpus and model; refuse it if it belongs to others."""
        plan = self._plan()
        if not self.plan_file.exists():
            write_atomically(self.plan_file, to_json(plan))
            return
        known = read_json(self.plan_file)
        if known == plan:
            return
        same_inputs = all(known.get(key) == plan[key] for key in ("corpus", "weights"))
        owner = "an older version of cbmi" if same_inputs else "another corpus or another model"
        raise UserError(
            f"{self.folder} holds the scores of {owner}: choose another output, or delete it."
        )

    def _plan(self) -> dict[str, Any]:
        """What the scores depend on."""
        identities = [[_identity(file) for file in files] for files in self.shards]
        return {
            "corpus": identities[0] if len(identities) == 1 else identities,
            "weights": self.model.digests(),
            "window": WINDOW,
            "columns": COLUMNS,
        }

    def complete(self, world: World, cluster: RayCluster | None = None) -> None:
        """Score the chunks that are missing; of several processes, each takes its share.

        With a cluster, Ray's actors score them.
        """
        truncated_before = self.model.truncated  # the model may be the caller's
        sizes = self._chunk_sizes()
        missing = []
        for number, size in enumerate(sizes):
            if not self._is_complete(number, size):
                missing.append(number)
        world.barrier()  # all have looked before the first one writes
        if not missing:
            return
        if len(missing) < len(sizes) and world.first:
            done = self.lines - sum(sizes[number] for number in missing)
            say(f"{done:,} of {self.lines:,} pairs have been scored before.")
        if cluster is not None:
            self._complete_on(cluster, set(missing))
            return
        mine = set(missing[world.rank :: world.size])
        scorer = PairScorer(self.model)
        counts: Counter[str] = Counter()
        title = "Scoring" if world.size == 1 else f"Scoring, share 1 of {world.size}"
        total = sum(sizes[number] for number in mine)
        with bar(title, total, "pairs", quiet=not world.first) as progress:
            windows = read_windows(self.shards, self.model.languages, counts)
            for number, pairs in enumerate(windows):
                if number in mine:
                    self._score_chunk(scorer, number, pairs, progress)
        truncated = sum(world.gather(self.model.truncated - truncated_before))
        if world.first:
            if truncated:
                say(truncation_note(truncated))
            report_counts(counts)

    def _chunk_sizes(self) -> list[int]:
        """Pairs of each chunk; the last one may have fewer than `WINDOW`."""
        return [min(WINDOW, self.lines - start) for start in range(0, self.lines, WINDOW)]

    def _chunk_file(self, number: int) -> Path:
        return self.folder / f"{number:07}.npy"

    def _is_complete(self, number: int, size: int) -> bool:
        """Whether a chunk exists and is whole."""
        try:
            rows = np.load(self._chunk_file(number), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        return bool(rows.shape == (size, len(COLUMNS)))

    def _score_chunk(
        self, scorer: PairScorer, number: int, pairs: list[Pair], progress: Bar
    ) -> None:
        self._write_chunk(number, chunk_rows(scorer, pairs, progress.advance))

    def _complete_on(self, cluster: RayCluster, missing: set[int]) -> None:
        counts: Counter[str] = Counter()
        windows = enumerate(read_windows(self.shards, self.model.languages, counts))
        chunks = ((number, pairs) for number, pairs in windows if number in missing)
        sizes = self._chunk_sizes()
        total = sum(sizes[number] for number in missing)
        truncated = 0
        with (
            temporary_folder(self.folder, "chunks") as folder,
            bar("Scoring with Ray", total, "pairs") as progress,
        ):
            for chunk in score_on_cluster(cluster, self.model, chunks, folder):
                self._write_chunk(chunk.number, chunk.rows)
                truncated += chunk.truncated
                progress.advance(len(chunk.rows))
        if truncated:
            say(truncation_note(truncated))
        report_counts(counts)

    def _write_chunk(self, number: int, rows: np.ndarray) -> None:
        with atomic_file(self._chunk_file(number)) as temporary, open(temporary, "wb") as file:
            np.save(file, rows, allow_pickle=False)

    def read(self, by: str) -> PairTable:
        """All chunks together; `by` is the name of the score."""
        scores = np.empty(self.lines)
        features = PairFeatures(
            empty=np.empty(self.lines, dtype=bool),
            copies=np.empty(self.lines, dtype=bool),
            log_length_ratio=np.empty(self.lines, dtype=np.float32),
            text_hash=np.empty(self.lines),
        )
        for number, start in enumerate(range(0, self.lines, WINDOW)):
            rows = np.load(self._chunk_file(number), allow_pickle=False)
            place = slice(start, start + WINDOW)
            scores[place] = rows[:, COLUMNS.index(by)]
            for name, column in zip(FEATURE_COLUMNS, features, strict=True):
                column[place] = rows[:, COLUMNS.index(name)]
        wrong = np.flatnonzero(~np.isfinite(scores))
        if len(wrong):
            raise UserError(
                f"{self.model.path}: the score of {self._place(int(wrong[0]))} is NaN or "
                "infinite; the checkpoint is damaged."
            )
        return PairTable(scores, features)

    def _place(self, number: int) -> str:
        """Where the user finds a pair of the corpus, counted from 0."""
        for files, pairs in zip(self.shards, self.pairs_of, strict=True):
            if number < pairs:
                return f"pair {number + 1:,} of {' and '.join(map(name_of, files))}"
            number -= pairs
        raise AssertionError("the corpus has fewer pairs")


def _identity(file: str) -> str:
    """What tells a file's content from another: a digest, or what its store says of it."""
    return url_mark(file) if isinstance(file, Url) else sha256(Path(file))


def read_windows(
    shards: Iterable[Sequence[str]], languages: Languages, counts: Counter[str]
) -> Iterator[list[Pair]]:
    """The corpus, `WINDOW` pairs at a time; `counts` as in `read_pairs`."""
    pairs = read_corpora(shards, languages, counts)
    while window := list(islice(pairs, WINDOW)):
        yield window
