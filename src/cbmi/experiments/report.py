"""An experiment's report: Markdown, HTML, LaTeX, CSV and figures, each number with the job that gave it."""

from __future__ import annotations

import csv
import io
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from cbmi.analysis.drawing import data_address
from cbmi.analysis.pages import render_page
from cbmi.analysis.prior_accuracy import PRIORS, bin_name
from cbmi.errors import UserError
from cbmi.experiments.figures import make_figures
from cbmi.experiments.jobs import Plan
from cbmi.experiments.measure import measure, records_of
from cbmi.experiments.results import write_results
from cbmi.experiments.settings import Experiment
from cbmi.experiments.table import label_of, make_table, markdown, signed, to_latex, to_markdown
from cbmi.files import locked, write_atomically
from cbmi.progress import clock
from cbmi.yaml_text import dump_yaml

CAPTIONS = {
    "differences": "Difference to the baseline: diamonds are means, dots are seeds, each against its own baseline; "
    "an arrow stands for a system too far off to be drawn.",
    "sweep": "Score over the setting that varies; bars are standard deviations over the seeds.",
    "prior-accuracy": "How often each prior's best guess is the gold token, for tokens in bins of CBMI.",
    "validation": "The course of validation: what all systems share, then each system; means over the seeds.",
}
Record = dict[str, Any]


def write_report(plan: Plan) -> Path:
    """Write the report of all that is done; gives its folder."""
    records = records_of(plan)
    if not records:
        raise UserError(f"{plan.folder}: no job is done yet, so there is nothing to report.")
    comparisons, signatures = measure(plan, records)
    files = render(plan.experiment, [*records, *comparisons], signatures, _links(plan))
    folder = plan.folder / "report"
    write_results(plan, comparisons)
    with locked(plan.folder / ".lock"):
        for name, content in files.items():
            write_atomically(folder / name, content)
    return folder


def _links(plan: Plan) -> dict[str, str]:
    """Where a job's folder lies, seen from the report's."""
    return {name: os.path.relpath(job.folder, plan.folder / "report") for name, job in plan.jobs.items()}


def render(
    experiment: Experiment, records: list[Record], signatures: dict[str, str], links: dict[str, str]
) -> dict[str, str | bytes]:
    """The report's files by name, from the records of jobs and comparisons alone."""
    table = make_table(experiment, records)
    figures = make_figures(experiment, table, records)
    done = [record for record in records if record["kind"] != "comparison"]
    view = {
        "title": experiment.title,
        "table": table,
        "label_of": label_of,
        "signed": signed,
        "cost_columns": COSTS,
        "cost_note": COST_NOTE,
        "comparison_note": COMPARISON_NOTE,
        "costs": costs(experiment, done) if experiment.report.costs else [],
        "comparisons": _by_seed(experiment, records),
        "accuracies": _accuracies(experiment, done),
        "figures": {name: (data_address(svg), CAPTIONS[name]) for name, (svg, _) in figures.items()},
        "jobs": [_job_view(record, links) for record in _distinct(done)],
        "missing": _missing(experiment, done),
        "signatures": signatures,
        "facts": _facts(done),
        "settings": dump_yaml(experiment.model_dump(mode="json", exclude_defaults=True)),
    }
    files: dict[str, str | bytes] = {
        "report.html": render_page("cbmi.experiments", "report.html.jinja", view),
        "report.md": _markdown(view, figures),
    }
    if table.rows:
        files |= {"table.tex": to_latex(table), "table-std.tex": to_latex(table, spread=True)}
        files |= {"results.csv": _csv(_runs(done)), "comparisons.csv": _csv(_compared(records))}
    if view["accuracies"]:
        files["prior-accuracy.csv"] = _csv(view["accuracies"])
    for name, (svg, png) in figures.items():
        files |= {f"{name}.svg": svg, f"{name}.png": png}
    return files


def costs(experiment: Experiment, records: list[Record]) -> list[dict[str, Any]]:
    """What each system costs, means over its runs: the shared stages first."""
    rows = []
    for task in experiment.tasks:
        mine = [record for record in records if record["task"] == task and record.get("training_seconds")]
        first = len(rows)
        for system in (None, *experiment.expanded()):
            runs = [record for record in mine if record.get("system") == system]
            if runs:
                rows.append(_cost_row(experiment, task, system, runs))
        speeds = {row["key"]: row["speed"] for row in rows[first:]}
        for row in rows[first:]:
            row["times"] = speeds.get(experiment.baseline, math.nan) / row["speed"]
    return rows


