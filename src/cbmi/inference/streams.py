"""A stream of lines to a stream of translations, in order."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TextIO

from cbmi.data.lines import count_lines, decode_lines, read_lines, report_repaired
from cbmi.decoding import Sampling
from cbmi.inference.base import WINDOW, Model, Translation
from cbmi.progress import bar, say

NOTHING = Translation("", 0.0, 0.0)


def translate_stream(
    model: Model,
    file: str,
    output: TextIO,
    *,
    beam: int | None,
    length_penalty: float,
    nbest: int,
    sampling: Sampling | None,
    scores: bool,
) -> None:
    """Translate a file ("-": standard input).

    Every line gives `nbest` lines; if fewer are found, the rest are empty. With `scores` a line is
    `score<TAB>log-probability<TAB>translation`.
    """
    counts: Counter[str] = Counter()
    if file == "-":
        lines = decode_lines(sys.stdin.buffer, "standard input", counts)
        total = None
    else:
        lines = read_lines(file, counts)
        total = count_lines(file)
    typed = file == "-" and sys.stdin.isatty()
    if typed:
        say("Type a line, then Enter; Ctrl-D ends.")
    with bar("Translating", total, "lines", quiet=typed) as progress:
        translations = model.translations(
            lines,
            beam=beam,
            length_penalty=length_penalty,
            nbest=nbest,
            sampling=sampling,
            window=1 if typed else WINDOW,  # what is typed is answered line by line
            advance=progress.advance,
        )
        for number, found in enumerate(translations, start=1):
            padded = found + [NOTHING] * (nbest - len(found))
            for one in padded:
                text = one.text
                if scores:
                    text = f"{one.score:.4f}\t{one.log_probability:.4f}\t{text}"
                output.write(text + "\n")
            if typed or number % WINDOW == 0:
                output.flush()
    output.flush()
    model.report_truncated()
    report_repaired(counts)
