"""Files of translations to a table of scores."""

from __future__ import annotations

import json as json_module
from collections import Counter
from collections.abc import Sequence

from cbmi.data.text import read_lines
from cbmi.errors import UserError
from cbmi.evaluation.metrics import evaluate
from cbmi.evaluation.table import render


def evaluate_files(reference: str, systems: Sequence[str], *, json: bool, **settings) -> str:
    """The scores of each system's file against the reference's, as a table or as JSON."""
    if not settings["multi_bleu"] and (settings["tokenize"] or settings["split_compounds"]):
        raise UserError("evaluate: --tokenize and --split-compounds belong to --multi-bleu.")
    if len(set(systems)) < len(systems):
        raise UserError("evaluate: the same system is given twice.")
    references = list(read_lines(reference, Counter()))
    texts = {system: list(read_lines(system, Counter())) for system in systems}
    report = evaluate(references, texts, **settings)
    if json:
        return json_module.dumps({"reference": reference, **report.to_json()}, indent=1, ensure_ascii=False)
    return render(report)
