"""BMI with dictionaries against ours on one generated corpus, then ours alone on larger ones.

    python benchmarks/bmi.py [--pairs 100000] [--large 1000000] [--words 26] [--vocabulary 32000]

The dictionary version does what the method's public script does: two passes over every pair of
words of every sentence pair, with counts in Python dictionaries. Prints a Markdown table of time,
peak memory and disk space, with an extrapolation to WMT14's 4.5 million pairs.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cbmi.data.bmi import token_bmi
from cbmi.data.corpus import Corpus, Side
from cbmi.data.statistics import Statistics
from cbmi.data.vocabulary import EOS, SPECIALS
from cbmi.experiments.benchmark import write_prepared

WMT14_PAIRS = 4_500_000


class Cost(NamedTuple):
    seconds: float
    peak_gib: float  # the most memory that the process had
    bytes_on_disk: int


def write_zipf_corpus(
    folder: Path, pairs: int, words: int, vocabulary: int, seed: int = 1
) -> Corpus:
    """A prepared corpus of Zipf-distributed pieces.

    Half of the target pieces, at random, are those of the source; the others are drawn for
    themselves.
    """
    random = np.random.default_rng(seed)
    shares = 1 / np.arange(1, vocabulary - SPECIALS + 1)
    cumulative = np.cumsum(shares / shares.sum())
    lengths = np.maximum(random.poisson(words, pairs), 1)
    total = int(lengths.sum())
    source = _draw_pieces(random, cumulative, total)
    unrelated = _draw_pieces(random, cumulative, total)
    target = np.where(random.random(total) < 0.5, source, unrelated)

    sides = {}
    for name, pieces in (("source", source), ("target", target)):
        ids = np.full(total + pairs, EOS, np.uint16)  # each sentence has its end
        # The ends of the sentences before it move each piece on by one.
        ids[np.arange(total) + np.repeat(np.arange(pairs), lengths)] = pieces + SPECIALS
        sides[name] = (ids, lengths + 1)
    write_prepared(folder, sides)
    return Corpus(folder)


def _draw_pieces(random: np.random.Generator, cumulative: np.ndarray, count: int) -> np.ndarray:
    """(count,) numbers of pieces, from 0; `cumulative`: their cumulative probabilities."""
    drawn = np.searchsorted(cumulative, random.random(count))
    return drawn.clip(max=len(cumulative) - 1)


def bmi_by_dictionaries(corpus: Corpus) -> np.ndarray:
    """(target tokens,) BMI, the plain way; 0 for the end of sentence."""
    sources = _sentences(corpus.source)
    targets = _sentences(corpus.target)
    source_counts: Counter[int] = Counter()
    target_counts: Counter[int] = Counter()
    pair_counts: dict[tuple[int, int], int] = {}
    for source, target in zip(sources, targets, strict=True):
        source_types = set(source)
        target_types = set(target)
        source_counts.update(source_types)
        target_counts.update(target_types)
        for x in source_types:
            for y in target_types:
                pair_counts[x, y] = pair_counts.get((x, y), 0) + 1
    values = []
    for source, target in zip(sources, targets, strict=True):
        for y in target:
            total = 0.0
            for x in source:
                expected = source_counts[x] * target_counts[y]
                total += math.log(1 + len(corpus) * pair_counts[x, y] / expected)
            values.append(total / len(source))
        values.append(0.0)
    return np.array(values)


def _sentences(side: Side) -> list[list[int]]:
    """The ids of each sentence, without its end."""
    ids = side.ids.tolist()
    return [ids[start : end - 1] for start, end in pairwise(side.offsets.tolist())]


def our_bmi(corpus: Corpus, vocabulary: int) -> np.ndarray:
    """(target tokens,) BMI by sparse products; 0 for the end of sentence."""
    bmi = np.zeros(len(corpus.target.ids))
    for places, values in token_bmi(corpus, (vocabulary, vocabulary), quiet=True):
        bmi[places] = values
    return bmi


def compare(pairs: int, words: int, vocabulary: int) -> None:
    """Both ways in this process, on one corpus; prints the first rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_zipf_corpus(Path(folder) / "train", pairs, words, vocabulary)
        start = time.perf_counter()
        ours = our_bmi(corpus, vocabulary)
        our_seconds = time.perf_counter() - start
        start = time.perf_counter()
        reference = bmi_by_dictionaries(corpus)
        reference_seconds = time.perf_counter() - start
    difference = np.abs(ours - reference).max()
    speed_up = reference_seconds / our_seconds
    print(f"largest difference {difference:.1e}; {speed_up:.0f} times faster\n")
    print("| pairs | method | seconds | peak memory, GiB | result on disk, GB |")
    print("|---|---|---|---|---|")
    print(f"| {pairs:,} | dictionaries | {reference_seconds:.1f} | | |")
    print(f"| {pairs:,} | ours | {our_seconds:.2f} | | |")


def measure_stored(pairs: int, words: int, vocabulary: int) -> Cost:
    """What preparation does, in a process of its own so that the peak memory is its own."""
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.SimpleQueue[Cost] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "train"
        write_zipf_corpus(folder, pairs, words, vocabulary)
        process = context.Process(target=store_bmi, args=(folder, vocabulary, answer))
        process.start()
        process.join()
    if process.exitcode != 0:
        sys.exit(f"the process for {pairs:,} pairs failed")
    return answer.get()


def store_bmi(folder: Path, vocabulary: int, answer: multiprocessing.SimpleQueue[Cost]) -> None:
    corpus = Corpus(folder)
    start = time.perf_counter()
    array = Statistics(corpus, (vocabulary, vocabulary)).bmi()
    seconds = time.perf_counter() - start
    answer.put(Cost(seconds, _peak_gib(), array.nbytes))


def _peak_gib() -> float:
    """The most memory that this process has had so far (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            kib = int(line.split()[1])
            return kib / 2**20
    return math.nan


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--large", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--words", type=int, default=26)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    options = parser.parse_args()
    compare(options.pairs, options.words, options.vocabulary)
    for pairs in [options.pairs, *options.large]:
        cost = measure_stored(pairs, options.words, options.vocabulary)
        figures = f"{cost.seconds:.1f} | {cost.peak_gib:.2f} | {cost.bytes_on_disk / 1e9:.3f}"
        print(f"| {pairs:,} | ours, stored | {figures} |")
    # In proportion to the last, largest corpus.
    factor = WMT14_PAIRS / pairs
    seconds = cost.seconds * factor
    memory = cost.peak_gib * factor
    disk = cost.bytes_on_disk * factor / 1e9
    print(
        f"| {WMT14_PAIRS:,} (extrapolated) | ours, stored "
        f"| {seconds:.0f} | {memory:.1f} | {disk:.2f} |"
    )


if __name__ == "__main__":
    main()
