"""Tables as text, Markdown and CSV, signed numbers and the names of bins."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmi.reporting.tables import (
    bin_label,
    csv_of_records,
    csv_text,
    escape_markdown,
    markdown_table,
    signed,
    text_table,
)


def test_a_markdown_table():
    table = markdown_table(["", "BLEU", "p"], [["ce", "27.1", ""], ["cbmi", "28.0", "0.01"]], "lrr")
    assert table == "|  | BLEU | p |\n|---|--:|--:|\n| ce | 27.1 |  |\n| cbmi | 28.0 | 0.01 |"


def test_rows_may_come_from_a_generator():
    assert markdown_table(["n"], ([str(n)] for n in range(2)), "r") == "| n |\n|--:|\n| 0 |\n| 1 |"


@pytest.mark.parametrize(("header", "row"), [(["a"], ["1", "2"]), (["a", "b"], ["1"])])
def test_every_row_has_all_columns(header, row):
    with pytest.raises(ValueError, match="table of 2 columns"):
        markdown_table(header, [row], "lr")


def test_markdown_shows_escaped_text_as_it_is():
    assert escape_markdown("+ a_b*c|d<e\\f>") == "+ a\\_b\\*c\\|d\\<e\\\\f>"


def test_csv_of_rows():
    assert csv_text([["a", "b"], [1, None], ["x,y", 0.5]]) == 'a,b\n1,\n"x,y",0.5\n'
    assert csv_text([]) == ""


# Python 3.11 does not quote a lone carriage return.
@given(st.lists(st.lists(st.text(st.characters(exclude_characters="\r")), min_size=2, max_size=2)))
def test_csv_comes_back_as_it_was(rows):
    assert list(csv.reader(io.StringIO(csv_text(rows), newline=""))) == rows


def test_csv_of_records_has_the_columns_of_all():
    records = [{"task": "a", "bleu": 27.5}, {"task": "b", "chrf": 50, "bleu": None}]
    assert csv_of_records(records) == "task,bleu,chrf\na,27.5,\nb,,50\n"
    assert csv_of_records([]) == "\n"


@pytest.mark.parametrize(
    ("low", "high", "long", "compact"),
    [
        (None, -4.0, "≤ −4", "≤−4"),
        (2.0, 4.0, "2 to 4", "2…4"),
        (-0.5, 0.0, "−0.5 to 0", "−0.5…0"),
        (12.0, None, "> 12", ">12"),
        (None, None, "all", "all"),
    ],
)
def test_names_of_bins(low, high, long, compact):
    assert bin_label(low, high) == long
    assert bin_label(low, high, compact=True) == compact


def test_a_text_table():
    rows = [["name", "n", "note"], ["a", "1,000", ""], ["long name", "2", "seen"]]
    assert text_table(rows, "lrl") == [
        "name           n  note",
        "a          1,000",
        "long name      2  seen",
    ]
    assert text_table([], "lr") == []


def test_every_row_of_a_text_table_has_all_columns():
    with pytest.raises(ValueError, match="table of 2 columns"):
        text_table([["a", "b"], ["c"]], "lr")


def test_signed_numbers():
    values = (0.123, -0.314, 0.004, -0.004, 0.0, -0.0)
    assert [signed(value) for value in values] == ["+0.12", "−0.31"] + ["+0.00"] * 4
    assert [signed(value, 1) for value in (-0.04, -0.06, 12.34)] == ["+0.0", "−0.1", "+12.3"]
