"""The records of a run's log.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

from cbmi.errors import UserError

Figures = dict[str, int | float | str]  # a record of the log


def read_log(path: Path) -> list[Figures]:
    """The records of a `log.jsonl`; the torn last line of a killed process is skipped."""
    records: list[Figures] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise UserError(f"{path}, line {number}: this is not JSON.") from None
    return records