def _cost_row(experiment: Experiment, task: str, system: str | None, runs: list[Record]) -> dict[str, Any]:
    seconds = float(np.mean([run["training_seconds"] for run in runs]))
    return {
        "key": system,
        "task": experiment.title_of(task),
        "system": experiment.label(system) if system else "shared stages",
        "preparation": float(np.mean([run["preparation"]["seconds"] for run in runs])),
        "parameters": sum(runs[0]["parameters"].values()) / 1e6,
        "training": seconds,
        "speed": float(np.mean([run["tokens_per_second"] for run in runs])),
        "disk": float(np.mean([run["preparation"]["bytes"] for run in runs])) / 1e6,
    }


def _by_seed(experiment: Experiment, records: list[Record]) -> list[dict[str, Any]]:
    """A row for every system and system that it is tested against: difference and p over all seeds, and each."""
    rows: dict[tuple, dict[str, Any]] = {}
    for record in records:
        if record["kind"] == "comparison":
            key = (record["task"], record["set"], record["system"], record["against"])
            labels = [experiment.label(record[name]) for name in ("system", "against")]
            task = experiment.title_of(record["task"])
            row = rows.setdefault(key, {"task": task, "set": record["set"], "labels": labels, "seeds": []})
            if record["seed"] is None:
                row["all"] = record
            else:
                row["seeds"].append(record)
    return list(rows.values())


def _job_view(record: Record, links: dict[str, str]) -> dict[str, Any]:
    scores = [f"{name}: {values['bleu']:.2f}" for name, values in record.get("scores", {}).items()]
    return {
        "id": record["job"],
        "folder": links.get(record["job"]),
        "scores": ", ".join(scores),
        "steps": record.get("steps"),
        "training": clock(record["training_seconds"]) if record.get("training_seconds") else "",
        "whole": clock(record["job_seconds"]) if "job_seconds" in record else "",
        "speed": record.get("tokens_per_second"),
        "device": record.get("device", ""),
        "finished": record.get("finished", ""),
    }


def _distinct(records: list[Record]) -> list[Record]:
    """One a job: systems with the same settings share theirs."""
    return list({record["job"]: record for record in records}.values())


def _missing(experiment: Experiment, records: list[Record]) -> list[str]:
    there = {(record["task"], record["seed"], record.get("system", record["kind"])) for record in records}
    kinds = [*experiment.expanded(), *experiment.analyses]
    wanted = [(task, seed, kind) for task in experiment.tasks for seed in experiment.seeds for kind in kinds]
    return [f"{task}, seed {seed}: {kind}" for task, seed, kind in wanted if (task, seed, kind) not in there]


def _facts(records: list[Record]) -> list[tuple[str, str]]:
    """What a reader asks first: when, on what, with which versions, how long."""
    distinct = _distinct(records)
    facts = []
    for name, key in (("Finished", "finished"), ("Device", "device"), ("PyTorch", "torch"), ("cbmi", "cbmi")):
        found = sorted({str(record[key]) for record in distinct if key in record})
        if found:
            facts.append((name, ", ".join(found)))
    commits = sorted({record["commit"] for record in distinct if record.get("commit")})
    facts += [("Commit", ", ".join(commits))] if commits else []
    total = sum(record.get("job_seconds", 0.0) for record in distinct)
    if total:
        facts.append(("All jobs", f"{len(distinct)}, one after another {clock(total)}"))
    return facts


def _markdown(view: dict[str, Any], figures: dict[str, Any]) -> str:
    parts = [f"# {view['title']}\n"]
    if view["table"].rows:
        parts.append(to_markdown(view["table"]))
    parts += [f"![{CAPTIONS[name]}]({name}.png)\n" for name in figures]
    if view["comparisons"]:
        parts.append(_comparisons_markdown(view["comparisons"]))
    if view["accuracies"]:
        parts.append(_accuracies_markdown(view["accuracies"]))
    if view["costs"]:
        parts.append(_costs_markdown(view["costs"]))
    if view["missing"]:
        more = "; …" if len(view["missing"]) > 4 else ""
        runs = "1 run" if len(view["missing"]) == 1 else f"{len(view['missing'])} runs"
        parts.append(f"Not done yet: {runs} ({'; '.join(view['missing'][:4])}{more}).\n")
    parts.append("\n".join(f"- {name}: {value}" for name, value in view["facts"]))
    parts += [f"- {task}: `{signature}`" for task, signature in view["signatures"].items()]
    parts += ["", "| job | BLEU | steps | training | whole job | device |", "|---|---|--:|--:|--:|---|"]
    for job in view["jobs"]:
        name = f"[{job['id']}]({job['folder']}/result.json)" if job["folder"] else job["id"]
        cells = [name, job["scores"], str(job["steps"] or ""), job["training"], job["whole"], job["device"]]
        parts.append("| " + " | ".join(cells) + " |")
    return "\n".join(parts) + "\n"


