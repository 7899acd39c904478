"""How well a model's scores tell human translations from machine translations in its corpus.

    python studies/natural_noise.py RUN KINDS OUT [--device cuda:0]

KINDS has a line for each line of the run's training text: `ht` for a human translation or `mt` for
a machine translation, a tab, and the page that the pair is from. For every collection of pages (the
first folder of their names) that has both, a table says how well each signal ranks human above
machine translations (ROC AUC; 0.5 is chance). It is also in OUT/natural_noise.json, and the scores
stay in OUT/scores, so that a second call need not compute them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from filtering import Pair, model_scores, signals
from program import run

from cbmi.data.lines import read_lines
from cbmi.data.text import read_corpora
from cbmi.errors import UserError
from cbmi.evaluation.ranking import roc_auc
from cbmi.files import to_json, write_atomically
from cbmi.reporting.tables import markdown_table
from cbmi.training.run import RunDirectory

HUMAN = "ht"
MACHINE = "mt"
ALL = "(all)"
# Rules that drop pairs are not asked here: both kinds are translations.
SIGNALS = ("CBMI", "likelihood", "length ratio", "random")

Row = dict[str, float]  # pairs of both kinds, and the AUC of every signal


def read_kinds(file: str) -> tuple[np.ndarray, np.ndarray]:
    """(pairs,) whether each is a human translation, and the collection it is from."""
    is_human = []
    collections = []
    for number, line in enumerate(read_lines(file, Counter()), start=1):
        kind, _, page = line.partition("\t")
        if kind not in (HUMAN, MACHINE) or not page:
            raise UserError(f"{file}:{number}: should be {HUMAN} or {MACHINE}, a tab and a page.")
        is_human.append(kind == HUMAN)
        collections.append(page.split("/")[0])
    return np.array(is_human), np.array(collections)


def ranked(
    values: Mapping[str, np.ndarray], is_human: np.ndarray, collections: np.ndarray
) -> dict[str, Row]:
    """By collection that has both kinds, and over all of the corpus."""
    found = {}
    for name in [ALL, *sorted(set(collections))]:
        own = np.full(len(is_human), True) if name == ALL else collections == name
        human = own & is_human
        machine = own & ~is_human
        if not human.any() or not machine.any():
            continue
        row = {HUMAN: float(human.sum()), MACHINE: float(machine.sum())}
        for signal in SIGNALS:
            row[signal] = roc_auc(values[signal][human], values[signal][machine])
        found[name] = row
    return found


def table(found: Mapping[str, Row]) -> str:
    rows = []
    for name, row in found.items():
        counts = [f"{row[kind]:,.0f}" for kind in (HUMAN, MACHINE)]
        rows.append([name, *counts, *(f"{row[signal]:.3f}" for signal in SIGNALS)])
    header = ["AUC", "human", "machine", *SIGNALS]
    return markdown_table(header, rows, align="l" + "r" * (len(header) - 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("kinds")
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    config = RunDirectory(options.run).config()
    if len(config.data.train) != 1:
        raise UserError(f"{options.run}: the run should be trained on one corpus.")
    files: Sequence[str] = config.data.train[0].files
    is_human, collections = read_kinds(options.kinds)
    pairs: list[Pair] = list(read_corpora([files], config.data.languages, Counter()))
    if len(pairs) != len(is_human):
        raise UserError(
            f"{options.kinds}: it has {len(is_human):,} lines, but the training text of "
            f"{options.run} has {len(pairs):,} pairs."
        )
    scored = model_scores(options.run, files, options.out / "scores", options.device)
    found = ranked(signals(pairs, scored, seed=1), is_human, collections)
    write_atomically(options.out / "natural_noise.json", to_json(found))
    print(table(found))


if __name__ == "__main__":
    run(main)
