"""Human evaluation: blind, complete, lossless; through the commands as people give them."""

import csv
import io
import json

import pytest
from tasks import cbmi, refused

from cbmi.analysis.study import CRITERIA, create_study, export_sheet, import_sheet, open_study
from cbmi.analysis.study_report import summary, to_latex, to_markdown
from cbmi.errors import UserError


@pytest.fixture
def files(tmp_path):
    """A test set of 12 lines with three systems; "same" says the same as "one" on every other line."""
    texts = {
        "source": [f"source {n}" for n in range(12)],
        "reference": [f"reference {n}" for n in range(12)],
        "one": [f"one says {n}" for n in range(12)],
        "same": [f"{'one' if n % 2 else 'same'} says {n}" for n in range(12)],
        "<b>&|": [f"=cmd() {n}" for n in range(12)],
    }
    paths = {}
    for number, (name, lines) in enumerate(texts.items()):
        paths[name] = tmp_path / f"{number}.txt"
        paths[name].write_text("".join(line + "\n" for line in lines))
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture
def study(files, tmp_path):
    systems = [(name, files[name]) for name in ("one", "same", "<b>&|")]
    return create_study(tmp_path / "study", files["source"], files["reference"], systems, 10, 2, seed=3)


def rate_all(study, annotator, value):
    """Rate everything by a function of (translation, criterion)."""
    for item in study.items(annotator):
        study.rate(annotator, [(item["item"], name, value(item["translation"], name)) for name in CRITERIA])


def test_every_translation_is_an_item_once(study):
    items = study.items("annotator-1")
    shown = [(item["source"], item["translation"]) for item in items]
    assert len(set(shown)) == len(shown) == study.size()
    lines = {source.split()[1] for source, _ in shown}
    assert len(lines) == 10
    odd = sum(int(line) % 2 for line in lines)
    assert study.size() == 3 * 10 - odd  # "one" and "same" share the odd lines
    assert all(item["reference"] == item["source"].replace("source", "reference") for item in items)


