"""Parallel text as a stream of pairs: aligned files, or one file of another format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from cbmi.data.compressed import OnRead, suffix_of
from cbmi.data.formats import has_both_sides, read_entries
from cbmi.data.formats.columns import named_columns
from cbmi.data.formats.entry import REASONS, Languages
from cbmi.data.lines import count_lines, read_lines, report_repaired
from cbmi.errors import UserError
from cbmi.progress import counted, say

Pair = tuple[str, str]  # source, target


def pair_files(source: str, target: str | None, option: str = "--target") -> tuple[str, ...]:
    """The files of a parallel corpus: two, or one that holds both sides."""
    both_sides = has_both_sides(source)
    if target is not None:
        if both_sides:
            raise UserError(f"{option}: {source} has both sides; leave out {target}.")
        return source, target
    if not both_sides:
        raise UserError(f"{option}: name the translations of {source}; it holds one side only.")
    return (source,)


def read_corpora(
    corpora: Iterable[Sequence[str]], languages: Languages, counts: Counter[str]
) -> Iterator[Pair]:
    """Source and target lines of several corpora, one after the other."""
    for paths in corpora:
        yield from read_pairs(paths, languages, counts)


def read_pairs(
    paths: Sequence[str],
    languages: Languages,
    counts: Counter[str],
    on_read: OnRead | None = None,
    skipped: list[int] | None = None,
) -> Iterator[Pair]:
    """Source and target lines, from two aligned files or from one file that holds both sides.

    Lines are as `decode_lines` gives them. Entries of one file that are not pairs are left out,
    and counted in `counts` by reason; `skipped` gets the number of pairs before each of them.
    """
    if len(paths) == 1:
        yield from _read_file(paths[0], languages, counts, on_read, skipped)
        return
    source_path, target_path = paths
    sources = read_lines(source_path, counts, on_read)
    targets = read_lines(target_path, counts, on_read)
    for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
        # zip_longest gives None on the side that has ended.
        if source is None:
            more = sum(1 for _ in targets)
            raise _unequal(paths, number - 1, number + more)
        if target is None:
            more = sum(1 for _ in sources)
            raise _unequal(paths, number + more, number - 1)
        yield source, target


def _read_file(
    path: str,
    languages: Languages,
    counts: Counter[str],
    on_read: OnRead | None,
    skipped: list[int] | None,
) -> Iterator[Pair]:
    if is_plain(path, languages):
        yield from _read_columns(path, counts, on_read)
        return
    pairs = 0
    for entry in read_entries(path, languages, on_read=on_read):
        if entry.left_out is None:
            pairs += 1
            yield entry.source, entry.target
            continue
        counts[entry.left_out] += 1
        if skipped is not None:
            skipped.append(pairs)


def is_plain(path: str, languages: Languages) -> bool:
    """Whether a file is lines of text: of one side, or of both with a tab between them.

    A .tsv whose first line names the columns of both languages is a table.
    """
    if suffix_of(path) != ".tsv":
        return not has_both_sides(path)
    first = next(read_lines(path, Counter()), "")
    return named_columns(first.split("\t"), languages) is None


def left_out_of(counts: Counter[str]) -> str:
    """What `read_pairs` left out, as text: "3 fuzzy, 1 untranslated"; empty if nothing."""
    shown = []
    for reason in REASONS:
        if counts[reason]:
            shown.append(f"{counts[reason]:,} {reason}")
    return ", ".join(shown)


def report_counts(counts: Counter[str]) -> None:
    """Say what `read_pairs` repaired and left out, if anything."""
    report_repaired(counts)
    left_out = left_out_of(counts)
    if left_out:
        say(f"Left out: {left_out}.")


def check_pairs(paths: Sequence[str], languages: Languages) -> int:
    """Read a parallel corpus to its end; returns the number of pairs.

    A side that is longer than the other, or a line that is not UTF-8, is an error.
    """
    return sum(1 for _ in read_pairs(paths, languages, Counter()))


def no_pairs(paths: Sequence[str], languages: Languages) -> str:
    """Why there is nothing in a corpus, as a clause."""
    counts: Counter[str] = Counter()
    for _ in read_pairs(paths, languages, counts):
        return "there is no pair with text on both sides"
    left_out = left_out_of(counts)
    if left_out:
        return f"there is no pair of {languages[0]} and {languages[1]} in it: {left_out}"
    return "there is no text in them" if len(paths) > 1 else "there is no text in it"


def count_pairs(paths: Sequence[str], languages: Languages) -> int | None:
    """How many pairs `read_pairs` will give, so that progress can show an end.

    None where it would take long to find out, and for a pipe.
    """
    return count_lines(paths[0]) if is_plain(paths[0], languages) else None


def _unequal(paths: Sequence[str], source_lines: int, target_lines: int) -> UserError:
    return UserError(
        f"{paths[0]} has {counted(source_lines, 'line')} but {paths[1]} has {target_lines:,}: "
        "the two sides of a parallel corpus are aligned line by line."
    )


def _read_columns(path: str, counts: Counter[str], on_read: OnRead | None) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path, counts, on_read), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number}: {len(columns) - 1} tabs where there should be one, "
                "between source and target (or name two files, one for each)."
            )
        yield columns[0], columns[1]


def is_copy(pair: Pair) -> bool:
    """Whether the target equals the source, except for spacing."""
    return pair[0].split() == pair[1].split()
