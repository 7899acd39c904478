"""BPE-dropout: several segmentations of every training pair, sampled once and kept on disk.

data/segmentations/K/source.ids, source.offsets, target.ids, target.offsets
                         segmentation K of the pairs of data/train; sides that are not sampled are
                         those of data/train
data/segmentations/meta.json
                         settings and sizes

Pieces never cross spaces, so words are segmented one by one, all occurrences of a word in a block
of text together.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cbmi.data.bpe_dropout import MergeTable, SampledWords, sample_words
from cbmi.data.corpus import Corpus, Side, SideWriter, check_digests, damaged, digests_of
from cbmi.data.text import read_corpora
from cbmi.data.vocabulary import EOS, Vocabulary
from cbmi.data_settings import DataSettings, SegmentationSettings
from cbmi.digests import unchanged
from cbmi.files import atomic_folder, read_json, to_json
from cbmi.progress import bar, counted, say

BLOCK = 50_000  # pairs segmented at a time


class PackedLines(NamedTuple):
    """Lines laid end to end, each with its end of sentence."""

    ids: np.ndarray
    lengths: np.ndarray


class WordSampler:
    """Samples the segmentations of blocks of lines; the same seed gives the same ones."""

    def __init__(self, vocabulary: Vocabulary, settings: SegmentationSettings, side: str) -> None:
        self.vocabulary = vocabulary
        self.settings = settings
        self.side = side
        self.table = MergeTable(vocabulary)

    def segmentations(self, lines: Sequence[str], block: int) -> Iterator[PackedLines]:
        """The lines, `samples` times.

        `block`: the number of the block, which the draws depend on.
        """
        words_of_line = [_words(line) for line in lines]
        words = list(chain.from_iterable(words_of_line))
        number_of = {word: number for number, word in enumerate(dict.fromkeys(words))}
        occurrences = np.fromiter((number_of[word] for word in words), np.int64, len(words))
        count = np.bincount(occurrences, minlength=len(number_of))
        samples = self.settings.samples
        random = np.random.Generator(np.random.Philox(key=self._seed(block)))
        drawn = sample_words(
            list(number_of),
            count * samples,
            self.settings.dropout,
            self.table,
            self.vocabulary,
            random,
        )
        dealt = _dealt_out(drawn, random)
        # A word's draws lie together: each occurrence has one for every sample.
        first_draw = (np.cumsum(count) - count) * samples
        own_draws = first_draw[occurrences] + _rank_among_equals(occurrences, count) * samples
        lengths = np.array([len(words) for words in words_of_line], np.int64)
        for sample in range(samples):
            yield _packed_lines(drawn, dealt[own_draws + sample], lengths)

    def _seed(self, block: int) -> int:
        parts = (self.settings.seed, self.side, block)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


def _words(line: str) -> list[str]:
    """What stands between spaces; runs of spaces count as one, as for sentencepiece."""
    return [word for word in line.split(" ") if word]


def _dealt_out(drawn: SampledWords, random: np.random.Generator) -> np.ndarray:
    """(draws,): the segmentation of each draw; words in order, each word's draws shuffled."""
    segmentation = np.repeat(np.arange(len(drawn.draws)), drawn.draws)
    # Numbers between a word's own and the next one's: sorting them shuffles within words.
    keys = drawn.word[segmentation] + random.random(len(segmentation))
    return segmentation[np.argsort(keys)]


