"""The table of results as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from cbmi.experiments.table import ResultsTable, ScoreCell, SystemRow
from cbmi.reporting.latex import escaped
from cbmi.reporting.tables import escape_markdown, markdown_table

LATEX_SYMBOLS = {"*": r"\ast", "†": r"\dagger", "‡": r"\ddagger", "§": r"\S"}


def label_of(row: SystemRow) -> str:
    """The baseline has its block's name; the others are what is added to it."""
    return f"{row.label} ({row.block})" if row.is_baseline and row.block else row.label


def results_markdown(table: ResultsTable, notes: bool = True) -> str:
    """The table and its notes as Markdown; `notes`: also those of all tables."""
    header = [table.heading, *(escape_markdown(title) for title in table.columns)]
    rows = []
    for row in table.rows:
        label = escape_markdown(label_of(row))
        rows.append([label, *(_markdown_cell(cell) for cell in row.cells)])
    lines = [markdown_table(header, rows, align="l" + "r" * len(table.columns)), ""]
    for note in _all_notes(table, notes):
        lines.append(escape_markdown(note) + "  ")  # two spaces break the line
    return "\n".join(lines).rstrip() + "\n"


def _all_notes(table: ResultsTable, notes: bool) -> list[str]:
    """Its own, and where wanted those of all tables."""
    own = [table.power] if table.power else []
    return own + table.notes if notes else own


def _markdown_cell(cell: ScoreCell | None) -> str:
    if cell is None:
        return "–"
    text = f"**{cell.text()}**" if cell.best else cell.text()
    text += escape_markdown(cell.marks) + cell.missing_seeds
    if cell.published:
        text += f" [published: {cell.published}]"
    return text


def results_latex(table: ResultsTable, spread: bool = False) -> str:
    """A tabular; with `spread` mean ± std, else mean (difference)."""
    lines = [r"\begin{tabular}{l|" + "|".join("c" * len(table.columns)) + "}", r"\toprule"]
    header = [rf"\textbf{{{escaped(title)}}}" for title in ["Model", *table.columns]]
    lines.append(_latex_line(header))
    block = None
    for row in table.rows:
        if row.block != block:
            lines.append(r"\midrule")
            block = row.block
        cells = [_latex_cell(cell, spread) for cell in row.cells]
        lines.append(_latex_line([_latex_label(row), *cells]))
    lines += [r"\bottomrule", r"\end{tabular}", f"% {table.heading}"]
    lines += [f"% {note}" for note in _all_notes(table, True)]
    return "\n".join(lines) + "\n"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_label(row: SystemRow) -> str:
    if not row.is_baseline:
        return r"\quad " + escaped(row.label)
    block = f"$_{{{escaped(row.block)}}}$" if row.block else ""
    return escaped(row.label) + block


def _latex_cell(cell: ScoreCell | None, spread: bool) -> str:
    if cell is None:
        return "--"
    text = f"{cell.mean:.2f}{cell.spread}" if spread else cell.text(spread=False)
    text = escaped(text)
    if cell.marks:
        symbols = "".join(LATEX_SYMBOLS[mark] for mark in cell.marks)
        text += f"$^{{{symbols}}}$"
    if cell.best:
        text = rf"\textbf{{{text}}}"
    return text + escaped(cell.missing_seeds)
