"""TMX, XLIFF and PO: what is a pair, what is left out and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

import polib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmi.data.formats import read_entries
from cbmi.data.formats.entry import (
    FUZZY,
    MARKUP_ONLY,
    NOT_FOR_TRANSLATION,
    OTHER_LANGUAGES,
    UNTRANSLATED,
    best_match,
    matches,
    one_line,
)
from cbmi.data.formats.po import quoted
from cbmi.data.text import read_pairs

LANGUAGES = ("en", "de")
TMX = '<tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>'
UNIT = '<tu><tuv xml:lang="{}"><seg>{}</seg></tuv><tuv xml:lang="{}"><seg>{}</seg></tuv></tu>'


def entries(path: Path, languages: tuple[str, str] = LANGUAGES) -> list[tuple[str, str]]:
    """(source, target) of pairs, ("", reason) of what is left out."""
    found = []
    for entry in read_entries(str(path), languages):
        reason = entry.left_out
        found.append((entry.source, entry.target) if reason is None else ("", reason))
    return found


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def test_languages_match_by_prefix():
    for code, wanted in (("de-DE", "de"), ("DE_at", "de"), ("pt-BR", "pt-br"), ("de", "de-AT")):
        assert matches(code, wanted)
    for code, wanted in (("den", "de"), ("de-DE", "de-AT"), ("", "de")):
        assert not matches(code, wanted)
    assert best_match(["de-AT", "en", "de"], "de") == "de"
    assert best_match(["en", "de-AT", "de-CH"], "de") == "de-AT"
    assert best_match(["en"], "de") is None


def test_a_line_break_becomes_a_space():
    assert one_line(" a\n   b \r\n\t c  d\n") == "a b c  d"


def test_tmx_drops_native_code_and_keeps_text(tmp_path):
    inline = (
        'Click <bpt i="1">&lt;b></bpt>OK<ept i="1">&lt;/b></ept> &amp; <hi>go</hi>'
        "<ph>{x<sub>no</sub>}</ph>!"
    )
    units = [
        UNIT.format("en-US", inline, "de-DE", "Klicken\n  Sie"),
        UNIT.format("en", "<ph>x</ph>", "de", "<ph>x</ph>"),
        UNIT.format("en", "a", "fr", "b"),
        UNIT.format("en", "a", "de", " "),
        UNIT.format("de", "zwei", "en", "two"),
    ]
    doctype = '<!DOCTYPE tmx SYSTEM "http://example.org/tmx14.dtd">'
    path = written(tmp_path / "a.tmx", doctype + TMX.format("\n".join(units)))
    assert entries(path) == [
        ("Click OK & go!", "Klicken Sie"),
        ("", MARKUP_ONLY),
        ("", OTHER_LANGUAGES),
        ("", UNTRANSLATED),
        ("two", "zwei"),
    ]
    counts: Counter[str] = Counter()
    assert len(list(read_pairs([str(path)], LANGUAGES, counts))) == 2
    assert counts == {MARKUP_ONLY: 1, OTHER_LANGUAGES: 1, UNTRANSLATED: 1}


def test_a_tmx_of_several_varieties_takes_the_exact_one(tmp_path):
    unit = (
        '<tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de-AT"><seg>Jänner</seg></tuv>'
        '<tuv lang="de"><seg>Januar</seg></tuv></tu>'
    )
    path = written(tmp_path / "a.tmx", TMX.format(unit))
    assert entries(path) == [("a", "Januar")]
    assert entries(path, ("en", "de-at")) == [("a", "Jänner")]


LINE = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")
).map(str.strip)


@given(pairs=st.lists(st.tuples(LINE, LINE), max_size=8))
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_tmx_and_aligned_files_give_the_same_pairs(tmp_path_factory, encoding, pairs):
    folder = tmp_path_factory.mktemp("same")
    units = [UNIT.format("en", escape(one), "de", escape(two)) for one, two in pairs]
    head = f'<?xml version="1.0" encoding="{encoding}"?>\n'
    tmx = written(folder / "a.tmx", head + TMX.format("".join(units)), encoding)
    written(folder / "a.en", "".join(one + "\n" for one, _ in pairs))
    written(folder / "a.de", "".join(two + "\n" for _, two in pairs))
    files = [str(folder / "a.en"), str(folder / "a.de")]
    plain = [pair for pair in read_pairs(files, LANGUAGES, Counter()) if all(pair)]
    assert list(read_pairs([str(tmx)], LANGUAGES, Counter())) == plain


XLIFF_1 = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="x" source-language="en-US" target-language="de-DE" datatype="plaintext"><body>
<trans-unit id="1"><source>Open <g id="1">file</g><x id="2"/></source><target>Datei öffnen</target>
<alt-trans><source>Open</source><target>Falsch</target></alt-trans></trans-unit>
<trans-unit id="2"><source>New</source></trans-unit>
<trans-unit id="3"><source>Old</source>
<target state="needs-review-translation">Alt</target></trans-unit>
<trans-unit id="4"><source>Old</source><target state="new">Old</target></trans-unit>
<trans-unit id="5" translate="no"><source>X</source><target>X</target></trans-unit>
<group translate="no"><trans-unit id="6"><source>Y</source><target>Y</target></trans-unit></group>
<trans-unit id="7"><source>a<ph id="1">&lt;br/></ph>b</source><seg-source>a b</seg-source>
<target state="final">c<ph id="1">&lt;br/></ph>d</target></trans-unit>
</body></file>
<file original="y" source-language="fr" target-language="de"><body>
<trans-unit id="1"><source>oui</source><target>ja</target></trans-unit></body></file>
</xliff>"""


