"""The report of a human evaluation: scores, tests and agreement, in all formats."""

import csv
import io
import re

import pytest
from tasks import cbmi, refused

from cbmi.humaneval.report import study_latex, study_markdown, write_study_report
from cbmi.humaneval.schemes import CRITERIA, Rating
from cbmi.humaneval.summary import PairedDifference, study_summary


def test_the_report(study, rate_all):
    adequacy = {"one": 3, "same": 3, "=cmd()": 5}

    def value(text, criterion):
        system = text.split()[0]
        return adequacy[system] - (criterion == "fluency")

    for annotator in study.annotators():
        rate_all(study, annotator, value)
    summary = study_summary(study)
    rows = {row.system: row for row in summary.systems}
    assert list(rows) == ["one", "same", "<b>&|"]
    assert rows["one"].scores["adequacy"].mean == 3
    assert rows["one"].tests == {}
    assert rows["<b>&|"].scores["average"].mean == 4.5
    assert rows["<b>&|"].tests["adequacy"].difference == 2.0
    assert rows["<b>&|"].tests["adequacy"].p == pytest.approx(2 / 2**10)
    assert rows["same"].tests["fluency"] == PairedDifference(0.0, 1.0)
    assert summary.agreement["fluency"].kappa == 1.0
    assert summary.annotators == {"annotator-1": study.size(), "annotator-2": study.size()}
    row = "| one | 3.00 [3.00, 3.00]* | 2.00 [2.00, 2.00]* | 2.50 [2.50, 2.50] |"
    text = study_markdown(summary)
    assert row in text
    assert "| \\<b>&\\| | **5.00** [5.00, 5.00] (+2.00, p 0.002)* |" in text
    assert "(+0.00, p 1.000)" in text
    row = r"$<$b$>$\&$|$ & \textbf{5.00}$^{*}$ & \textbf{4.00}$^{*}$ & \textbf{4.50} \\"
    assert row in study_latex(summary)
    assert r"one & 3.00$^{*}$ & 2.00$^{*}$ & 2.50 \\" in study_latex(summary)  # it is the first


def test_what_only_some_have_rated_counts_as_far_as_it_goes(study):
    first = study.items("annotator-1")[0]
    study.rate("annotator-1", [Rating(first.number, "adequacy", 4)])
    summary = study_summary(study)
    scores = [row.scores for row in summary.systems]
    assert sum(score["adequacy"] is not None for score in scores) >= 1
    assert all(score["fluency"] is None and score["average"] is None for score in scores)
    assert summary.agreement["adequacy"] is None
    assert "–" in study_markdown(summary)
    assert " 4.00 |" in study_markdown(summary)  # one line has no interval


def test_the_report_of_the_command(study, rate_all):
    folder = study.path.parent
    assert "nobody has rated" in refused("humaneval", "report", folder)
    rate_all(study, "annotator-1", lambda text, criterion: 1 + len(text) % 5)
    result = cbmi("humaneval", "report", folder)
    assert result.returncode == 0, result.stderr.decode()
    page = (folder / "report" / "report.html").read_text()
    assert "&lt;b&gt;&amp;|" in page
    assert "kappa is above" not in page  # one annotator agrees with nobody
    assert "</b>*" not in page
    assert "<b>&|" not in page
    ratings = (folder / "report" / "ratings.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(ratings)))
    assert len(rows) == 3 * 10 * len(CRITERIA)
    assert {row["system"] for row in rows} == {"one", "same", "<b>&|"}


def test_the_page_stars_what_annotators_agree_on(study, rate_all):
    for annotator in study.annotators():
        rate_all(study, annotator, lambda text, criterion: 1 + len(text) % 5)
    write_study_report(study, study.path.parent / "report")
    page = (study.path.parent / "report" / "report.html").read_text()
    assert "* The average Cohen's kappa is above 0.6." in page
    stars = re.findall(r"\d(?:</b>)?\*", page)
    assert len(stars) == 3 * len(CRITERIA)  # the average has no kappa
