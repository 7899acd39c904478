"""Files that are damaged or meant to do harm end in one sentence."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest

from cbmi.data.text import read_pairs
from cbmi.errors import UserError

DEEP = "<tmx>" + "<a>" * 200_000
BOMB = (
    '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<tmx><body><tu><tuv xml:lang="en"><seg>&b;</seg></tuv></tu></body></tmx>'
)
EXTERNAL = (
    '<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    '<tmx><body><tu><tuv xml:lang="en"><seg>&x;</seg></tuv></tu></body></tmx>'
)
UNKNOWN = '<!DOCTYPE tmx SYSTEM "x.dtd"><tmx><body><tu><tuv><seg>&x;</seg></tuv></tu></body></tmx>'
LONG = f'<tmx><tu><tuv xml:lang="en"><seg>{"a" * 1_000_001}</seg></tuv></tu></tmx>'

CASES = {
    "bomb.tmx": (BOMB, "line 1: the entity 'a' is declared"),
    "external.tmx": (EXTERNAL, "line 1: the entity 'x' is declared"),
    "unknown.tmx": (UNKNOWN, "line 1: the entity '&x;' is unknown"),
    "deep.tmx": (DEEP, "over 1,000 elements stand within each other"),
    "deep.xlf": (DEEP.replace("tmx", "xliff"), "over 1,000 elements"),
    "long.tmx": (LONG, "this text is over 1,000,000 characters long"),
    "cut.tmx": ("<tmx><body><tu>", "line 1: broken XML: no element found"),
    "empty.tmx": ("", "the file is empty, where a tmx document should be"),
    "html.tmx": ("<html/>", "the document is <html>, not <tmx>"),
    "html.xliff": ("<html/>", "the document is <html>, not <xliff>"),
    "text.xlf": ("hello", "broken XML: syntax error"),
    "latin.tmx": ("<tmx>ä</tmx>".encode("latin-1"), "broken XML: not well-formed (invalid token)"),
    "encoding.tmx": ('<?xml version="1.0" encoding="klingon"?><tmx/>', "unknown encoding"),
    "latin.po": ('msgid "ä"\nmsgstr "b"\n'.encode("latin-1"), "line 1: not valid UTF-8"),
    "charset.po": ('msgid ""\nmsgstr "charset=klingon\\n"\n', "encoding 'klingon' is unknown"),
    "text.po": ("hello\n", "line 1: this is not a line of a .po file"),
    "open.po": ('msgid "a\nmsgstr "b"\n', "line 1"),
    "cut.po": ('msgid "a"\n', "no msgid or no msgstr"),
    "twice.po": ('msgid "a"\nmsgid_plural "b"\nmsgid_plural "c"\n', "duplicate msgid_plural"),
    "fields.csv": ("en,de\na,b,c\n", "line 2: 3 fields where the header has 2"),
    "quote.csv": ('en,de\na,"b\n', "line 2: unexpected end of data"),
    "empty.csv": ("", "the file is empty"),
    "names.csv": ("a,b\n1,2\n", "there are no columns en and de"),
    "wide.csv": (b"\xff\xfe\x00\xd8a", "not valid UTF-16"),
    "wrong.jsonl": ("{}\n", "line 1: there are no columns en and de"),
    "broken.jsonl": ('{"en": "a", "de": "b"}\n{"en"\n', "line 2: this is not JSON"),
    "deep.jsonl": ("[" * 100_000 + "\n", "line 1: this is not JSON"),
    "list.jsonl": ("[1]\n", "line 1: this is not a JSON object"),
    "number.jsonl": ('{"en": 1, "de": "b"}\n', "line 1: 'en' is not text"),
    "missing.jsonl": ('{"en": "a", "de": "b"}\n{"en": "a"}\n', "line 2: there is no 'de'"),
    "half.jsonl": ('{"en": "\\ud800", "de": "b"}\n', "line 1: 'en' has half of a character"),
    "twice.csv": ("en,de,de\n", "there are several columns 'de'"),
    "not.parquet": ("hello", "cannot be read as Parquet"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_sentence(tmp_path, name):
    content, message = CASES[name]
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as error:
        list(read_pairs([str(path)], ("en", "de"), Counter()))
    text = str(error.value)
    assert text.startswith(str(path))
    assert message in text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize("name", ["a.tmx", "a.po", "a.csv", "a.jsonl"])
def test_a_damaged_archive_is_named(tmp_path, name):
    path = tmp_path / f"{name}.gz"
    content = {
        "a.tmx": "<tmx>" + "<tu/>" * 9999,
        "a.po": 'msgid "a"\nmsgstr "b"\n\n' * 9999,
        "a.csv": "en,de\n" + "a,b\n" * 99999,
        "a.jsonl": '{"en": "a", "de": "b"}\n' * 9999,
    }[name]
    path.write_bytes(gzip.compress(content.encode())[:-20])
    with pytest.raises(UserError, match=r"a\.\w+\.gz: the archive is damaged"):
        list(read_pairs([str(path)], ("en", "de"), Counter()))
