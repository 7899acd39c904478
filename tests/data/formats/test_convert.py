"""`cbmi corpus convert`, as a user runs it; and the formats directly in a run file."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tasks import cbmi, write_task

from cbmi.data.convert import convert
from cbmi.data.corpus import digests_of, read_meta
from cbmi.data.prepare import prepare_corpora
from cbmi.data_settings import DataSettings
from cbmi.errors import UserError

UNIT = '<tu><tuv xml:lang="{}"><seg>{}</seg></tuv><tuv xml:lang="{}"><seg>{}</seg></tuv></tu>\n'
PO = 'msgid "three"\nmsgstr "drei"\n\n#, fuzzy\nmsgid "four"\nmsgstr "vier"\n\n'


def write_tmx(path, pairs, source="en", target="de"):
    units = [UNIT.format(source, one, target, two) for one, two in pairs]
    path.write_text(f"<tmx><body>{''.join(units)}</body></tmx>")


def test_all_inputs_go_into_two_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tmx(tmp_path / "a.tmx", [("one", "eins"), ("two", "")])
    (tmp_path / "b.po").write_text(PO)
    (tmp_path / "c.en").write_text("five\n\nsix\n")
    (tmp_path / "c.de").write_text("fünf\nx\nsechs\n")
    (tmp_path / "d.csv").write_text("English,German\nseven,sieben\n")
    command = ["corpus", "convert", "a.tmx", "b.po", "c.en", "c.de"]
    options = ["--source", "en", "--target", "de", "-o", "out", "--report"]
    finished = cbmi(*command, *options)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "out.en").read_text() == "one\nthree\nfive\nsix\n"
    assert (tmp_path / "out.de").read_text() == "eins\ndrei\nfünf\nsechs\n"
    for line in (
        "a.tmx: 1 pair; left out: 1 untranslated",
        "b.po: 1 pair; left out: 1 fuzzy",
        "c.en and c.de: 2 pairs; left out: 1 without a source",
        "4 pairs written to out.en and out.de; report: out.report.json",
    ):
        assert line in finished.stderr.decode()
    first, second, _ = json.loads((tmp_path / "out.report.json").read_text())
    assert first["left_out"]["untranslated"] == 1
    assert second["examples"]["fuzzy"] == [{"line": 5, "source": "four", "target": "vier"}]
    columns = ["--columns", "English", "German"]
    finished = cbmi("corpus", "convert", "d.csv", *options[:-1], *columns)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "out.de").read_text() == "sieben\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a.tmx", "c.en"], "c.en: this has one language; name the file of its translations"),
        (["c.en", "a.tmx"], "c.en: this has one language; name the file of its translations"),
        (["no.tmx"], "no.tmx: there is no such file."),
        (["broken.tmx"], "broken.tmx, line 2: broken XML"),
        (["other.tmx"], "there is no pair of en and de: other.tmx: 0 pairs; left out: 1 in other"),
        (["x.mo"], "x.mo: .mo files are not supported"),
        (["x.en", "x.de"], "x.en would be overwritten by output x"),
    ],
)
def test_a_mistake_leaves_what_was_there(tmp_path, monkeypatch, files, message):
    monkeypatch.chdir(tmp_path)
    write_tmx(tmp_path / "a.tmx", [("one", "eins")])
    write_tmx(tmp_path / "other.tmx", [("one", "un")], target="fr")
    (tmp_path / "broken.tmx").write_text("<tmx>\n<body>")
    for name in ("c.en", "x.mo"):
        (tmp_path / name).write_text("five\n")
    for name in ("x.en", "x.de"):
        (tmp_path / name).write_text("before\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    if files == ["x.mo"]:
        files = ["x.mo", "x.mo"]
    with pytest.raises(UserError) as error:
        convert(files, ("en", "de"), "x")
    assert message in str(error.value)
    assert (tmp_path / "x.en").read_text() == "before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_prefixes_and_codes(tmp_path):
    write_tmx(tmp_path / "a.tmx", [("one", "eins")])
    file = str(tmp_path / "a.tmx")
    assert convert([file], ("en-US", "de"), f"{tmp_path}/new/deep/x") == 1
    assert (tmp_path / "new" / "deep" / "x.en-US").read_text() == "one\n"
    with pytest.raises(UserError, match="is a folder; name what the files begin with"):
        convert([file], ("en", "de"), f"{tmp_path}/")
    with pytest.raises(UserError, match=r"--target: '\.\./de' is not a language code"):
        convert([file], ("en", "../de"), "x")
    (tmp_path / "b.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="--columns: source and target are both 'a'"):
        convert([str(tmp_path / "b.csv")], ("en", "de"), f"{tmp_path}/x", ("a", "a"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_file(tmp_path):
    """40 MB, more than the process may use beyond what Python and its imports need."""
    sentence = "The quick brown fox jumps over the lazy dog, again and again. " * 4
    unit = UNIT.format("en", sentence, "de", sentence)
    with open(tmp_path / "a.tmx", "w") as file:
        file.write("<tmx><body>")
        file.writelines([unit] * (40_000_000 // len(unit)))
        file.write("</body></tmx>")
    script = (
        "from cbmi.data.convert import convert; convert(['a.tmx'], ('en', 'de'), 'x'); "
        "print(open('/proc/self/status').read())"
    )
    command = [sys.executable, "-c", script]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    peak = next(line for line in finished.stdout.splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 64 * 1024  # KiB


def test_a_run_file_may_name_other_formats(tmp_path):
    """The same text as lines and as TMX is prepared to the same data."""
    write_task(tmp_path, train=300)
    sides = [(tmp_path / f"train.{end}").read_text().splitlines() for end in ("src", "tgt")]
    write_tmx(tmp_path / "train.tmx", [*zip(*sides, strict=True), ("a", "")])
    prepared = []
    for name, files in (("text", ["train.src", "train.tgt"]), ("tmx", ["train.tmx"])):
        settings = DataSettings(
            source="en",
            target="de",
            train=[str(tmp_path / file) for file in files],
            valid=[str(tmp_path / file) for file in files],
            vocabulary={"size": 310},
            segmentations={"samples": 2},
        )
        prepare_corpora(settings, tmp_path / name)
        meta = read_meta(tmp_path / name / "data" / "train")
        digests = {file: own for file, own in meta.digests.items() if file != "skipped"}
        prepared.append((digests, digests_of(tmp_path / name / "data" / "segmentations")))
    assert prepared[0] == prepared[1]
    assert meta.left_out["untranslated"] == 1
