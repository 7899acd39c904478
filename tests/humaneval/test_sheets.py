"""Sheets of a human evaluation: out to a spreadsheet program and back without loss."""

import csv
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from tasks import cbmi, refused

from cbmi.humaneval.sheets import export_sheet, import_sheet
from cbmi.humaneval.study import create_study


def test_sheets_go_out_and_come_back(study, tmp_path):
    folder = study.path.parent
    sheet = tmp_path / "sheet.csv"
    result = cbmi("humaneval", "export", folder, "--annotator", "annotator-2", "-o", sheet)
    assert result.returncode == 0
    rows = list(csv.DictReader(io.StringIO(sheet.read_text(encoding="utf-8-sig"))))
    numbers = [str(item.number) for item in study.items("annotator-2")]
    assert [row["item"] for row in rows] == numbers
    # No formula for a spreadsheet program.
    assert all(not row["translation"].startswith("=") for row in rows)
    for number, row in enumerate(rows[:7]):
        row["adequacy"] = 1 + number % 5
        row["fluency"] = "" if number == 6 else 5
    with open(sheet, "w", encoding="utf-8-sig", newline="") as file:  # as a German Excel saves it
        writer = csv.DictWriter(file, rows[0], delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    result = cbmi("humaneval", "import", folder, sheet, "--annotator", "annotator-2")
    assert result.stdout.decode() == "13 ratings read\n"
    given = [item.ratings for item in study.items("annotator-2")]
    assert given[:2] == [{"adequacy": 1, "fluency": 5}, {"adequacy": 2, "fluency": 5}]
    assert given[6] == {"adequacy": 2}
    again = io.StringIO()
    export_sheet(study, "annotator-2", again)
    (tmp_path / "again.csv").write_text(again.getvalue(), newline="")
    assert import_sheet(study, "annotator-2", tmp_path / "again.csv") == (13, 0)
    message = refused("humaneval", "import", folder, sheet, "--annotator", "annotator-1")
    says = "line 2, column annotator: this is the sheet of annotator-2, not of annotator-1"
    assert says in message
    item = study.items("annotator-2")[0].number
    changed = tmp_path / "changed.csv"
    changed.write_text(f"item,adequacy,fluency\n{item},1,2\n")
    result = cbmi("humaneval", "import", folder, changed, "--annotator", "annotator-2")
    assert result.stdout.decode() == "2 ratings read, 1 of them in place of others\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,b\n1,2\n", "line 1: there is no column 'item'"),
        ("item,adequacy,fluency\n1,3,\nx,2,\n", "line 3, column item: there is no item 'x'"),
        (
            "item,adequacy,fluency\n1,3,\n2,6,\n",
            "line 3, column adequacy: '6' should be a whole number from 1 to 5",
        ),
        ("item,adequacy,fluency\n1,3,\n99,1,\n", "line 3, column item: there is no item '99'"),
        ("", "line 1: there is no column 'item'"),
        ("item,Adequacy,Fluency\n1,3,3\n", "line 1: there is no column 'adequacy'"),
        ("item,adequacy,fluency\n1,3,3\n1,2,2\n", "line 3, column item: item 1 appears twice"),
        (
            "item,adequacy,fluency\n1,3,3\n01,2,2\n",
            "line 3, column item: item 1 appears twice",
        ),
        ("item,adequacy,fluency\n1,²,3\n", "line 2, column adequacy: '²' should be"),
        ("item,adequacy,fluency\n²,1,3\n", "line 2, column item: there is no item '²'"),
        (
            f"item,adequacy,fluency\n{'9' * 5000},1,3\n",
            f"line 2, column item: there is no item '{'9' * 40}'",
        ),
        ('item,adequacy,fluency\n1,"3,3\n', "unexpected end of data"),
        ("item,adequacy,fluency,adequacy\n1,3,3,4\n", "two columns are named 'adequacy'"),
    ],
)
def test_bad_sheets_are_refused_whole(study, tmp_path, content, says):
    sheet = tmp_path / "bad.csv"
    sheet.write_text(content)
    folder = study.path.parent
    message = refused("humaneval", "import", folder, sheet, "--annotator", "annotator-1")
    assert says in message
    assert "bad.csv" in message
    assert all(not item.ratings for item in study.items("annotator-1"))


def test_any_text_survives_a_spreadsheet(tmp_path, rate_all):
    odd = ["a\u2028b", "c\u0085d\x0c", 'e"f;g,h', "x" * 200_000, "\ufeffz"]
    text = tmp_path / "odd"
    text.write_text("".join(line + "\n" for line in odd), newline="\n")
    folder = tmp_path / "s"
    study = create_study(folder, str(text), None, [("one", str(text))], 5, 1, seed=1)
    rate_all(study, "annotator-1", lambda text, criterion: 1 + len(text) % 5)
    before = study.items("annotator-1")
    sheet = tmp_path / "sheet.csv"
    result = cbmi("humaneval", "export", folder, "--annotator", "annotator-1", "-o", sheet)
    assert result.returncode == 0
    assert sheet.read_bytes().startswith(b"\xef\xbb\xbf")
    limit = csv.field_size_limit()
    assert import_sheet(study, "annotator-1", sheet) == (10, 0)
    assert study.items("annotator-1") == before
    assert csv.field_size_limit() == limit < 200_000  # the caller's switch is as it was


def test_sheets_read_at_once_leave_the_limit_of_the_csv_module(study, tmp_path):
    item = study.items("annotator-1")[0].number
    sheets = []
    for number in range(8):
        sheet = tmp_path / f"{number}.csv"
        sheet.write_text(f"item,adequacy,fluency,note\n{item},1,2,{'x' * (150_000 + number)}\n")
        sheets.append(sheet)
    limit = csv.field_size_limit()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda sheet: import_sheet(study, "annotator-1", sheet), sheets))
    assert [result.read for result in results] == [2] * 8
    assert csv.field_size_limit() == limit
