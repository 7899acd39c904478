"""Tables as text, Markdown and CSV, and how reports write differences and bins."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ALIGNMENTS = {"l": "---", "r": "--:"}  # as the line under the header says it
MARKDOWN_SPECIAL = "\\|*_<"  # the backslash first: the others are escaped by one


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A table in Markdown, without a newline at its end.

    Cells stand as they are given: pass text that may hold any character through `escape_markdown`.
    `align` has a letter for each column: "l" for left, "r" for right.
    """
    rules = [ALIGNMENTS[letter] for letter in align]
    lines = [_markdown_row(header, len(align)), "|" + "|".join(rules) + "|"]
    for row in rows:
        lines.append(_markdown_row(row, len(align)))
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str], columns: int) -> str:
    if len(cells) != columns:
        raise ValueError(f"a row of {len(cells)} cells in a table of {columns} columns: {cells}")
    return "| " + " | ".join(cells) + " |"


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, in a table too."""
    for character in MARKDOWN_SPECIAL:
        text = text.replace(character, "\\" + character)
    return text


def text_table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """The lines of a table in plain text: aligned columns with two spaces between them.

    `align` has a letter for each column: "l" for left, "r" for right.
    """
    for row in rows:
        if len(row) != len(align):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(align)} columns: {row}")
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(align))]
    lines = []
    for row in rows:
        cells = []
        for cell, width, letter in zip(row, widths, align, strict=True):
            cells.append(cell.rjust(width) if letter == "r" else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign: "+0.12", "−0.31", and "+0.00" for what rounds to zero."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        text = f"{0:+.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, the first of them the header. None becomes an empty field."""
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows(rows)
    return output.getvalue()


def csv_of_records(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV with a header.

    The columns are the keys of all records, in the order of their first appearance. A field is
    empty where a record lacks the key or has None.
    """
    columns: list[str] = []
    for record in records:
        for key in record:
            if key not in columns:
                columns.append(key)
    rows: list[list[Any]] = [columns]
    for record in records:
        rows.append([record.get(column) for column in columns])
    return csv_text(rows)


def bin_label(low: float | None, high: float | None, compact: bool = False) -> str:
    """The name of the bin above `low` and up to `high`: "≤ 2", "2 to 4", "> 8", or "all".

    None means no edge on that side. `compact` names it "≤2", "2…4", ">8", for the ticks of an axis.
    """
    if low is None and high is None:
        return "all"
    space = "" if compact else " "
    if low is None:
        text = f"≤{space}{high:g}"
    elif high is None:
        text = f">{space}{low:g}"
    else:
        between = "…" if compact else " to "
        text = f"{low:g}{between}{high:g}"
    return text.replace("-", "−")
