"""`cbmi inspect`: pairs as a page of heat maps, by one model or two, and figures for papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from cbmi.data.formats.entry import Languages
from cbmi.data.lines import count_lines
from cbmi.data.text import Pair, check_pairs, is_plain, read_pairs, report_counts
from cbmi.data.words import repeats, sums
from cbmi.errors import UserError
from cbmi.inference.base import Model
from cbmi.inference.model import TrainedModel
from cbmi.inference.scoring import ScoredPair, score_pairs, without_cbmi
from cbmi.inspection.figures import cbmi_figures
from cbmi.inspection.heatmap import HeatmapEntry, write_heatmap
from cbmi.progress import bar, say
from cbmi.reporting.drawing import check_plotting, write_pictures

MOST_WORDS = 25  # of a sentence that `most_telling_pair` chooses


def read_some(files: Sequence[str], languages: Languages, limit: int) -> list[Pair]:
    """The first pairs of a parallel corpus, at most `limit`; says so if there are more."""
    counts: Counter[str] = Counter()
    remaining = read_pairs(files, languages, counts)
    pairs = list(islice(remaining, limit))
    if not pairs:
        raise UserError(f"{' and '.join(files)}: there is nothing to show.")
    if not is_plain(files[0], languages):
        total = len(pairs) + sum(1 for _ in remaining)
        report_counts(counts)
        _report_more(len(pairs), total)
        return pairs
    report_counts(counts)
    lines = []
    for file in files:
        count = count_lines(file)
        if count is None:  # a pipe, of which no more is known
            return pairs
        lines.append(count)
    if len(set(lines)) > 1:
        check_pairs(files, languages)  # raises an error that says what is wrong
    _report_more(len(pairs), lines[0])
    return pairs


def _report_more(shown: int, total: int) -> None:
    if total > shown:
        say(f"Showing the first {shown:,} of {total:,} pairs; raise --limit to see more.")


def inspect_pairs(
    models: Sequence[Model],
    pairs: Sequence[Pair],
    page: Path,
    figures: Path | None,
    pair: int | None,
) -> None:
    """Write the page of the pairs by one model or two, and figures of the first one.

    The figures go into the folder `figures`, if it is given. `pair` is the number, from 1, of the
    pair that has a figure of its own; None: `most_telling_pair` chooses.
    """
    check_plotting()
    if pair is not None and not 1 <= pair <= len(pairs):
        raise UserError(f"--pair: {pair} is not between 1 and {len(pairs)}, the number of pairs.")
    first = models[0]
    if figures is not None and not isinstance(first, TrainedModel):
        raise UserError(f"--figures: {first.path} is an exported model; use the run itself.")
    if figures is not None and not first.has_language_model:
        raise UserError(
            f"--figures: {first.path} has no language model, and the figures are of CBMI: "
            f"{first.language_model_remedy}."
        )
    for model in models:
        if not model.has_language_model:
            say(without_cbmi(model))
    scored = [_scored_by(model, pairs) for model in models]
    names = [str(model.path) for model in models]
    has_cbmi = any(model.has_language_model for model in models)
    write_heatmap(
        _entries(scored),
        page,
        "What the translation owes to the source" if has_cbmi else "How likely the translation is",
        " and ".join(names),
        models=names,
    )
    say(f"{page}: {len(pairs):,} {'pair' if len(pairs) == 1 else 'pairs'}")
    if figures is None or not isinstance(first, TrainedModel):
        return
    pictures = cbmi_figures(first, scored[0], pair or most_telling_pair(scored[0]))
    write_pictures(figures, pictures)
    whose = f" of {names[0]}" if len(models) > 1 else ""
    say(f"{figures}: {', '.join(pictures)}{whose}, each as SVG and PNG")


def _scored_by(model: Model, pairs: Sequence[Pair]) -> list[ScoredPair]:
    with bar("Scoring", len(pairs), "pairs") as progress:
        scored = score_pairs(model, pairs, progress.advance)
    model.report_truncated()
    return scored


def _entries(scored: Sequence[Sequence[ScoredPair]]) -> list[HeatmapEntry]:
    """The pairs by one model, or by two beside each other."""
    if len(scored) == 1:
        return [HeatmapEntry(pair) for pair in scored[0]]
    first, second = scored
    entries = []
    for pair, other in zip(first, second, strict=True):
        entries.append(HeatmapEntry(pair, other=other))
    return entries


def most_telling_pair(pairs: Sequence[ScoredPair]) -> int:
    """The number, from 1, of the pair for the paper's first figure.

    In it a word occurs twice, with the most different CBMI. It has not too many words, and its
    translation belongs to it. If there is no such pair, it is the first.
    """
    differences = [_largest_difference(pair) for pair in pairs]
    return 1 + differences.index(max(differences))


def _largest_difference(pair: ScoredPair) -> float:
    """The largest difference of CBMI between occurrences of one word; 0 if the pair is unfit."""
    words = pair.words
    belongs = pair.sentence_cbmi > 0  # false for NaN, too
    if len(words) > MOST_WORDS or not belongs:
        return 0.0
    found = repeats(words, sums(words, pair.cbmi.tolist()))
    return found[0][0] if found else 0.0
