"""BMI by dictionaries against ours, on one generated corpus, in one process; then ours alone on larger ones.

    python benchmarks/bmi.py [--pairs 100000] [--large 1000000] [--words 26] [--vocabulary 32000]

The dictionary version does what the method's public script does: two passes over every pair of words of every
sentence pair, with counts in Python dictionaries. Prints a Markdown table with times, peak memory and disk space,
and an extrapolation to WMT14's 4.5 million pairs.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from cbmi.data.bmi import token_bmi
from cbmi.data.corpus import Corpus
from cbmi.data.statistics import Statistics
from cbmi.data.vocabulary import EOS, UNKNOWN
from cbmi.files import to_json


def write_corpus(folder: Path, pairs: int, words: int, vocabulary: int, seed: int = 1) -> Corpus:
    """A prepared corpus of Zipf-distributed pieces; each source piece brings its target piece along."""
    random = np.random.default_rng(seed)
    shares = 1 / np.arange(1, vocabulary - UNKNOWN)
    steps = np.cumsum(shares / shares.sum())
    lengths = np.maximum(random.poisson(words, pairs), 1)
    sides = {"source": np.searchsorted(steps, random.random(lengths.sum())).clip(max=len(steps) - 1)}
    free = np.searchsorted(steps, random.random(lengths.sum())).clip(max=len(steps) - 1)
    sides["target"] = np.where(random.random(lengths.sum()) < 0.5, sides["source"], free)
    folder.mkdir(parents=True)
    offsets = np.concatenate([[0], np.cumsum(lengths + 1)])
    for name, pieces in sides.items():
        ids = np.full(offsets[-1], EOS, np.uint16)
        ids[np.arange(len(pieces)) + np.repeat(np.arange(pairs), lengths)] = pieces + UNKNOWN + 1
        ids.tofile(folder / f"{name}.ids")
        offsets.tofile(folder / f"{name}.offsets")
    np.arange(pairs).tofile(folder / "lines")
    tokens = {name: int(offsets[-1]) for name in sides}
    (folder / "meta.json").write_text(to_json({"pairs": pairs, "dtype": "uint16", "tokens": tokens}))
    return Corpus(folder)


def by_dictionaries(corpus: Corpus) -> np.ndarray:
    """BMI of every target token (0 for the end of sentence), the plain way."""
    sides = []
    for side in (corpus.source, corpus.target):
        ids, offsets = side.ids.tolist(), side.offsets.tolist()
        sides.append([ids[a : b - 1] for a, b in pairwise(offsets)])
    of_source: Counter[int] = Counter()
    of_target: Counter[int] = Counter()
    of_both: dict[tuple[int, int], int] = {}
    for source, target in zip(*sides, strict=True):
        source_types, target_types = set(source), set(target)
        of_source.update(source_types)
        of_target.update(target_types)
        for x in source_types:
            for y in target_types:
                of_both[x, y] = of_both.get((x, y), 0) + 1
    result = []
    for source, target in zip(*sides, strict=True):
        for y in target:
            total = 0.0
            for x in source:
                total += math.log(1 + len(corpus) * of_both[x, y] / (of_source[x] * of_target[y]))
            result.append(total / len(source))
        result.append(0.0)
    return np.array(result)


def by_products(corpus: Corpus, vocabulary: int) -> np.ndarray:
    values = np.zeros(len(corpus.target.ids))
    for places, part in token_bmi(corpus, (vocabulary, vocabulary), quiet=True):
        values[places] = part
    return values


def stored(folder: Path, vocabulary: int, answer: multiprocessing.SimpleQueue) -> None:
    """Time, peak memory and disk space of what preparation does; in a process of its own, for its memory."""
    corpus = Corpus(folder)
    begun = time.perf_counter()
    array = Statistics(corpus, (vocabulary, vocabulary)).bmi()
    answer.put((time.perf_counter() - begun, _peak(), array.nbytes))


def _peak() -> float:
    """The most memory that this process has had so far, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--large", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--words", type=int, default=26)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    options = parser.parse_args()
    shape = (options.words, options.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "train", options.pairs, *shape)
        begun = time.perf_counter()
        ours = by_products(corpus, options.vocabulary)
        between = time.perf_counter()
        reference = by_dictionaries(corpus)
        seconds = (time.perf_counter() - between, between - begun)
    print(f"largest difference {np.abs(ours - reference).max():.1e}; {seconds[0] / seconds[1]:.0f} times faster\n")
    print("| pairs | way | seconds | peak memory, GiB | result on disk, GB |\n|---|---|---|---|---|")
    print(f"| {options.pairs:,} | dictionaries | {seconds[0]:.1f} | | |")
    print(f"| {options.pairs:,} | ours | {seconds[1]:.2f} | | |")
    context = multiprocessing.get_context("spawn")
    for pairs in [options.pairs, *options.large]:
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder) / "train", pairs, *shape)
            answer = context.SimpleQueue()
            process = context.Process(target=stored, args=(Path(folder) / "train", options.vocabulary, answer))
            process.start()
            process.join()
            took, peak, disk = answer.get()
        print(f"| {pairs:,} | ours, stored | {took:.1f} | {peak:.2f} | {disk / 1e9:.3f} |")
    factor = 4.5e6 / pairs
    figures = f"{took * factor:.0f} | {peak * factor:.1f} | {disk * factor / 1e9:.2f}"
    print(f"| 4,500,000 (extrapolated) | ours, stored | {figures} |")


if __name__ == "__main__":
    main()
