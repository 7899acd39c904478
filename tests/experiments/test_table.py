"""The table of an experiment: the paper's own, from the paper's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tasks import ROOT

from cbmi.experiments.figures import _limits
from cbmi.experiments.report import render
from cbmi.experiments.settings import read_experiment
from cbmi.experiments.table import Cell, make_table, signed, to_latex, to_markdown

# As the paper prints it, without citations and the rows taken from other papers. One cell is not as in the paper: it
# has 25.64 (+0.14) beside 25.48 for Freq-Chi-Square, big, Zh→En; no two numbers that round to these differ by 0.14.
PAPER = r"""
\textbf{Model} & \textbf{WMT14 En$\rightarrow$De, multi-BLEU} & \textbf{WMT19 Zh$\rightarrow$En, BLEU} \\
Transformer$_{base}$ & 28.10 & 25.36 \\
\quad + Freq-Exponential & 28.43 (+0.33) & 24.99 (-0.37) \\
\quad + Freq-Chi-Square & 28.47 (+0.37) & 25.43 (+0.07) \\
\quad + BMI-adaptive & 28.56 (+0.45) & 25.77 (+0.41) \\
\quad + Focal Loss & 28.43 (+0.33) & 25.37 (+0.01) \\
\quad + Anti-Focal Loss & 28.65 (+0.55) & 25.50 (+0.14) \\
\quad + Self-Paced Learning & 28.69 (+0.59) & 25.75 (+0.39) \\
\quad + Simple Fusion & 27.82 (-0.28) & 23.91 (-1.45) \\
\quad + LM Prior & 28.27 (+0.17) & 25.71 (+0.35) \\
\quad + CBMI-adaptive (ours) & \textbf{29.01 (+0.91)$^{\ast\ast}$} & \textbf{26.21 (+0.85)$^{\ast\ast}$} \\
Transformer$_{big}$ & 29.31 & 25.48 \\
\quad + Freq-Exponential & 29.66 (+0.35) & 25.57 (+0.09) \\
\quad + Freq-Chi-Square & 29.64 (+0.33) & 25.64 (+0.16) \\
\quad + BMI-adaptive & 29.69 (+0.38) & 25.81 (+0.33) \\
\quad + Focal Loss & 29.65 (+0.34) & 25.54 (+0.06) \\
\quad + Anti-Focal Loss & 29.72 (+0.41) & 25.64 (+0.16) \\
\quad + Self-Paced Learning & 29.85 (+0.54) & 25.88 (+0.40) \\
\quad + CBMI-adaptive (ours) & \textbf{30.12 (+0.81)$^{\ast}$} & \textbf{26.30 (+0.82)$^{\ast}$} \\
"""
# Means before they were rounded, where the paper's differences tell more than its means.
UNROUNDED = {("en-de-base", "ce"): 28.1009, ("en-de-base", "bmi"): 28.5551}


@pytest.fixture(scope="module")
def paper():
    """The paper's experiment, and records with its means and standard deviations over three seeds."""
    experiment = read_experiment(ROOT / "recipes" / "experiments" / "wmt-table1.yaml", [])
    records = []
    for task, systems in experiment.published.items():
        for system, published in systems.items():
            mean, spread = map(float, published.split(" ± "))
            mean = UNROUNDED.get((task, system), mean)
            for seed, place in zip((1, 2, 3), (-1, 0, 1), strict=True):
                score = mean + place * spread * np.sqrt(1.5)
                record = {"kind": "system", "job": f"{task}-{seed}-{system}", "task": task, "seed": seed}
                scores = {"test": {experiment.metric(task): score, "bleu": score}}
                records.append(record | {"system": system, "scores": scores})
        comparison = {
            "kind": "comparison",
            "task": task,
            "set": "test",
            "system": "cbmi",
            "against": "bmi",
            "seed": None,
            "standard_error": None,
        }
        records.append(comparison | {"difference": 0.4, "p": 0.03 if "big" in task else 0.004})
    return experiment, records


def test_the_papers_table(paper):
    lines = [line for line in to_latex(make_table(*paper)).splitlines() if line.endswith(r"\\")]
    assert lines == PAPER.strip().splitlines()


def test_the_best_is_among_those_with_as_many_seeds(paper):
    experiment, records = paper
    lucky = [
        r for r in records if r.get("system") == "cbmi" and r["task"] == "en-de-base" and r.get("seed") in (1, 2)
    ]
    table = make_table(experiment, [record for record in records if record not in lucky])
    best = [
        row.label for row in table.rows if row.cells[0] and row.cells[0].best and row.block == table.rows[0].block
    ]
    assert best == ["+ Self-Paced Learning"]


def test_the_papers_complete_results(paper):
    lines = to_latex(make_table(*paper), spread=True)
    assert r"\quad + CBMI-adaptive (ours) & \textbf{29.01 $\pm$ 0.08$^{\ast\ast}$}" in lines
    assert r"\quad + Freq-Chi-Square & 28.47 $\pm$ 0.24 & 25.43 $\pm$ 0.72 \\" in lines