def _rank_among_equals(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    """For each value how many equal ones stand before it; `count`: how many there are of each."""
    order = np.argsort(values, kind="stable")
    first_place = np.cumsum(count) - count
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - first_place[values[order]]
    return rank


def _packed_lines(drawn: SampledWords, chosen: np.ndarray, words: np.ndarray) -> PackedLines:
    """Lines with so many words (lines,), given the segmentation of each word, and their ends."""
    ids, lengths = _select(drawn.ids, drawn.starts[chosen], drawn.starts[chosen + 1])
    pieces = np.concatenate([[0], np.cumsum(lengths)])
    line_ends = pieces[np.cumsum(words)]
    return PackedLines(np.insert(ids, line_ends, EOS), np.diff(line_ends, prepend=0) + 1)


def _select(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> PackedLines:
    """Parts of `ids` laid end to end: each from its start up to its end."""
    lengths = ends - starts
    new_ends = np.cumsum(lengths)
    total = int(new_ends[-1]) if len(new_ends) else 0
    places = np.arange(total) + np.repeat(starts - (new_ends - lengths), lengths)
    return PackedLines(ids[places], lengths)


def without_long_lines(lines: PackedLines, longest: int, plain: PackedLines) -> PackedLines:
    """The same, with the plain segmentation of the lines of over `longest` pieces."""
    too_long = lines.lengths > longest
    if not too_long.any():
        return lines
    both = np.concatenate([lines.ids, plain.ids])
    ends = np.where(too_long, len(lines.ids) + np.cumsum(plain.lengths), np.cumsum(lines.lengths))
    starts = ends - np.where(too_long, plain.lengths, lines.lengths)
    return _select(both, starts, ends)


def sample_segmentations(
    corpus: Corpus,
    data: DataSettings,
    vocabularies: tuple[Vocabulary, Vocabulary],
    folder: Path,
    settings: SegmentationSettings,
) -> None:
    """Sample the segmentations of the pairs of a prepared corpus into `folder`.

    `data`: what it was made from. `vocabularies`: of the source and of the target. A line that
    would have over `data.max_length` pieces keeps its plain segmentation.
    """
    sides = {"source": corpus.source, "target": corpus.target}
    sampled = [name for name in sides if settings.sides in (name, "both")]
    dtype = np.dtype(corpus.meta.dtype)
    total = len(corpus) * settings.samples
    with atomic_folder(folder) as temporary, unchanged(data.train_files()), ExitStack() as stack:
        writers: dict[str, list[SideWriter]] = {name: [] for name in sampled}
        for number in range(settings.samples):
            (temporary / str(number)).mkdir()
            for name in sampled:
                writer = SideWriter(temporary / str(number), name, dtype)
                writers[name].append(stack.enter_context(writer))
        samplers = {}
        for name, vocabulary in zip(sides, vocabularies, strict=True):
            if name in sampled:
                samplers[name] = WordSampler(vocabulary, settings, name)
        progress = stack.enter_context(bar("Sampling segmentations", total, "pairs"))
        for block, (pairs, texts) in enumerate(_blocks(corpus, data)):
            for name in sampled:
                index = 0 if name == "source" else 1
                plain = sides[name].select(pairs)
                samples = samplers[name].segmentations([text[index] for text in texts], block)
                for writer, lines in zip(writers[name], samples, strict=True):
                    kept = without_long_lines(
                        lines, data.max_length, PackedLines(plain.ids, plain.lengths)
                    )
                    writer.add_packed(kept.ids, kept.lengths)
            progress.advance(len(pairs) * settings.samples)
        tokens = {}
        for name in sampled:
            tokens[name] = [writer.tokens for writer in writers[name]]
            for writer in writers[name]:
                writer.close()
        meta = {
            "settings": settings.model_dump(mode="json"),
            "tokens": tokens,
            "digests": digests_of(temporary),
        }
        (temporary / "meta.json").write_text(to_json(meta), encoding="utf-8")
    say(f"Sampled {settings.samples} segmentations of {counted(len(corpus), 'pair')}: {folder}")


def _blocks(
    corpus: Corpus, data: DataSettings
) -> Iterator[tuple[np.ndarray, list[tuple[str, str]]]]:
    """Numbers and text of the corpus's pairs, block by block."""
    first = 0
    files = [part.files for part in data.train]
    text = enumerate(read_corpora(files, data.languages, Counter()))
    remaining = iter(corpus.lines.tolist())
    wanted = next(remaining, None)
    block: list[tuple[str, str]] = []
    for line, pair in text:
        if line != wanted:
            continue
        wanted = next(remaining, None)
        block.append(pair)
        if len(block) == BLOCK:
            yield np.arange(first, first + len(block)), block
            first += len(block)
            block = []
    if block:
        yield np.arange(first, first + len(block)), block


def check_segmentations(folder: Path) -> None:
    """Refuse segmentations that are not what sampling wrote. Reads them once."""
    meta = read_json(folder / "meta.json")
    try:
        check_digests(folder, meta.get("digests", {}))
    except AttributeError:
        raise damaged(folder / "meta.json") from None


def open_segmentations(corpus: Corpus, folder: Path) -> list[Corpus]:
    """The segmentations of a corpus, each as a corpus of its own."""
    meta = read_json(folder / "meta.json")
    try:
        samples = int(meta["settings"]["samples"])
        corpora = []
        for number in range(samples):
            sides = {"source": corpus.source, "target": corpus.target}
            for name, tokens in meta["tokens"].items():
                sides[name] = Side(
                    folder / str(number), name, corpus.meta.dtype, tokens[number], len(corpus)
                )
            corpora.append(corpus.resegmented(folder / str(number), **sides))
    except (KeyError, TypeError, IndexError, ValueError):
        raise damaged(folder / "meta.json") from None
    return corpora