def test_xliff_1(tmp_path):
    path = written(tmp_path / "a.xlf", XLIFF_1)
    expected = [
        ("Open file", "Datei öffnen"),
        ("", UNTRANSLATED),
        ("", FUZZY),
        ("", UNTRANSLATED),
        ("", NOT_FOR_TRANSLATION),
        ("", NOT_FOR_TRANSLATION),
        ("ab", "cd"),
        ("", OTHER_LANGUAGES),
    ]
    assert entries(path) == expected
    turned = [(two, one) if one else ("", two) for one, two in expected]
    assert entries(path, ("de", "en")) == turned


XLIFF_2 = """<xliff version="2.0" srcLang="en" trgLang="de"
 xmlns="urn:oasis:names:tc:xliff:document:2.0">
<file id="f"><unit id="1"><notes><note>no</note></notes>
<originalData><data id="d">x</data></originalData>
<segment state="final"><source>One <pc id="1">two</pc>.<ph id="2"/></source>
<target>Eins zwei.</target></segment>
<ignorable><source> </source><target> </target></ignorable>
<segment><source>Three.</source></segment>
<segment state="initial"><source>Four.</source><target>Four.</target></segment></unit>
<unit id="2" translate="no"><segment><source>A</source><target>A</target></segment></unit>
</file></xliff>"""


def test_xliff_2(tmp_path):
    path = written(tmp_path / "a.xliff", XLIFF_2)
    assert entries(path) == [
        ("One two.", "Eins zwei."),
        ("", UNTRANSLATED),
        ("", UNTRANSLATED),
        ("", NOT_FOR_TRANSLATION),
    ]


PO = r"""# a comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset={charset}\n"
"Language: de\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#: file.c:1
#, c-format
msgid "one \"file\""
msgstr "eine „Datei“"
msgid "no blank line before"
msgstr "keine Leerzeile"

#, python-format, fuzzy
#| msgid "old"
msgid "fuzzy"
msgstr "unscharf"

msgctxt "menu"
msgid "Open"
msgstr "Öffnen\t\\n"

msgctxt "verb"
msgid "Open"
msgstr ""

msgid "one apple"
msgid_plural ""
"%d "
"apples"
msgstr[0] "ein Apfel"
msgstr[1] ""
"%d "
"Äpfel\n"

#~ msgid "gone"
#~ msgstr "weg"
"""


@pytest.mark.parametrize("charset", ["UTF-8", "cp1252"])
def test_po_gives_what_polib_says(tmp_path, charset):
    path = written(tmp_path / "a.po", PO.replace("{charset}", charset), charset)
    expected = []
    for entry in polib.pofile(str(path)):
        if entry.obsolete:
            continue
        forms = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural:
            singular, plural = entry.msgstr_plural[0], entry.msgstr_plural[1]
            forms = [(entry.msgid, singular), (entry.msgid_plural, plural)]
        for source, target in forms:
            pair = (one_line(source), one_line(target))
            reason = FUZZY if entry.fuzzy else UNTRANSLATED if not target else None
            expected.append(("", reason) if reason else pair)
    assert entries(path) == expected
    assert {("%d apples", "%d Äpfel"), ("", FUZZY)} <= set(expected)


@given(text=st.text())
def test_po_strings_come_back(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("po") / "a.po"
    written(path, f'msgid "x"\nmsgstr {quoted(text)}\n'.encode(errors="replace").decode())
    kept = text.encode(errors="replace").decode()
    target = one_line(kept)
    assert entries(path) == [("x", target) if target else ("", UNTRANSLATED)]


def test_a_language_with_one_form_translates_the_plural(tmp_path):
    text = 'msgid "one"\nmsgid_plural "%d"\nmsgstr[0] "%d 个"\n'
    path = written(tmp_path / "a.po", text)
    assert entries(path, ("en", "zh")) == [("%d", "%d 个")]


def test_a_po_file_of_another_language_or_direction(tmp_path):
    head = 'msgid ""\nmsgstr "Language: {}\\n"\n\nmsgid "a"\nmsgstr "b"\n'
    assert entries(written(tmp_path / "a.po", head.format("de_AT"))) == [("a", "b")]
    assert entries(written(tmp_path / "a.po", head.format("en"))) == [("b", "a")]
    assert entries(written(tmp_path / "a.po", head.format("fr"))) == [("", OTHER_LANGUAGES)]