COSTS = {  # title: (key, format)
    "preparation, s": ("preparation", ",.1f"),
    "parameters, M": ("parameters", ",.1f"),
    "training, s": ("training", ",.1f"),
    "tokens/s": ("speed", ",.0f"),
    "time a token": ("times", ".2f"),
    "disk, MB": ("disk", ",.1f"),
}
COST_NOTE = (
    "Means over the seeds. Training: time in steps, without validation, with what is compiled once at its beginning; "
    "tokens/s: median of the log's lines; time a token: beside the baseline's. What all systems share trains the "
    "language model as well, which only some of them need. Runs side by side on one device slow each other down."
)


COMPARISON_NOTE = (
    "p is sacrebleu's, by paired bootstrap over the sentences: about half of a two-sided one, and about 0.4 where "
    "nothing differs. How much another training run of the same system would differ is not in it. The standard error "
    "is that of the mean of the seeds' differences."
)


def _comparisons_markdown(rows: list[dict[str, Any]]) -> str:
    titles = ["system", "against", "on", "difference (p)", "standard error", "seed by seed"]
    lines = ["| " + " | ".join(titles) + " |", "|---|---|---|--:|--:|---|"]
    for row in rows:
        each = [f"{signed(one['difference'])} ({one['p']:.3f})" for one in (row["all"], *row["seeds"])]
        names = [markdown(text) for text in (*row["labels"], f"{row['task']}, {row['set']}")]
        error = row["all"]["standard_error"]
        spread = "–" if error is None else f"{error:.2f}"
        lines.append("| " + " | ".join([*names, each[0], spread, ", ".join(each[1:])]) + " |")
    return "\n".join([*lines, "", COMPARISON_NOTE]) + "\n"


def _accuracies(experiment: Experiment, records: list[Record]) -> list[dict[str, Any]]:
    """How often each prior is right, by task and bin of CBMI, over all seeds' tokens."""
    rows = []
    for task in experiment.tasks:
        found = [r["accuracy"] for r in records if r["kind"] == "prior-accuracy" and r["task"] == task]
        for bins in zip(*([*one["bins"], one | {"above": None, "to": None}] for one in found), strict=True):
            tokens = sum(one["tokens"] for one in bins)
            whole = bins[0]["above"] is None and bins[0]["to"] is None
            row = {"task": experiment.title_of(task), "CBMI": "all" if whole else bin_name(bins[0]), "tokens": tokens}
            right = {prior: sum(one["tokens"] * one.get(prior, 0.0) for one in bins) for prior in PRIORS}
            rows.append(row | {prior: round(right[prior] / tokens, 4) if tokens else None for prior in PRIORS})
    return rows


def _accuracies_markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| task | CBMI, nats | tokens | LM prior | TM prior | CBMI prior |", "|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        shares = ["–" if row[prior] is None else f"{100 * row[prior]:.1f} %" for prior in PRIORS]
        lines.append("| " + " | ".join([markdown(row["task"]), row["CBMI"], f"{row['tokens']:,}", *shares]) + " |")
    return "\n".join(lines) + "\n"


def _costs_markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(["task", "system", *COSTS]) + " |", "|---|---" + "|--:" * len(COSTS) + "|"]
    for row in rows:
        figures = [format(row[key], style) for key, style in COSTS.values()]
        names = [markdown(row[key]) for key in ("task", "system")]
        lines.append("| " + " | ".join([*names, *figures]) + " |")
    return "\n".join([*lines, "", COST_NOTE]) + "\n"


def _compared(records: list[Record]) -> list[dict[str, Any]]:
    """Every test of significance; those over all seeds have none."""
    return [{key: r[key] for key in r if key != "kind"} for r in records if r["kind"] == "comparison"]


def _runs(records: list[Record]) -> list[dict[str, Any]]:
    """Every run and test set."""
    rows = []
    for record in records:
        for chosen, scores in record.get("scores", {}).items():
            row = {key: record.get(key) for key in ("task", "system", "seed", "job", "kind")} | {"set": chosen}
            row |= {name: f"{value:.4f}" for name, value in scores.items()}
            row |= {key: record.get(key) for key in ("steps", "training_seconds", "job_seconds", "tokens_per_second")}
            row |= {key: record.get(key) for key in ("device", "torch", "cbmi", "commit", "finished")}
            rows.append(row)
    return rows


def _csv(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    output = io.StringIO()
    writer = csv.DictWriter(output, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return output.getvalue()
