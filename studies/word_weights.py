"""How CBMI weights words: mean CBMI and token weight by how often a word occurs in training.

    cbmi score RUN --source SOURCE --target TARGET --output SCORES
    python studies/word_weights.py [--words the,a,an] TRAIN SCORES

TRAIN is the target side of the training text. `--words` gives some words a row of their own. A
word's CBMI is the sum over its pieces, its weight their mean. Punctuation around a word is not part
of its name.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from program import run
from word_recall import EDGES, bin_of, bin_title, counts_of

from cbmi.data.lines import read_lines
from cbmi.data.words import OUTER_PUNCTUATION, means, sums, words
from cbmi.errors import UserError
from cbmi.reporting.tables import markdown_table


class WordValue(NamedTuple):
    name: str
    cbmi: float  # nats
    weight: float


def words_of(line: str) -> list[WordValue]:
    """The words of a line of `cbmi score`."""
    try:
        record = json.loads(line)
        joined = words(record["pieces"])
        cbmi = sums(joined, record["cbmi"])
        weights = means(joined, record["token_weights"])
    except (ValueError, TypeError, KeyError):
        raise UserError(f"'{line:.40}' is not a line of `cbmi score` with CBMI.") from None
    found = []
    for place, word in enumerate(joined):
        name = OUTER_PUNCTUATION.sub("", word.text)
        if name and not word.control:
            found.append(WordValue(name, cbmi[place], weights[place]))
    return found


def table_row(name: str, values: Sequence[WordValue]) -> list[str]:
    number = len(values)
    cbmi = sum(value.cbmi for value in values) / number
    weight = sum(value.weight for value in values) / number
    below_one = sum(value.weight < 1 for value in values) / number
    return [name, f"{number:,}", f"{cbmi:.2f}", f"{weight:.3f}", f"{100 * below_one:.0f}%"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train")
    parser.add_argument("scores")
    parser.add_argument("--words", default="", help="separated by commas")
    options = parser.parse_args()
    counts = counts_of(options.train)
    chosen = [word for word in options.words.lower().split(",") if word]
    groups: defaultdict[str, list[WordValue]] = defaultdict(list)
    for line in read_lines(options.scores, Counter()):
        for value in words_of(line):
            groups["all"].append(value)
            groups[bin_title(bin_of(counts[value.name]))].append(value)
            if value.name.lower() in chosen:
                groups[value.name.lower()].append(value)
    rows = []
    for name in [*(bin_title(edge) for edge in EDGES), "all", *chosen]:
        if groups[name]:
            rows.append(table_row(name, groups[name]))
    header = ["words", "number", "CBMI, nats", "token weight", "down-weighted"]
    print(markdown_table(header, rows, align="lrrrr"))


if __name__ == "__main__":
    run(main)
