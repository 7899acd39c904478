"""`cbmi inspect`: pairs as a page of heat maps, two models side by side if wanted, and figures for papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from cbmi.analysis.drawing import check_plotting, write_pictures
from cbmi.analysis.figures import make_figures
from cbmi.analysis.heatmap import write_page
from cbmi.analysis.score import score_pairs
from cbmi.analysis.words import repeats, sums, words
from cbmi.data.text import check_pairs, count_lines, read_pairs, report_repaired
from cbmi.errors import UserError
from cbmi.progress import bar, say
from cbmi.training.trained import Trained

Pair = tuple[str, str]


def read_some(files: Sequence[str], limit: int) -> list[Pair]:
    """The first pairs of a parallel corpus; says how many there are beyond them."""
    counts: Counter[str] = Counter()
    pairs = list(islice(read_pairs(files, counts), limit))
    report_repaired(counts)
    if not pairs:
        raise UserError(f"{' and '.join(files)}: there is nothing to show.")
    lines = [count_lines(file) for file in files]
    if None in lines:  # a pipe, of which no more is known
        return pairs
    if len(set(lines)) > 1:
        check_pairs(files)  # which says what is wrong
    if lines[0] > len(pairs):
        say(f"Shows the first {len(pairs):,} of {lines[0]:,} pairs; --limit takes more.")
    return pairs


def inspect_pairs(
    models: Sequence[Trained], pairs: Sequence[Pair], page: Path, figures: Path | None, pair: int | None
) -> None:
    """Write the page of the pairs, and the first model's figures into a folder; `pair`: which to draw, from 1."""
    check_plotting()
    if pair is not None and not 1 <= pair <= len(pairs):
        raise UserError(f"--pair: {pair} is not between 1 and {len(pairs)}, the number of pairs.")
    scored = []
    for model in models:
        with bar("Scoring", len(pairs), "pairs") as progress:
            scored.append(score_pairs(model, pairs, progress.advance))
        model.report_truncated()
    records = scored[0]
    if len(scored) > 1:
        records = [one | {"other": other} for one, other in zip(*scored, strict=True)]
    names = [str(model.run.path) for model in models]
    write_page(records, page, "What the translation owes to the source", " and ".join(names), models=names)
    say(f"{page}: {len(pairs):,} pair{'s' if len(pairs) > 1 else ''}")
    if figures:
        pictures = make_figures(models[0], records, pair or telling(records))
        write_pictures(figures, pictures)
        whose = f" of {names[0]}" if len(models) > 1 else ""
        say(f"{figures}: {', '.join(pictures)}{whose}, each as SVG and PNG")


def telling(records: Sequence[dict[str, Any]]) -> int:
    """The number, from 1, of the sentence for the paper's first figure: a word occurs twice, with the most different
    CBMI. It is one of not too many words, and its translation belongs to it. The first where there is none."""

    def difference(record: dict[str, Any]) -> float:
        joined = words(record["pieces"])
        fit = len(joined) <= 25 and record["sentence_cbmi"] > 0
        found = repeats(joined, sums(joined, record["cbmi"])) if fit else []
        return found[0][0] if found else 0.0

    return 1 + max(range(len(records)), key=lambda place: difference(records[place]))
