"""Which words a system gets right: precision and recall by how often a word occurs in training.

    python studies/word_recall.py [--words the,a,an] TRAIN REFERENCE NAME=FILE[,FILE...] ...

TRAIN is the target side of the training text. Several files of a system (its seeds) are counted
together. A word is found as often as it stands in both the translation and the reference of a line.
`--words` gives some words a column of their own, whatever their case. The last column is the number
of words as a percentage of the references'.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from program import run

from cbmi.data.lines import read_lines
from cbmi.errors import UserError
from cbmi.progress import counted
from cbmi.reporting.tables import markdown_table

EDGES = (0, 1, 10, 100, 1_000, 10_000)  # occurrences in training; each bin goes up to the next
CHOSEN = -1  # the bin of words asked for by name
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass
class WordCounts:
    """Words of one bin."""

    found: int = 0  # in the translations and in the references
    reference: int = 0
    translated: int = 0

    def add(self, other: WordCounts) -> None:
        self.found += other.found
        self.reference += other.reference
        self.translated += other.translated

    def recall_and_precision(self) -> str:
        """In per cent; 0 if there are no words."""
        recall = 100 * self.found / max(self.reference, 1)
        precision = 100 * self.found / max(self.translated, 1)
        return f"{recall:.1f} ({precision:.1f})"

    def length(self) -> str:
        """Words of the translations, in per cent of the references'."""
        return f"{100 * self.translated / max(self.reference, 1):.1f}"


Tally = dict[int, WordCounts]  # by bin


def words(line: str) -> Counter[str]:
    return Counter(WORD.findall(line))


def counts_of(path: str) -> Counter[str]:
    """How often each word occurs in a text."""
    counts: Counter[str] = Counter()
    for line in read_lines(path, Counter()):
        counts.update(WORD.findall(line))
    return counts


def bin_of(count: int) -> int:
    """The largest edge that a count reaches."""
    return max(edge for edge in EDGES if count >= edge)


def bin_title(edge: int) -> str:
    """The counts in the bin that begins at an edge: "0", "1–9", …, "10,000+"."""
    place = EDGES.index(edge)
    if place == len(EDGES) - 1:
        return f"{edge:,}+"
    last = EDGES[place + 1] - 1
    return f"{edge:,}" if last == edge else f"{edge:,}–{last:,}"


def tally(
    translations: Iterable[str],
    references: Iterable[str],
    counts: Counter[str],
    chosen: frozenset[str],
) -> Tally:
    """Words by bin; those that were asked for are counted a second time, as `CHOSEN`."""
    result = {edge: WordCounts() for edge in (*EDGES, CHOSEN)}

    def bins_of(word: str) -> list[WordCounts]:
        bins = [result[bin_of(counts[word])]]
        if word.lower() in chosen:
            bins.append(result[CHOSEN])
        return bins

    for translation, reference in zip(translations, references, strict=True):
        ours = words(translation)
        theirs = words(reference)
        for word, number in ours.items():
            for own in bins_of(word):
                own.translated += number
                own.found += min(number, theirs[word])
        for word, number in theirs.items():
            for own in bins_of(word):
                own.reference += number
    return result


def columns(chosen: frozenset[str]) -> dict[str, Sequence[int]]:
    """The table's columns by their title: the bins that each one sums up."""
    titles: dict[str, Sequence[int]] = {}
    for low in EDGES:
        titles[bin_title(low)] = [low]
    titles["all"] = EDGES
    if chosen:
        titles[", ".join(sorted(chosen))] = [CHOSEN]
    return titles


def summed(tallies: Iterable[Tally], bins: Sequence[int]) -> WordCounts:
    total = WordCounts()
    for one in tallies:
        for edge in bins:
            total.add(one[edge])
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train")
    parser.add_argument("reference")
    parser.add_argument("systems", nargs="+", metavar="NAME=FILE[,FILE...]")
    parser.add_argument("--words", default="", help="separated by commas")
    options = parser.parse_args()
    counts = counts_of(options.train)
    references = list(read_lines(options.reference, Counter()))
    chosen = frozenset(options.words.lower().split(",")) - {""}
    bins_of_columns = columns(chosen)

    of_references = tally(references, references, counts, chosen)
    row = ["words of the references"]
    for bins in bins_of_columns.values():
        row.append(f"{summed([of_references], bins).reference:,}")
    rows = [[*row, ""]]
    for system in options.systems:
        name, equals, files = system.partition("=")
        if not equals:
            raise UserError(
                f"{system}: should be NAME=FILE, or NAME=FILE,FILE with a file per seed."
            )
        tallies = []
        for file in files.split(","):
            outputs = list(read_lines(file, Counter()))
            if len(outputs) != len(references):
                raise UserError(
                    f"{file} has {counted(len(outputs), 'line')}, but {options.reference} has "
                    f"{len(references):,}."
                )
            tallies.append(tally(outputs, references, counts, chosen))
        row = [name]
        for bins in bins_of_columns.values():
            row.append(summed(tallies, bins).recall_and_precision())
        row.append(summed(tallies, EDGES).length())
        rows.append(row)
    header = ["recall (precision), %", *bins_of_columns, "length"]
    print(markdown_table(header, rows, align="l" + "r" * (len(header) - 1)))


if __name__ == "__main__":
    run(main)
