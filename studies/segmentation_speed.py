"""How fast BPE-dropout is on one core, beside sentencepiece's own sampling.

    python studies/segmentation_speed.py SOURCE TARGET [--lines 50000] [--samples 8] [--size 16000]

The vocabulary is learnt from both files. Each side is segmented on its own; a pair takes the time
of both.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from itertools import islice

from program import run

from cbmi.data.lines import read_lines
from cbmi.data.segmentations import WordSampler
from cbmi.data.vocabulary import Vocabulary, learn
from cbmi.data_settings import SegmentationSettings
from cbmi.reporting.tables import markdown_table


def seconds_of_ours(vocabulary: Vocabulary, lines: list[str], samples: int) -> float:
    """Per sample."""
    sampler = WordSampler(vocabulary, SegmentationSettings(samples=samples), "source")
    begun = time.perf_counter()
    for _ in sampler.segmentations(lines, 0):
        pass
    return (time.perf_counter() - begun) / samples


def seconds_of_sentencepiece(vocabulary: Vocabulary, lines: list[str]) -> float:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    begun = time.perf_counter()
    processor.encode(lines, enable_sampling=True, alpha=0.1, nbest_size=-1, num_threads=1)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs=2, metavar="FILE")
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--size", type=int, default=16_000)
    options = parser.parse_args()
    texts = []
    for file in options.files:
        first_lines = islice(read_lines(file, Counter()), options.lines)
        texts.append([line for line in first_lines if line.strip()])
    vocabulary = learn([line for text in texts for line in text], options.size)
    rows = []
    totals = {"ours": 0.0, "theirs": 0.0}
    for file, lines in zip(options.files, texts, strict=True):
        ours = seconds_of_ours(vocabulary, lines, options.samples)
        theirs = seconds_of_sentencepiece(vocabulary, lines)
        totals["ours"] += ours
        totals["theirs"] += theirs
        rows.append([file, f"{len(lines) / ours:,.0f}", f"{len(lines) / theirs:,.0f}"])
    pairs = min(len(text) for text in texts)
    rows.append(["pairs", f"{pairs / totals['ours']:,.0f}", f"{pairs / totals['theirs']:,.0f}"])
    print(markdown_table(["lines per second", "ours", "sentencepiece"], rows, "lrr"))


if __name__ == "__main__":
    run(main)
