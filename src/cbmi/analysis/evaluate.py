"""Files of translations to a table of scores."""

from __future__ import annotations

import json as json_module
from collections import Counter
from collections.abc import Sequence

from cbmi.analysis.words import UNSPACED
from cbmi.data.text import read_lines, report_repaired
from cbmi.errors import UserError
from cbmi.evaluation.metrics import evaluate
from cbmi.evaluation.table import render
from cbmi.progress import say


def evaluate_files(
    reference: str, systems: Sequence[str], *, json: bool, language: str | None = None, **settings
) -> str:
    """The scores of each system's file against the reference's, as a table or as JSON."""
    if len(set(systems)) < len(systems):
        raise UserError("evaluate: the same system is given twice.")
    counts: Counter[str] = Counter()
    references = list(read_lines(reference, counts))
    texts = {system: list(read_lines(system, counts)) for system in systems}
    report_repaired(counts)
    if language is None and _looks_unspaced(references):
        say(f"{reference}: this looks like text without spaces, which --language zh (or ja, th, …) cuts right.")
    report = evaluate(references, texts, language=language or "", **settings)
    if json:
        return json_module.dumps({"reference": reference, **report.to_json()}, indent=1, ensure_ascii=False)
    return render(report)


def _looks_unspaced(lines: Sequence[str]) -> bool:
    """Whether a third of the letters are of a script that has no spaces between words."""
    text = "".join("".join(line.split()) for line in lines[:1000])
    return len(UNSPACED.findall(text)) > len(text) / 3
