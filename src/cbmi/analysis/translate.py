"""A stream of lines to a stream of translations, in order."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TextIO

from cbmi.data.text import count_lines, decode_lines, read_lines, report_repaired
from cbmi.progress import bar, say
from cbmi.training.trained import Trained

WINDOW = 5_000  # lines read, sorted by length and translated at a time


def translate_lines(
    model: Trained, file: str, output: TextIO, beam: int, length_penalty: float, nbest: int, scores: bool
) -> None:
    """Translate a file ("-": standard input). Every line gives `nbest` lines; fewer found leave some empty.

    With `scores` a line is `score<TAB>log-probability<TAB>translation`.
    """
    counts: Counter[str] = Counter()
    lines = _standard_input(counts) if file == "-" else read_lines(file, counts)
    settings = {"beam": beam, "length_penalty": length_penalty, "nbest": nbest}
    typed = file == "-" and sys.stdin.isatty()
    if typed:
        say("Type a line, then Enter; Ctrl-D ends.")
    with bar("Translating", None if file == "-" else count_lines(file), "lines", quiet=typed) as progress:
        while window := list(islice(lines, 1 if typed else WINDOW)):
            for hypotheses in model.hypotheses(window, advance=progress.advance, **settings):
                found = [(one.score, one.log_probability, model.target.decode(one.ids)) for one in hypotheses]
                found += [(0.0, 0.0, "")] * (nbest - len(found))
                for score, log_probability, text in found:
                    output.write(f"{score:.4f}\t{log_probability:.4f}\t{text}\n" if scores else text + "\n")
            output.flush()
    model.report_truncated()
    report_repaired(counts)


def _standard_input(counts: Counter[str]) -> Iterator[str]:
    return decode_lines(sys.stdin.buffer, "standard input", counts)
