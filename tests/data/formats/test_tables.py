"""CSV, TSV, JSON lines and Parquet: which columns, which rows."""

from __future__ import annotations

import csv
import json
from collections import Counter

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from cbmi.data.formats import DOCUMENTS, TABLES, read_entries
from cbmi.data.formats.columns import find_columns
from cbmi.data.formats.entry import EMPTY, UNTRANSLATED, one_line
from cbmi.data.lines import NOT_LINES
from cbmi.data.text import is_plain, read_pairs
from cbmi.errors import UserError

LANGUAGES = ("en", "de")
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def pairs(path, languages=LANGUAGES) -> list[tuple[str, str]]:
    return list(read_pairs([str(path)], languages, Counter()))


def test_what_is_not_lines_is_known():
    assert {*DOCUMENTS, *TABLES} - {".tsv"} == NOT_LINES


def test_columns_are_found_by_name():
    def find(*names, given=None):
        return find_columns(names, LANGUAGES, given, "x")

    assert find("id", "de", "en") == ("en", "de")
    assert find("en_US", "de-DE") == ("en_US", "de-DE")
    assert find("Target", "Source") == ("Source", "Target")
    assert find("id", "translation.de", "translation.en") == ("translation.en", "translation.de")
    assert find("a", "b", given=("b", "a")) == ("b", "a")
    with pytest.raises(UserError, match=r"x: there is no column 'c', but 'a', 'b'\."):
        find("a", "b", given=("a", "c"))
    with pytest.raises(UserError, match=r"x: there are no columns en and de, .* but 'a', 'b'; "):
        find("a", "b")


@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=6))
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_gives_what_was_written(tmp_path_factory, delimiter, rows):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["de", "id", "en"])
        writer.writerows([target, 1, source] for source, target in rows)
    expected = [(one_line(source), one_line(target)) for source, target in rows]
    assert pairs(path) == [pair for pair in expected if all(pair)]


@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=6), nested=st.booleans())
def test_json_lines_and_parquet_give_the_same(tmp_path_factory, rows, nested):
    folder = tmp_path_factory.mktemp("same")
    records = [{"en": source, "de": target} for source, target in rows]
    if nested:
        records = [{"translation": record} for record in records]
    (folder / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    expected = [(one_line(source), one_line(target)) for source, target in rows]
    expected = [pair for pair in expected if all(pair)]
    assert pairs(folder / "a.jsonl") == expected
    if records:
        parquet.write_table(pyarrow.Table.from_pylist(records), folder / "a.parquet")
        assert pairs(folder / "a.parquet") == expected


def test_empty_sides_are_left_out_with_their_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('en,de\na,b\n"c\nd",e\n,f\ng,\n\n')
    found = [(entry.line, entry.left_out) for entry in read_entries(str(path), LANGUAGES)]
    assert found == [(2, None), (3, None), (5, EMPTY), (6, UNTRANSLATED)]


def test_a_tsv_is_a_table_if_its_first_line_names_the_columns(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('id\ten\tde\n1\tsay "a\tsag "a\n')
    assert pairs(path) == [('say "a', 'sag "a')]
    path.write_text("one\teins\ntwo\tzwei\n")
    assert is_plain(str(path), LANGUAGES)
    assert pairs(path) == [("one", "eins"), ("two", "zwei")]


def test_utf_16_is_read_if_it_says_so(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("en,de\nä,ö\n".encode("utf-16"))
    assert pairs(path) == [("ä", "ö")]


def test_parquet_columns_that_are_not_text_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"en": [1], "de": ["x"]}), path)
    with pytest.raises(UserError, match=r"a.parquet: the column 'en' is int64, not text\."):
        pairs(path)