def test_it_is_blind_and_every_order_is_its_own(study):
    first, second = (study.items(name) for name in ("annotator-1", "annotator-2"))
    assert set(first[0]) == {"item", "source", "reference", "translation", "ratings"}
    orders = [[item["item"] for item in items] for items in (first, second)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    by_system = [item["item"] for item in sorted(first, key=lambda item: item["translation"])]
    assert by_system != sorted(by_system)  # numbers do not follow the systems


def test_the_same_seed_draws_the_same(files, tmp_path):
    systems = [("one", files["one"])]
    made = [create_study(tmp_path / name, files["source"], None, systems, 5, 1, seed=7) for name in ("a", "b")]
    assert made[0].items("annotator-1") == made[1].items("annotator-1")
    assert made[0].annotators() != made[1].annotators()  # links are private


def test_ratings_are_kept_and_may_change(study):
    item = study.items("annotator-1")[0]["item"]
    study.rate("annotator-1", [(item, "adequacy", 2)])
    study.rate("annotator-1", [(item, "adequacy", 4), (item, "fluency", 5)])
    again = open_study(study.path.parent)
    assert again.items("annotator-1")[0]["ratings"] == {"adequacy": 4, "fluency": 5}
    assert all(not one["ratings"] for one in again.items("annotator-2"))
    for wrong in (
        [(item, "fluency", 1), (item, "beauty", 1)],
        [(item, "fluency", 6)],
        [(item, "fluency", 1), (999, "fluency", 1)],
    ):
        with pytest.raises(UserError):
            again.rate("annotator-1", wrong)
    assert again.items("annotator-1")[0]["ratings"] == {"adequacy": 4, "fluency": 5}  # all of it, or nothing


def test_the_report(study):
    scores = {"one": 3, "same": 3, "=cmd": 5}
    for annotator in study.annotators():
        rate_all(study, annotator, lambda text, name: scores[text.replace("(", " ").split()[0]] - (name == "fluency"))
    found = summary(study)
    rows = {row["system"]: row for row in found["systems"]}
    assert list(rows) == ["one", "same", "<b>&|"]
    assert rows["one"]["scores"]["adequacy"]["mean"] == 3
    assert rows["<b>&|"]["scores"]["average"]["mean"] == 4.5
    assert rows["<b>&|"]["tests"]["adequacy"] == {"difference": 2.0, "p": pytest.approx(2 / 2**10)}
    assert rows["same"]["tests"]["fluency"] == {"difference": 0.0, "p": 1.0}
    assert found["agreement"]["fluency"]["kappa"] == 1.0
    assert found["annotators"] == {"annotator-1": study.size(), "annotator-2": study.size()}
    assert "| one | 3.00 [3.00, 3.00]* | 2.00 [2.00, 2.00]* | 2.50 [2.50, 2.50] |" in to_markdown(found)
    assert r"$<$b$>$\&$|$ & 5.00$^{*}$ & 4.00$^{*}$ & 4.50 \\" in to_latex(found)


def test_what_only_some_have_rated_counts_as_far_as_it_goes(study):
    items = study.items("annotator-1")
    study.rate("annotator-1", [(items[0]["item"], "adequacy", 4)])
    found = summary(study)
    scores = [row["scores"] for row in found["systems"]]
    assert sum(score["adequacy"] is not None for score in scores) >= 1
    assert all(score["fluency"] is None and score["average"] is None for score in scores)
    assert found["agreement"]["adequacy"] is None
    assert "–" in to_markdown(found)
    assert " 4.00 |" in to_markdown(found)  # one line has no interval


def test_the_report_of_the_command(study, tmp_path):
    folder = study.path.parent
    assert "nobody has rated" in refused("humaneval", "report", folder)
    rate_all(study, "annotator-1", lambda text, name: 1 + len(text) % 5)
    result = cbmi("humaneval", "report", folder)
    assert result.returncode == 0, result.stderr.decode()
    page = (folder / "report" / "report.html").read_text()
    assert "&lt;b&gt;&amp;|" in page
    assert "kappa is above" not in page  # one annotator agrees with nobody
    assert "<b>&|" not in page
    rows = list(csv.DictReader(io.StringIO((folder / "report" / "ratings.csv").read_text())))
    assert len(rows) == 3 * 10 * len(CRITERIA)
    assert {row["system"] for row in rows} == {"one", "same", "<b>&|"}


def test_sheets_go_out_and_come_back(study, tmp_path):
    folder, sheet = study.path.parent, tmp_path / "sheet.csv"
    assert cbmi("humaneval", "export", folder, "--annotator", "annotator-2", "-o", sheet).returncode == 0
    rows = list(csv.DictReader(io.StringIO(sheet.read_text(encoding="utf-8-sig"))))
    assert [row["item"] for row in rows] == [str(item["item"]) for item in study.items("annotator-2")]
    assert all(not row["translation"].startswith("=") for row in rows)  # no formula for a spreadsheet program
    for number, row in enumerate(rows[:7]):
        row |= {"adequacy": 1 + number % 5, "fluency": "" if number == 6 else 5}
    with open(sheet, "w", encoding="utf-8-sig", newline="") as file:  # as a German Excel saves it
        writer = csv.DictWriter(file, rows[0], delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    result = cbmi("humaneval", "import", folder, sheet, "--annotator", "annotator-2")
    assert result.stdout.decode() == "13 ratings read\n"
    given = [item["ratings"] for item in study.items("annotator-2")]
    assert given[:2] == [{"adequacy": 1, "fluency": 5}, {"adequacy": 2, "fluency": 5}]
    assert given[6] == {"adequacy": 2}
    again = io.StringIO()
    export_sheet(study, "annotator-2", again)
    (tmp_path / "again.csv").write_text(again.getvalue(), newline="")
    assert import_sheet(study, "annotator-2", tmp_path / "again.csv") == (13, 0)
    wrong = ("humaneval", "import", folder, sheet, "--annotator", "annotator-1")
    assert "line 2, column annotator: this is the sheet of annotator-2, not of annotator-1" in refused(*wrong)
    item = study.items("annotator-2")[0]["item"]
    (tmp_path / "changed.csv").write_text(f"item,adequacy,fluency\n{item},1,2\n")
    result = cbmi("humaneval", "import", folder, tmp_path / "changed.csv", "--annotator", "annotator-2")
    assert result.stdout.decode() == "2 ratings read, 1 of them in place of others\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,b\n1,2\n", "line 1: there is no column 'item'"),
        ("item,adequacy,fluency\n1,3,\nx,2,\n", "line 3, column item: there is no item 'x'"),
        ("item,adequacy,fluency\n1,3,\n2,6,\n", "line 3, column adequacy: '6' should be a whole number from 1 to 5"),
        ("item,adequacy,fluency\n1,3,\n99,1,\n", "line 3, column item: there is no item '99'"),
        ("", "line 1: there is no column 'item'"),
        ("item,Adequacy,Fluency\n1,3,3\n", "line 1: there is no column 'adequacy'"),
        ("item,adequacy,fluency\n1,3,3\n1,2,2\n", "line 3, column item: item 1 stands there twice"),
        ("item,adequacy,fluency\n1,3,3\n01,2,2\n", "line 3, column item: item 1 stands there twice"),
        ("item,adequacy,fluency\n1,²,3\n", "line 2, column adequacy: '²' should be"),
        ("item,adequacy,fluency\n²,1,3\n", "line 2, column item: there is no item '²'"),
    ],
)
def test_bad_sheets_are_refused_whole(study, tmp_path, content, says):
    (tmp_path / "bad.csv").write_text(content)
    message = refused("humaneval", "import", study.path.parent, tmp_path / "bad.csv", "--annotator", "annotator-1")
    assert says in message
    assert "bad.csv" in message
    assert all(not item["ratings"] for item in study.items("annotator-1"))


