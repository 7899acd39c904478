"""PO, gettext's format of a program's messages."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cbmi.data.compressed import BROKEN_ARCHIVE, OnRead, open_bytes
from cbmi.data.formats.entry import (
    FUZZY,
    LONGEST_TEXT,
    OTHER_LANGUAGES,
    Entry,
    Languages,
    make_entry,
    matches,
    turned,
)
from cbmi.errors import UserError

HEADER = 1 << 14  # bytes in which the header, with the encoding, has to be
KEYWORD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,3}\])?)\s*(\".*\")\s*$")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"$')
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "b": "\b", "f": "\f", "a": "\a"}


@dataclass
class Field:
    """A keyword with its string, which may have several lines."""

    first: int  # numbers of its lines, from 0
    last: int
    text: str


@dataclass
class Message:
    """An entry of the file; those that are commented out are none."""

    fuzzy: bool = False
    fields: dict[str, Field] = field(default_factory=dict)

    def text(self, keyword: str) -> str:
        found = self.fields.get(keyword)
        return "" if found is None else found.text

    @property
    def first_line(self) -> int:
        return min(one.first for one in self.fields.values())

    @property
    def is_header(self) -> bool:
        return not self.text("msgid") and "msgctxt" not in self.fields

    def translations(self) -> list[tuple[str, str]]:
        """(keyword of a translation, the text that it translates).

        Of a message with a plural, the first form is that of one thing, unless it is the only form.
        """
        if "msgid_plural" not in self.fields:
            return [("msgstr", self.text("msgid"))]
        forms = [keyword for keyword in self.fields if keyword.startswith("msgstr")]
        pairs = []
        for keyword in forms:
            singular = keyword == "msgstr[0]" and len(forms) > 1
            pairs.append((keyword, self.text("msgid" if singular else "msgid_plural")))
        return pairs


def read_po(path: str, languages: Languages, on_read: OnRead | None = None) -> Iterator[Entry]:
    """The messages, each form of a plural as an entry. The sources are taken for `languages`."""
    is_turned = False
    is_other = False
    for message in parse(_lines(path, on_read), path):
        if message.is_header:
            code = header_field(message.text("msgstr"), "Language")
            is_turned = bool(code) and matches(code, languages[0])
            is_other = bool(code) and not is_turned and not matches(code, languages[1])
            continue
        left_out = FUZZY if message.fuzzy else None
        if is_other:
            left_out = OTHER_LANGUAGES
        for keyword, source in message.translations():
            line = message.first_line + 1
            entry = make_entry(source, message.text(keyword), line, left_out)
            yield turned(entry) if is_turned else entry


def header_field(header: str, name: str) -> str:
    """The value of a field such as Language in the text of a file's header; empty: none."""
    found = re.search(rf"^{name}:[ \t]*(.*?)[ \t]*$", header, re.MULTILINE)
    return found.group(1) if found else ""


def encoding_of(data: bytes, path: str) -> str:
    """As its byte-order mark or its header says."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return encoding
    found = re.search(rb"charset=([A-Za-z0-9_.:-]+)", data)
    name = found.group(1).decode() if found else "utf-8"
    if name == "CHARSET":  # as templates have it
        name = "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise UserError(f"{path}: the encoding '{name}' is unknown.") from None


def _lines(path: str, on_read: OnRead | None) -> Iterator[str]:
    number = 0
    encoding = ""
    try:
        with open_bytes(path, on_read) as file:
            encoding = encoding_of(file.peek(HEADER), path)  # type: ignore[attr-defined]
            with io.TextIOWrapper(file, encoding, newline="") as text:  # type: ignore[type-var]
                while line := text.readline(LONGEST_TEXT):
                    number += 1
                    yield line
    except BROKEN_ARCHIVE as error:
        raise UserError(f"{path}: the archive is damaged after line {number} ({error}).") from None
    except UnicodeError:
        raise UserError(f"{path}, line {number + 1}: not valid {encoding.upper()}.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None


def parse(lines: Iterable[str], path: str) -> Iterator[Message]:
    """The messages of a file; `path` is for errors."""
    message = Message()
    current: Field | None = None
    for number, raw in enumerate(lines):
        line = raw.strip()
        is_string = line.startswith('"')
        begins = line.startswith(("#", "msgctxt", "msgid"))
        begins &= not line.startswith("msgid_plural")
        has_translation = any(keyword.startswith("msgstr") for keyword in message.fields)
        if not line or (begins and has_translation):
            if message.fields:
                yield _complete(message, path)
            message = Message()
            current = None
        if line.startswith("#"):
            message.fuzzy |= line.startswith("#,") and "fuzzy" in _flags(line)
        elif is_string and current is not None:
            current.text += _string(line, path, number)
            current.last = number
            if len(current.text) > LONGEST_TEXT:
                raise _wrong(path, number, f"this text is over {LONGEST_TEXT:,} characters long")
        elif line:
            found = KEYWORD.match(line)
            if found is None:
                raise _wrong(path, number, "this is not a line of a .po file")
            keyword = found.group(1)
            if keyword in message.fields:
                raise _wrong(path, number, f"duplicate {keyword}")
            current = Field(number, number, _string(found.group(2), path, number))
            message.fields[keyword] = current
    if message.fields:
        yield _complete(message, path)


def _complete(message: Message, path: str) -> Message:
    keywords = message.fields
    if "msgid" not in keywords or not any(keyword.startswith("msgstr") for keyword in keywords):
        raise _wrong(path, message.first_line, "this message has no msgid or no msgstr")
    return message


def _flags(line: str) -> list[str]:
    return [flag.strip() for flag in line[2:].split(",")]


def _string(quoted: str, path: str, number: int) -> str:
    found = STRING.match(quoted)
    if found is None:
        raise _wrong(path, number, "a string does not end")
    return ESCAPE.sub(_unescaped, found.group(1))


def _unescaped(escape: re.Match[str]) -> str:
    code = escape.group(1)
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8))
    return ESCAPES.get(code, code)


def quoted(text: str) -> str:
    """A text as a string of the file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in ESCAPES.items():
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'


def _wrong(path: str, number: int, problem: str) -> UserError:
    return UserError(f"{path}, line {number + 1}: {problem}.")