def test_markdown_says_what_the_marks_mean(paper):
    text = to_markdown(make_table(*paper))
    row = r"| + CBMI-adaptive (ours) | **29.01 ± 0.08 (+0.91)**\*\* [published: 29.01 ± 0.08] |"
    assert row in text
    assert r"\* / \*\*: differs from BMI-adaptive with p \< 0.05" in text


def test_a_report_needs_only_the_records(paper):
    files = render(*paper, {}, {})
    assert "29.01 ± 0.08" in files["report.html"]
    assert files["report.md"].count("| Transformer (b") == 2


def test_fewer_are_better_for_ter():
    experiment = read_experiment(
        ROOT / "recipes" / "experiments" / "ablation.yaml", ["report.metric=ter", 'report.sets=["*"]']
    )
    scores = {"ce": 50.0, "token": 48.0}
    records = [
        {
            "kind": "system",
            "job": name,
            "task": "multi30k",
            "seed": 1,
            "system": name,
            "scores": {"test": {"ter": score}},
        }
        for name, score in scores.items()
    ]
    assert r"\textbf{48.00 (-2.00)}" in to_latex(make_table(experiment, records))


def tiny(scores: dict[str, dict[int, float]], task: str = "multi30k") -> list[dict]:
    common = {"kind": "system", "task": task}
    return [
        common | {"job": f"{system}-{seed}", "seed": seed, "system": system, "scores": {"test": {"bleu": score}}}
        for system, runs in scores.items()
        for seed, score in runs.items()
    ]


def test_differences_are_over_the_seeds_that_both_have():
    experiment = read_experiment(ROOT / "recipes" / "experiments" / "controls.yaml", [])
    records = tiny({"ce": {1: 20.0, 2: 22.0, 3: 24.0}, "cbmi": {3: 24.5}})
    text = to_markdown(make_table(experiment, records))
    assert "| 24.50 (+0.50) [1 of 3 seeds] |" in text.replace("**", "")
    latex = to_latex(make_table(experiment, records), spread=True)
    assert r"24.50 $\pm$" not in latex  # one run has no spread
    assert "24.50 [1 of 3 seeds]" in latex
    assert render(experiment, records, {}, {})["differences.svg"]


def test_a_baseline_that_is_missing_somewhere():
    recipe = ROOT / "recipes" / "experiments" / "table1.yaml"
    experiment = read_experiment(recipe, ["seeds=[1]", "tasks.other={run: ../multi30k.yaml}"])
    records = tiny({"ce": {1: 20.0}, "cbmi": {1: 21.0}}) + tiny({"bmi": {1: 30.0}, "cbmi": {1: 31.0}}, "other")
    files = render(experiment, records, {}, {})
    assert "31.00" in files["report.md"]
    assert "| 21.00 (+1.00)" in files["report.md"].replace("**", "")


def test_labels_are_escaped():
    experiment = read_experiment(
        ROOT / "recipes" / "experiments" / "priors.yaml", ["seeds=[1]", "report.sets=[test]"]
    )
    table = make_table(experiment, tiny({"ce": {1: 1.0}, "lm-middle": {1: 2.0}}))
    assert r"LM Prior where 0 $<$ c $\leq$ 8" in to_latex(table)
    assert r"LM Prior where 0 \< c ≤ 8" in to_markdown(table)


def test_lower_is_better_where_the_metric_says_so():
    def cell(difference, lower):
        return Cell({1: 50.0}, {1: "job"}, {1: difference}, lower=lower)

    assert [cell(-1.7, lower).ahead for lower in (False, True)] == [False, True]
    assert [cell(0.2, lower).ahead for lower in (False, True)] == [True, False]
    assert [signed(value) for value in (-0.004, 0.004, -0.006)] == ["+0.00", "+0.00", "-0.01"]


def test_a_system_far_off_does_not_squeeze_the_others():
    cells = [Cell({1: 0.0}, {1: "job"}, {1: difference}) for difference in (-2.7, -0.2, 0.1, 0.3)]
    low, high = _limits(cells)
    assert -2.7 < low < -0.2
    assert high > 0.3
    low, high = _limits(cells[1:])
    assert low < -0.2 < 0.3 < high


def test_what_others_have_published_stands_once(paper):
    """Beside BLEU on the first test set, not on further ones nor on the validation set."""
    experiment, records = paper
    more = [
        r | {"scores": dict.fromkeys(("valid", "test", "second"), r["scores"]["test"])} if "scores" in r else r
        for r in records
    ]
    sets = experiment.report.model_copy(update={"sets": ("valid", "*")})
    table = make_table(experiment.model_copy(update={"report": sets}), more)
    shown = {
        column for row in table.rows for column, cell in zip(table.columns, row.cells, strict=True) if cell.published
    }
    assert shown == {column for column in table.columns if ", test" in column}
