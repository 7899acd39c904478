"""How CBMI weighs words: mean CBMI and token weight by how often a word occurs in training, and of words by name.

    cbmi score RUN --source SOURCE --target TARGET --output SCORES
    python benchmarks/word_weights.py [--words the,a,an] TRAIN SCORES

TRAIN is the target side of the training text. A word's CBMI is the sum over its pieces, its weight their mean;
punctuation around a word is left out of its name.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict

from word_recall import EDGES, bin_of, counts_of

from cbmi.analysis.words import EDGES as AROUND
from cbmi.analysis.words import means, sums, words
from cbmi.data.text import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("scores")
    parser.add_argument("--words", default="", help="separated by commas")
    options = parser.parse_args()
    counts = counts_of(options.train)
    chosen = [word for word in options.words.lower().split(",") if word]
    groups: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in read_lines(options.scores, Counter()):
        record = json.loads(line)
        joined = words(record["pieces"])
        values = zip(sums(joined, record["cbmi"]), means(joined, record["token_weights"]), strict=True)
        for word, value in zip(joined, values, strict=True):
            name = AROUND.sub("", word.text)
            if word.control or not name:
                continue
            groups["all"].append(value)
            groups[f"{bin_of(counts[name]):,}+"].append(value)
            if name.lower() in chosen:
                groups[name.lower()].append(value)
    print("| words | number | CBMI, nats | token weight | weighed down |\n|---|--:|--:|--:|--:|")
    for name in [*(f"{edge:,}+" for edge in EDGES), "all", *chosen]:
        if values := groups[name]:
            cbmi, weight = (sum(column) / len(values) for column in zip(*values, strict=True))
            down = sum(weight < 1 for _, weight in values) / len(values)
            print(f"| {name} | {len(values):,} | {cbmi:.2f} | {weight:.3f} | {100 * down:.0f} % |")


if __name__ == "__main__":
    main()
