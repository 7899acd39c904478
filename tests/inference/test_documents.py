"""Files of translation tools are filled in; all else in them stays as it is, byte for byte."""

from __future__ import annotations

import polib
import pytest
from tasks import cbmi, write_run, write_task

from cbmi.data.formats import read_entries
from cbmi.errors import UserError
from cbmi.inference.documents import fill_po, fill_xliff

LANGUAGES = ("en", "de")


def shout(lines):
    return [line.upper() for line in lines]


PO = r"""# kept
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\nLanguage: de_DE\n"

#. a comment
#, c-format
msgctxt "menu"
msgid ""
"open \"%s\"\n"
"now\n"
msgstr ""

msgid "done"
msgstr   "fertig"
#, fuzzy
msgid "fuzzy"
msgstr "unscharf"

msgid "apple"
msgid_plural "apples"
msgstr[0] ""
msgstr[1] ""
""

#~ msgid "gone"
#~ msgstr ""
"""
FILLED_PO = (
    PO.replace('#, c-format\nmsgctxt "menu"', '#, c-format\n#, fuzzy\nmsgctxt "menu"')
    .replace('now\\n"\nmsgstr ""', 'now\\n"\nmsgstr "OPEN \\"%S\\"\\nNOW\\n"')
    .replace('msgid "apple"', '#, fuzzy\nmsgid "apple"')
    .replace('msgstr[0] ""\nmsgstr[1] ""\n""', 'msgstr[0] "APPLE"\nmsgstr[1] "APPLES"')
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_po(tmp_path, end):
    filled = fill_po(PO.replace("\n", end).encode(), "a.po", LANGUAGES, shout)
    assert filled.content.decode() == FILLED_PO.replace("\n", end)
    assert filled.translated == 3
    (tmp_path / "a.po").write_bytes(filled.content)
    entries = {entry.msgid: entry for entry in polib.pofile(str(tmp_path / "a.po"))}
    assert entries["apple"].fuzzy
    assert entries["apple"].msgstr_plural == {0: "APPLE", 1: "APPLES"}
    assert entries['open "%s"\nnow\n'].flags == ["c-format", "fuzzy"]
    assert not entries["done"].fuzzy


def test_po_in_another_encoding():
    text = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n\n'
    text += 'msgid "größer"\nmsgstr ""\n'
    filled = fill_po(text.encode("latin-1"), "a.po", LANGUAGES, lambda lines: ["Größe"])
    assert filled.content.decode("latin-1").endswith('#, fuzzy\nmsgid "größer"\nmsgstr "Größe"\n')
    with pytest.raises(UserError, match=r"a\.po: '€' cannot be written in ISO8859-1"):
        fill_po(text.encode("latin-1"), "a.po", LANGUAGES, lambda lines: ["€"])
    with pytest.raises(UserError, match="this is in fr, but the model translates into de"):
        fill_po(b'msgid ""\nmsgstr "Language: fr\\n"\n', "a.po", LANGUAGES, shout)


XLIFF_1 = """<?xml version="1.0" encoding="{encoding}"?>
<!-- <source>kept</source> -->
<x:xliff version="1.2" xmlns:x="urn:oasis:names:tc:xliff:document:1.2">
 <x:file original='a > b' source-language="en" target-language="de"><x:body>
  <x:trans-unit id="1">
   <x:source xml:space='preserve'> a &amp; <x:g id="1>2">b</x:g></x:source>
  </x:trans-unit>
  <x:trans-unit id="2">
   <x:source><x:g id="1">one &lt; two</x:g><x:ph id="2">&lt;br/></x:ph></x:source>
   <x:target  state='new' resname="r"/>
   <x:note>kept</x:note>
  </x:trans-unit>
  <x:trans-unit id="3"><x:source>same</x:source><x:target state="new">same</x:target>
  </x:trans-unit>
  <x:trans-unit id="4"><x:source>s</x:source><x:seg-source>s</x:seg-source></x:trans-unit>
  <x:trans-unit id="5"><x:source>done</x:source><x:target>fertig</x:target></x:trans-unit>
  <x:trans-unit id="6" translate="no"><x:source>no</x:source></x:trans-unit>
  <x:trans-unit id="7"><x:source><x:x id="1"/></x:source></x:trans-unit>
 </x:body></x:file>
</x:xliff>
"""
REVIEW = 'state="needs-review-translation"'
FILLED_1 = (
    XLIFF_1.replace(
        "<x:target  state='new' resname=\"r\"/>",
        f'<x:target  {REVIEW.replace(chr(34), chr(39))} resname="r">'
        '<x:g id="1">ONE &lt; TWO</x:g><x:ph id="2">&lt;br/></x:ph></x:target>',
    )
    .replace('<x:target state="new">same', f"<x:target {REVIEW}>SAME")
    .replace("</x:seg-source>", f"</x:seg-source><x:target {REVIEW}>S</x:target>")
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_xliff_1(encoding):
    data = XLIFF_1.replace("{encoding}", encoding).encode(encoding)
    filled = fill_xliff(data, "a.xlf", LANGUAGES, shout)
    assert filled.content == FILLED_1.replace("{encoding}", encoding).encode(encoding)
    assert (filled.translated, filled.left) == (3, 1)  # unit 1 has text before and in <g>
    again = fill_xliff(filled.content, "a.xlf", LANGUAGES, shout)
    assert again.content == filled.content
    assert again.translated == 0


def test_a_target_goes_below_its_source_and_what_cannot_be_encoded_is_escaped():
    unit = '<trans-unit id="1">\n    <source>a</source>\n  </trans-unit>'
    text = f"""<?xml version="1.0" encoding="us-ascii"?>
<xliff><file source-language="en" target-language="de"><body>{unit}</body></file></xliff>"""
    filled = fill_xliff(text.encode(), "a.xlf", LANGUAGES, lambda lines: ["ä<"])
    new = f"<source>a</source>\n    <target {REVIEW}>&#228;&lt;</target>\n"
    assert filled.content.decode() == text.replace("<source>a</source>\n", new)


XLIFF_2 = """<xliff version="2.0" srcLang="en" trgLang="de-AT"><file id="f"><unit id="1">
<segment id="s" state="initial"><source>one</source></segment>
<segment><source><pc id="1">two</pc></source><target/></segment>
<segment><source>three</source><target>drei</target></segment>
</unit></file></xliff>"""


def test_xliff_2(tmp_path):
    filled = fill_xliff(XLIFF_2.encode(), "a.xlf", LANGUAGES, shout)
    expected = (
        XLIFF_2.replace(
            '<segment id="s" state="initial"><source>one</source>',
            '<segment id="s" state="translated"><source>one</source><target>ONE</target>',
        )
        .replace("<segment><source><pc", '<segment state="translated"><source><pc')
        .replace("<target/>", '<target><pc id="1">TWO</pc></target>')
    )
    assert filled.content.decode() == expected
    (tmp_path / "a.xlf").write_bytes(filled.content)
    pairs = [(one.source, one.target) for one in read_entries(str(tmp_path / "a.xlf"), LANGUAGES)]
    assert pairs == [("one", "ONE"), ("two", "TWO"), ("three", "drei")]


def test_what_was_said_of_an_empty_target_is_not_said_of_the_new_one():
    text = """<xliff version="1.2"><file source-language="en"><body>
<trans-unit id="1" approved="yes"><source>a</source>
<target state="new" state-qualifier="exact-match"/></trans-unit>
<trans-unit id="2"><source><![CDATA[b]]></source></trans-unit>
<trans-unit id="3"><source>c<!-- no --> d</source></trans-unit>
</body></file></xliff>"""
    filled = fill_xliff(text.encode(), "a.xlf", LANGUAGES, shout)
    expected = (
        text.replace('approved="yes"', 'approved="no"')
        .replace('source-language="en"', 'source-language="en" target-language="de"')
        .replace(
            '<target state="new" state-qualifier="exact-match"/>', f"<target {REVIEW}>A</target>"
        )
    )
    assert filled.content.decode() == expected
    assert (filled.translated, filled.left) == (1, 2)  # the rest cannot be kept byte for byte
    segment = "<segment><source>a</source></segment>"
    text = f'<xliff srcLang="en"><file><unit>{segment}</unit></file></xliff>'
    filled = fill_xliff(text.encode(), "a.xlf", LANGUAGES, shout)
    assert filled.content.startswith(b'<xliff srcLang="en" trgLang="de">')


def test_po_keeps_spaces_and_line_ends():
    text = 'msgid " a "\r\nmsgstr ""'
    filled = fill_po(text.encode(), "a.po", LANGUAGES, shout)
    assert filled.content.decode() == '#, fuzzy\r\nmsgid " a "\r\nmsgstr " A "'


def test_an_xliff_file_of_other_languages_is_refused():
    with pytest.raises(UserError, match="this is from en to de-AT, but the model translates de to"):
        fill_xliff(XLIFF_2.encode(), "a.xlf", ("de", "en"), shout)


@pytest.mark.slow
def test_a_model_fills_a_file_in(tmp_path):
    write_task(tmp_path, train=50)
    values = {"stages": [{"name": "ce", "steps": 2}], "validate": {"every": 2, "beam": 0}}
    assert cbmi("train", write_run(tmp_path, **values)).returncode == 0
    run = tmp_path / "run"
    (tmp_path / "a.po").write_text('msgid "a b c"\nmsgstr ""\n')
    finished = cbmi("translate", run, tmp_path / "a.po")
    assert finished.returncode == 2
    assert b"-o: name the file to write" in finished.stderr
    output = tmp_path / "out.po"
    for option in ("--scores", "--sample", "--nbest=2"):
        finished = cbmi("translate", run, tmp_path / "a.po", "-o", output, option)
        assert finished.returncode == 2
        assert b"it takes one translation" in finished.stderr
    finished = cbmi("translate", run, tmp_path / "a.po", "-o", output)
    assert finished.returncode == 0, finished.stderr
    assert b"1 translation filled in, to be reviewed" in finished.stderr
    (tmp_path / "text").write_text("a b c\n")
    (line,) = cbmi("translate", run, tmp_path / "text").stdout.decode().splitlines()
    (entry,) = polib.pofile(str(output))
    assert (entry.msgstr, entry.fuzzy) == (line, True)
