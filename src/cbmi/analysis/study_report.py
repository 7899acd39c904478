"""What a human evaluation gives: means, intervals, tests, agreement; as text, page, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from cbmi.analysis.agreement import interval, mean_kappa, paired_test, reading
from cbmi.analysis.latex import escaped
from cbmi.analysis.pages import render_page
from cbmi.analysis.study import CRITERIA, Study
from cbmi.errors import UserError
from cbmi.files import write_atomically

SUBSTANTIAL = 0.6  # the paper marks scores of a kappa above it
AVERAGE = "average"


def summary(study: Study) -> dict[str, Any]:
    """All figures of the report."""
    table = study.table()
    if not table:
        raise UserError(f"{study.path.parent}: nobody has rated anything yet.")
    systems, size = study.systems(), study.size()
    agreement = {criterion: _agreement(table, criterion) for criterion in CRITERIA}
    rows = [{"system": system, "scores": {}, "tests": {}} for system in systems]
    for criterion in (*CRITERIA, AVERAGE):
        by_line = {system: _by_line(table, system, criterion) for system in systems}
        for row in rows:
            own = by_line[row["system"]]
            row["scores"][criterion] = _score(own)
            if row["system"] != systems[0]:
                row["tests"][criterion] = _test(own, by_line[systems[0]])
    done = {
        name: sum(1 for item in study.items(name) if len(item["ratings"]) == len(CRITERIA))
        for name in study.annotators()
    }
    raters = len({row["annotator"] for row in table})
    return {"systems": rows, "agreement": agreement, "annotators": done, "raters": raters, "items": size}


def _by_line(table: list[dict[str, Any]], system: str, criterion: str) -> dict[tuple[str, int], float]:
    """(annotator, line) → rating of a system; the average where an annotator has given all."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in table:
        if row["system"] == system and criterion in (row["criterion"], AVERAGE):
            found.setdefault((row["annotator"], row["line"]), []).append(row["value"])
    whole = len(CRITERIA) if criterion == AVERAGE else 1
    return {key: float(np.mean(values)) for key, values in found.items() if len(values) == whole}


def _line_means(ratings: dict[tuple[str, int], float]) -> dict[int, float]:
    """The mean over the annotators of each line: lines, not ratings, are independent of each other."""
    lines: dict[int, list[float]] = {}
    for (_, line), value in ratings.items():
        lines.setdefault(line, []).append(value)
    return {line: float(np.mean(values)) for line, values in lines.items()}


def _score(ratings: dict[tuple[str, int], float]) -> dict[str, Any] | None:
    if not ratings:
        return None
    lines = list(_line_means(ratings).values())
    low, high = interval(lines) if len(lines) > 1 else (None, None)  # one line says nothing of others
    return {"mean": float(np.mean(lines)), "low": low, "high": high, "ratings": len(ratings)}


def _test(one: dict[tuple[str, int], float], other: dict[tuple[str, int], float]) -> dict[str, float] | None:
    """The difference by what the same annotators said of the same lines."""
    both = {key: one[key] - other[key] for key in one.keys() & other.keys()}
    if not both:
        return None
    differences = list(_line_means(dict(sorted(both.items()))).values())
    return {"difference": float(np.mean(differences)), "p": paired_test(differences)}


def _agreement(table: list[dict[str, Any]], criterion: str) -> dict[str, Any] | None:
    raters: dict[str, dict[int, int]] = {}
    for row in table:
        if row["criterion"] == criterion:
            raters.setdefault(row["annotator"], {})[row["item"]] = row["value"]
    mean, pairs = mean_kappa(raters)
    if mean is None:
        return None
    named = {f"{one} and {other}": kappa for (one, other), kappa in pairs.items()}
    common = sum(sum(item in rated for rated in raters.values()) > 1 for item in set().union(*raters.values()))
    return {"kappa": mean, "reading": reading(mean), "pairs": named, "items": common}


