"""`cbmi corpus convert`: files of translations → two aligned files of lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cbmi.data.compressed import OnRead
from cbmi.data.formats import has_both_sides, read_entries
from cbmi.data.formats.columns import Columns
from cbmi.data.formats.entry import REASONS, Entry, Languages, make_entry
from cbmi.data.text import is_plain, left_out_of, read_pairs
from cbmi.errors import UserError
from cbmi.files import atomic_files, check_outputs, disk_errors, to_json
from cbmi.progress import bar, counted, say

EXAMPLES = 5  # of each reason, in the report
SHOWN = 200  # characters of an example


class _Tally:
    """What became of the entries of an input."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pairs = 0
        self.left_out: Counter[str] = Counter()
        self.examples: dict[str, list[dict[str, Any]]] = {}

    def leave_out(self, entry: Entry, reason: str) -> None:
        self.left_out[reason] += 1
        some = self.examples.setdefault(reason, [])
        if len(some) < EXAMPLES:
            texts = {"source": entry.source[:SHOWN], "target": entry.target[:SHOWN]}
            some.append({"line": entry.line, **texts})

    def __str__(self) -> str:
        reasons = left_out_of(self.left_out)
        left_out = f"; left out: {reasons}" if reasons else ""
        return f"{self.name}: {counted(self.pairs, 'pair')}{left_out}"

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.name,
            "pairs": self.pairs,
            "left_out": {reason: self.left_out[reason] for reason in REASONS},
            "examples": self.examples,
        }


def convert(
    files: Sequence[str],
    languages: Languages,
    prefix: str,
    columns: Columns | None = None,
    report: bool = False,
) -> int:
    """Write PREFIX.SOURCE and PREFIX.TARGET, complete or not at all; returns the number of pairs.

    Files of one language are taken two by two, source and target. With `report`, PREFIX.report.json
    says what was left out and why, with examples.
    """
    source, target = languages
    if source == target:
        raise UserError(f"--target: source and target are both {source}.")
    for option, code in (("--source", source), ("--target", target)):
        if not re.fullmatch(r"[A-Za-z0-9_-]+", code):
            raise UserError(f"{option}: '{code}' is not a language code, such as en or pt-BR.")
    if prefix.endswith("/") or Path(prefix).is_dir():
        raise UserError(f"-o: {prefix} is a folder; name what the files begin with: {prefix}/text.")
    outputs = [Path(f"{prefix}.{code}") for code in languages]
    if report:
        outputs.append(Path(f"{prefix}.report.json"))
    check_outputs(outputs, prefix, files)
    with disk_errors(outputs[0]):
        outputs[0].parent.mkdir(parents=True, exist_ok=True)
    tallies = []
    with atomic_files(outputs) as temporaries:
        with ExitStack() as stack:
            sides = []
            for temporary in temporaries[:2]:
                side = open(temporary, "w", encoding="utf-8", newline="\n")
                sides.append(stack.enter_context(side))
            for one in _inputs(files):
                tally = _Tally(" and ".join(one))
                for entry in _entries(one, languages, columns):
                    if entry.left_out is not None:
                        tally.leave_out(entry, entry.left_out)
                        continue
                    tally.pairs += 1
                    sides[0].write(entry.source + "\n")
                    sides[1].write(entry.target + "\n")
                tallies.append(tally)
        pairs = sum(tally.pairs for tally in tallies)
        if not pairs:
            found = "; ".join(str(tally) for tally in tallies)
            raise UserError(f"there is no pair of {source} and {target}: {found}.")
        if report:
            records = [tally.to_json() for tally in tallies]
            temporaries[2].write_text(to_json(records), encoding="utf-8")
    for tally in tallies:
        say(str(tally))
    also = f"; report: {outputs[2]}" if report else ""
    say(f"{counted(pairs, 'pair')} written to {outputs[0]} and {outputs[1]}{also}")
    return pairs


def _inputs(files: Sequence[str]) -> list[tuple[str, ...]]:
    """Each of two aligned files, or of one that holds both sides."""
    inputs: list[tuple[str, ...]] = []
    waiting: str | None = None  # a file of one language
    for file in files:
        if has_both_sides(file):
            if waiting is not None:
                break
            inputs.append((file,))
        elif waiting is None:
            waiting = file
        else:
            inputs.append((waiting, file))
            waiting = None
    if waiting is not None:
        raise UserError(
            f"{waiting}: this has one language; name the file of its translations after it."
        )
    return inputs


def _entries(
    files: tuple[str, ...], languages: Languages, columns: Columns | None
) -> Iterator[Entry]:
    size = 0
    for file in files:
        path = Path(file)
        if not path.is_file():
            problem = "this is not an ordinary file" if path.exists() else "there is no such file"
            raise UserError(f"{file}: {problem}.")
        size += path.stat().st_size
    with bar(f"Reading {' and '.join(files)}", size, "bytes") as progress:
        yield from _read(files, languages, columns, progress.advance)


def _read(
    files: tuple[str, ...], languages: Languages, columns: Columns | None, on_read: OnRead
) -> Iterator[Entry]:
    lines_of_text = len(files) == 2 or (columns is None and is_plain(files[0], languages))
    if not lines_of_text:
        yield from read_entries(files[0], languages, columns, on_read)
        return
    pairs = read_pairs(files, languages, Counter(), on_read)
    for number, (source, target) in enumerate(pairs, start=1):
        yield make_entry(source, target, number)
