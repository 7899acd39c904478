"""Which words a system gets right: precision and recall by how often a word occurs in training.

    python benchmarks/word_recall.py [--words the,a,an] TRAIN REFERENCE NAME=FILE[,FILE...] ...

TRAIN is the target side of the training text. Several files of a system (its seeds) are counted together. A word is
found as often as it stands in both the translation and the reference of a line. `--words` gives some words a column
of their own, in whatever case they stand; the last column is the number of words beside the references'.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable

from cbmi.data.text import read_lines

EDGES = (0, 1, 10, 100, 1_000, 10_000)  # each bin goes up to the next
CHOSEN = -1  # the bin of words asked for by name
WORD = re.compile(r"\w+|[^\w\s]")


def words(line: str) -> Counter[str]:
    return Counter(WORD.findall(line))


def counts_of(path: str) -> Counter[str]:
    """How often each word occurs in a text."""
    counts: Counter[str] = Counter()
    for line in read_lines(path, Counter()):
        counts.update(WORD.findall(line))
    return counts


def bin_of(count: int) -> int:
    return max(edge for edge in EDGES if count >= edge)


def tally(
    translations: Iterable[str], references: Iterable[str], counts: Counter[str], chosen: frozenset[str]
) -> dict[int, list[int]]:
    """By bin: words found, words of the references, words of the translations; those chosen also by themselves."""
    result = {edge: [0, 0, 0] for edge in (*EDGES, CHOSEN)}
    for translation, reference in zip(translations, references, strict=True):
        ours, theirs = words(translation), words(reference)
        for column, group in enumerate((ours & theirs, theirs, ours)):
            for word, number in group.items():
                result[bin_of(counts[word])][column] += number
                if word.lower() in chosen:
                    result[CHOSEN][column] += number
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("reference")
    parser.add_argument("systems", nargs="+", metavar="NAME=FILE[,FILE...]")
    parser.add_argument("--words", default="", help="separated by commas")
    options = parser.parse_args()
    counts = counts_of(options.train)
    references = list(read_lines(options.reference, Counter()))
    chosen = frozenset(options.words.lower().split(",")) - {""}
    columns = {f"{low:,}" if low == 0 else f"{low:,}+": (low,) for low in EDGES} | {"all": EDGES}
    if chosen:
        columns[", ".join(sorted(chosen))] = (CHOSEN,)
    print("| recall (precision), % | " + " | ".join(columns) + " | length |\n|---|" + "--:|" * (len(columns) + 1))
    size = tally(references, references, counts, chosen)
    cells = [f"{sum(size[edge][0] for edge in edges):,}" for edges in columns.values()]
    print("| words of the references | " + " | ".join(cells) + " | |")
    for system in options.systems:
        name, files = system.split("=", 1)
        runs = [tally(read_lines(file, Counter()), references, counts, chosen) for file in files.split(",")]
        sums = [[sum(run[edge][i] for run in runs for edge in edges) for i in range(3)] for edges in columns.values()]
        cells = [
            f"{100 * found / max(theirs, 1):.1f} ({100 * found / max(ours, 1):.1f})" for found, theirs, ours in sums
        ]
        _, theirs, ours = sums[list(columns).index("all")]
        print(f"| {name} | " + " | ".join(cells) + f" | {100 * ours / max(theirs, 1):.1f} |")


if __name__ == "__main__":
    main()