def test_a_system_may_have_any_name(files, tmp_path):
    systems = [("reference", files["one"]), ("source", files["same"])]
    study = create_study(tmp_path / "named", files["source"], None, systems, 4, 1, seed=1)
    assert all(item["reference"] is None for item in study.items("annotator-1"))
    study = create_study(tmp_path / "both", files["source"], files["reference"], systems, 4, 1, seed=1)
    items = study.items("annotator-1")
    assert all(item["reference"].startswith("reference") for item in items)
    assert any(item["translation"].startswith("one") for item in items)


def test_any_text_survives_a_spreadsheet(tmp_path):
    odd = ["a\u2028b", "c\u0085d\x0c", 'e"f;g,h', "x" * 200_000, "\ufeffz"]
    (tmp_path / "odd").write_text("".join(line + "\n" for line in odd), newline="\n")
    study = create_study(tmp_path / "s", str(tmp_path / "odd"), None, [("one", str(tmp_path / "odd"))], 5, 1, seed=1)
    rate_all(study, "annotator-1", lambda text, name: 1 + len(text) % 5)
    before, sheet = study.items("annotator-1"), tmp_path / "sheet.csv"
    assert cbmi("humaneval", "export", tmp_path / "s", "--annotator", "annotator-1", "-o", sheet).returncode == 0
    assert sheet.read_bytes().startswith(b"\xef\xbb\xbf")
    assert import_sheet(study, "annotator-1", sheet) == (10, 0)
    assert study.items("annotator-1") == before


def test_a_study_that_was_moved_away_is_missed(study):
    study.path.rename(study.path.with_name("elsewhere.db"))
    with pytest.raises(UserError, match=r"study\.db"):
        study.items("annotator-1")
    assert not study.path.exists()


def test_bad_studies_are_refused(files, tmp_path):
    (tmp_path / "short.txt").write_text("one\n")

    def create(*arguments):
        return refused("humaneval", "create", "--source", files["source"], "-o", tmp_path / "new", *arguments)

    one = ("--system", f"one={files['one']}")
    assert "should be NAME=FILE" in create("--system", files["one"])
    assert "two systems are named 'one'" in create(*one, *one)
    assert "short.txt has 1" in create(*one, "--system", f"x={tmp_path / 'short.txt'}")
    assert "cannot be read" in create("--system", f"x={tmp_path / 'none'}")
    assert "--sample: 13 is more than the 12 lines" in create(*one, "--sample", "13")
    assert not (tmp_path / "new").exists()
    assert "there is no study here" in refused("humaneval", "report", tmp_path)
    assert (
        cbmi(
            "humaneval", "create", "--source", files["source"], "-o", tmp_path / "new", *one, "--sample", "3"
        ).returncode
        == 0
    )
    assert "holds a study already" in create(*one, "--sample", "3")
    assert "there is no 'x'" in refused("humaneval", "export", tmp_path / "new", "--annotator", "x")
    (tmp_path / "new" / "study.db").write_text(json.dumps("no database") * 100)
    assert "study.db" in refused("humaneval", "report", tmp_path / "new")