def write_report(study: Study, folder: Path) -> str:
    """Write report.html, report.md, table.tex, systems.csv and ratings.csv; gives the text."""
    found = summary(study)
    text = to_markdown(found)
    view = found | {"criteria": [*CRITERIA, AVERAGE], "substantial": SUBSTANTIAL}
    page = render_page("cbmi.analysis", "study.html.jinja", view)
    for name, content in {
        "report.html": page,
        "report.md": text,
        "table.tex": to_latex(found),
        "systems.csv": _systems_csv(found),
        "ratings.csv": _ratings_csv(study),
    }.items():
        write_atomically(folder / name, content)
    return text


def _mark(found: dict[str, Any], criterion: str) -> str:
    """The paper's star: annotators agree substantially."""
    agreement = found["agreement"].get(criterion)
    return "*" if agreement and agreement["kappa"] > SUBSTANTIAL else ""


def to_markdown(found: dict[str, Any]) -> str:
    names = [*CRITERIA, AVERAGE]
    lines = ["| Model | Adequacy | Fluency | Avg. |", "|---|--:|--:|--:|"]
    for row in found["systems"]:
        cells = [_cell(row, name) + (_mark(found, name) if row["scores"][name] else "") for name in names]
        lines.append(f"| {row['system'].replace('|', chr(92) + '|')} | " + " | ".join(cells) + " |")
    lines.append("")
    for criterion, agreement in found["agreement"].items():
        if agreement:
            kappa, items = f"{agreement['kappa']:.2f}", agreement["items"]
            said = f"Cohen's kappa {kappa} on average over {items} items: {agreement['reading']} agreement"
            lines.append(f"- {criterion}: {said}{' (*)' if agreement['kappa'] > SUBSTANTIAL else ''}.")
        else:
            lines.append(f"- {criterion}: no two annotators have rated the same translation yet.")
    lines.append(
        "- In brackets: 95 % interval (bootstrap over lines); difference to the first over the lines that the same "
        "annotators have rated of both, p (paired randomisation)."
    )
    lines += [f"- {name}: {done} of {found['items']} items rated." for name, done in found["annotators"].items()]
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any], name: str) -> str:
    score, test = row["scores"][name], row["tests"].get(name)
    if score is None:
        return "–"
    text = f"{score['mean']:.2f}"
    if score["low"] is not None:
        text += f" [{score['low']:.2f}, {score['high']:.2f}]"
    return f"{text} ({test['difference']:+.2f}, p {test['p']:.3f})" if test else text


def to_latex(found: dict[str, Any]) -> str:
    """The paper's table."""
    lines = [
        r"\begin{tabular}{lccc}",
        r"\toprule",
        r"\textbf{Model} & \textbf{Adequacy} & \textbf{Fluency} & \textbf{Avg.} \\",
        r"\midrule",
    ]
    for row in found["systems"]:
        name = escaped(row["system"])
        cells = [
            f"{score['mean']:.2f}{'$^{*}$' if _mark(found, key) else ''}" if (score := row["scores"][key]) else "--"
            for key in (*CRITERIA, AVERAGE)
        ]
        lines.append(" & ".join([name, *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _systems_csv(found: dict[str, Any]) -> str:
    rows: list[list[Any]] = [["system", "criterion", "mean", "low", "high", "ratings", "difference", "p"]]
    for row in found["systems"]:
        for name, score in row["scores"].items():
            test = row["tests"].get(name) or {}
            values = [score[key] for key in ("mean", "low", "high", "ratings")] if score else [""] * 4
            rows.append([row["system"], name, *values, test.get("difference", ""), test.get("p", "")])
    return _csv(rows)


def _ratings_csv(study: Study) -> str:
    table = study.table()
    return _csv([list(table[0]), *(list(row.values()) for row in table)])


def _csv(rows: list[list[Any]]) -> str:
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows(rows)
    return output.getvalue()
