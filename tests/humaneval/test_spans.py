"""Error spans: what annotators mark, what it costs a system, and what is refused."""

from __future__ import annotations

import csv
import io

import pytest
from servers import ask, server
from tasks import cbmi, refused

from cbmi.errors import UserError
from cbmi.humaneval.report import study_latex, study_markdown, write_study_report
from cbmi.humaneval.schemes import Span
from cbmi.humaneval.study import create_study
from cbmi.humaneval.summary import study_summary


@pytest.fixture
def spans(files, tmp_path):
    """A study of spans by two people with names."""
    systems = [(name, files[name]) for name in ("one", "same", "<b>&|")]
    return create_study(
        tmp_path / "spans", files["source"], None, systems, 10, ["Anna", "Ben"], 3, "spans"
    )


def mark_all(study, annotator, spans_of):
    for item in study.items(annotator):
        study.mark(annotator, item.number, spans_of(item.translation))


def errors(text: str) -> list[Span]:
    """A major error in what "one" says, a minor one and something missing in "same"."""
    if text.startswith("one"):
        return [Span(0, 3, "major")]
    if text.startswith("same"):
        return [Span(0, 4, "minor"), Span(len(text), len(text), "minor")]
    return []


def test_what_is_marked_is_kept_and_replaced(spans):
    assert list(spans.annotators()) == ["Anna", "Ben"]
    assert spans.scheme() == "spans"
    item = spans.items("Anna")[0]
    assert item.spans is None
    assert not item.is_complete("spans")
    spans.mark("Anna", item.number, [Span(0, 3, "minor")])
    spans.mark("Anna", item.number, [Span(4, 6, "major"), Span(0, 3, "minor")])
    found = {one.number: one for one in spans.items("Anna")}[item.number]
    assert found.spans == (Span(0, 3, "minor"), Span(4, 6, "major"))
    spans.mark("Anna", item.number, [])
    found = {one.number: one for one in spans.items("Anna")}[item.number]
    assert found.spans == ()
    assert found.is_complete("spans")  # looked at, and free of errors
    assert all(one.spans is None for one in spans.items("Ben"))


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([Span(0, 99, "minor")], "0 to 99 is not a part of the translation"),
        ([Span(3, 3, "minor")], "3 to 3 is not a part"),
        ([Span(0, 4, "minor"), Span(3, 5, "major")], "3 to 5 is not a part"),
        ([Span(0, 2, "fatal")], "severity: 'fatal' is not one of minor, major"),
    ],
)
def test_what_cannot_be_an_error_is_refused_and_changes_nothing(spans, wrong, expected):
    item = spans.items("Anna")[0]
    spans.mark("Anna", item.number, [Span(0, 1, "minor")])
    with pytest.raises(UserError, match=expected):
        spans.mark("Anna", item.number, wrong)
    found = {one.number: one for one in spans.items("Anna")}[item.number]
    assert found.spans == (Span(0, 1, "minor"),)
    with pytest.raises(UserError, match="there is no item 999"):
        spans.mark("Anna", 999, [])


def test_the_report(spans):
    for annotator in spans.annotators():
        mark_all(spans, annotator, errors)
    summary = study_summary(spans)
    rows = {row.system: row for row in summary.systems}
    assert rows["one"].scores["score"].mean == -5
    assert rows["one"].scores["major"].mean == 1
    assert rows["<b>&|"].scores["score"].mean == 0
    # "same" says what "one" says on half of the lines.
    sames = [item for item in spans.items("Anna") if item.translation.startswith("same")]
    share = len(sames) / 10
    assert rows["same"].scores["score"].mean == pytest.approx(-2 * share - 5 * (1 - share))
    assert rows["same"].scores["minor"].mean == pytest.approx(2 * share)
    assert rows["<b>&|"].tests["score"].difference == 5
    assert summary.is_bold(rows["<b>&|"], "score")
    assert not summary.is_bold(rows["one"], "score")
    assert summary.agreement["worst error"].kappa == 1.0
    text = study_markdown(summary)
    assert "| Model | Score | Minor errors | Major errors |" in text
    assert "| **0.00** [0.00, 0.00] (+5.00, p 0.002) |" in text
    assert "−5.00" in text
    assert "minus 5 for each major error" in text
    assert r"\\textbf{Score}" in study_latex(summary).replace("\\", "\\\\")


def test_the_files_of_the_report(spans, tmp_path):
    for annotator in spans.annotators():
        mark_all(spans, annotator, errors)
    write_study_report(spans, tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count('class="bar"') == 9
    assert "&lt;b&gt;&amp;|" in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report" / "ratings.csv").read_text())))
    assert {row["criterion"] for row in rows} == {"score", "minor", "major"}
    assert len(rows) == 2 * 10 * 3 * 3  # annotators, lines, systems, figures


def test_spans_are_not_for_spreadsheets(spans):
    message = refused("humaneval", "export", spans.path.parent, "--annotator", "Anna")
    assert "errors are marked on the page, not in a spreadsheet" in message


def test_the_command(files, tmp_path):
    command = ["humaneval", "create", "--source", files["source"], "--system", f"a={files['one']}"]
    command += ["--sample", "5", "-o", tmp_path / "s"]
    assert "--scheme: 'x' is not one of scales, spans" in refused(*command, "--scheme", "x")
    for people in ("0", "1000", "a,,b", "a<b", "x" * 99):
        assert "--annotators" in refused(*command, "--annotators", people)
    assert "two annotators are named 'a'" in refused(*command, "--annotators", "a,a")
    result = cbmi(*command, "--annotators", "Anna, Ben", "--scheme", "spans")
    assert result.returncode == 0, result.stderr.decode()


@pytest.mark.slow
def test_the_page_and_what_it_sends(spans):
    with server("humaneval", "serve", spans.path.parent) as (_, links):
        base, _, path = links[0].rpartition("/")[0].rpartition("/")
        path = f"/{path}/"
        status, page = ask(base, path)
        assert status == 200
        assert "Hello, Anna." in page
        assert "An error that changes the meaning" in page
        items = ask(base, path + "items")[1]["items"]
        assert {item["spans"] for item in items} == {None}
        body = {"item": items[0]["item"], "spans": [{"start": 0, "end": 3, "severity": "major"}]}
        assert ask(base, path + "spans", body)[0] == 200
        assert spans.items("Anna")[0].spans == (Span(0, 3, "major"),)
        for wrong in (
            {"item": 999, "spans": []},
            {"item": items[0]["item"], "spans": [{"start": 0, "end": 999, "severity": "major"}]},
            {"item": items[0]["item"], "spans": [{"start": 0, "end": 3, "severity": "x"}]},
            {"item": items[0]["item"]},
        ):
            status, answer = ask(base, path + "spans", wrong)
            assert status == 422, answer
        assert spans.items("Anna")[0].spans == (Span(0, 3, "major"),)
