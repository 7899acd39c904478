"""Files of translations to a table of scores."""

from __future__ import annotations

import json as json_module
from collections import Counter
from collections.abc import Sequence

from cbmi.data.text import read_lines, report_repaired
from cbmi.errors import UserError
from cbmi.evaluation.metrics import evaluate
from cbmi.evaluation.table import render


def evaluate_files(reference: str, systems: Sequence[str], *, json: bool, **settings) -> str:
    """The scores of each system's file against the reference's, as a table or as JSON."""
    if len(set(systems)) < len(systems):
        raise UserError("evaluate: the same system is given twice.")
    counts: Counter[str] = Counter()
    references = list(read_lines(reference, counts))
    texts = {system: list(read_lines(system, counts)) for system in systems}
    report_repaired(counts)
    report = evaluate(references, texts, **settings)
    if json:
        return json_module.dumps({"reference": reference, **report.to_json()}, indent=1, ensure_ascii=False)
    return render(report)
