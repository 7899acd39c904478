"""Files of translation tools, filled in: what is untranslated is translated, the rest stays.

Every byte of the file that is not part of a new translation, or of the mark that a person has to
review it, is kept.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, unescape

from cbmi.data.compressed import suffix_of
from cbmi.data.formats import po
from cbmi.data.formats.entry import Languages, matches, one_line
from cbmi.data.formats.xliff import NATIVE_CODE, NOT_BEGUN, Element, Unit, XliffHandler
from cbmi.data.formats.xml import XmlParser
from cbmi.errors import UserError
from cbmi.files import write_atomically
from cbmi.inference.base import Model
from cbmi.progress import bar, counted, say

Translate = Callable[[Sequence[str]], list[str]]

REVIEW = "needs-review-translation"  # the state of a target in XLIFF 1.2
APPROVED = re.compile(rb"""(\sapproved\s*=\s*["'])yes(["'])""")
QUALIFIER = re.compile(rb"""\sstate-qualifier\s*=\s*("[^"]*"|'[^']*')""")  # of what was there
TRANSLATED = "translated"  # of a segment in XLIFF 2: not yet reviewed
_WITHIN_TAG = rb"""(?:[^<>"']|"[^"]*"|'[^']*')*"""
TAG = re.compile(rb"<" + _WITHIN_TAG + rb">")
_CODE_NAMES = "|".join(sorted(NATIVE_CODE)).encode()
# Elements whose content is code of the original document; comments; tags.
MARKUP = re.compile(
    rb"(<((?:[\w.-]+:)?(?:" + _CODE_NAMES + rb"))\b" + _WITHIN_TAG + rb"(?<!/)>.*?</\2\s*>"
    rb"|<!--.*?-->|<!\[CDATA\[.*?\]\]>|<" + _WITHIN_TAG + rb">)",
    re.DOTALL,
)


class Edit(NamedTuple):
    """A part of a file that is replaced."""

    begin: int
    end: int
    new: bytes


class _Filled(NamedTuple):
    content: bytes
    translated: int
    left: int  # entries that could not be translated, for the markup in them


def is_document(path: str) -> bool:
    return path != "-" and suffix_of(path) in (".po", ".pot", ".xlf", ".xliff")


def translate_document(
    model: Model, path: str, output: Path, beam: int | None, length_penalty: float
) -> int:
    """Write a copy of the file with its untranslated entries filled in; returns how many."""
    if Path(path).suffix.lower() != suffix_of(path):
        raise UserError(f"{path}: a compressed file cannot be filled in; unpack it first.")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None

    def translate(lines: Sequence[str]) -> list[str]:
        with bar("Translating", len(lines), "lines") as progress:
            found = model.translations(
                lines, beam=beam, length_penalty=length_penalty, advance=progress.advance
            )
            return [one[0].text if one else "" for one in found]

    fill = fill_po if suffix_of(path) in (".po", ".pot") else fill_xliff
    filled = fill(data, path, model.languages, translate)
    write_atomically(output, filled.content)
    model.report_truncated()
    done = f"{counted(filled.translated, 'translation')} filled in, to be reviewed"
    left = f"; {filled.left:,} left untranslated, with markup inside" if filled.left else ""
    say(f"{output}: {done}{left}")
    return filled.translated


def fill_po(data: bytes, path: str, languages: Languages, translate: Translate) -> _Filled:
    """Empty strings are translated line by line; the messages become fuzzy."""
    encoding = po.encoding_of(data[: po.HEADER], path)
    lines = list(io.StringIO(_decoded(data, encoding, path), newline=""))
    wanted: list[tuple[po.Message, str, str]] = []  # with keyword and source
    for message in po.parse(lines, path):
        if message.is_header:
            _check_language(po.header_field(message.text("msgstr"), "Language"), path, languages)
            continue
        for keyword, source in message.translations():
            if not message.text(keyword).strip() and source.strip():
                wanted.append((message, keyword, source))
    texts = _by_lines([source for _, _, source in wanted], translate)
    new = dict(enumerate(lines))
    for (message, keyword, _), text in zip(wanted, texts, strict=True):
        field = message.fields[keyword]
        end = lines[field.first][len(lines[field.first].rstrip("\r\n")) :]
        new[field.first] = f"{keyword} {po.quoted(text)}{end}"
        for number in range(field.first + 1, field.last + 1):
            new[number] = ""
        if not message.fuzzy:
            first = message.first_line
            own_end = lines[first][len(lines[first].rstrip("\r\n")) :]
            new[first] = f"#, fuzzy{own_end}{new[first]}"
            message.fuzzy = True
    try:
        content = "".join(new.values()).encode(encoding)
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise UserError(f"{path}: '{character}' cannot be written in {encoding.upper()}.") from None
    return _Filled(content, len(wanted), 0)


def _by_lines(texts: Sequence[str], translate: Translate) -> list[str]:
    """Translations of texts, line by line: where a message breaks, its translation does, too."""
    lines = []
    for text in texts:
        lines += text.split("\n")
    translated = iter(translate(lines))
    found = []
    for text in texts:
        own = [_spaced_like(line, next(translated)) for line in text.split("\n")]
        found.append("\n".join(own))
    return found


def _spaced_like(line: str, translation: str) -> str:
    """With the white space that the line has at its ends."""
    before = line[: len(line) - len(line.lstrip())]
    after = line[len(line.rstrip()) :] if line.strip() else ""
    return before + translation.strip() + after


def fill_xliff(data: bytes, path: str, languages: Languages, translate: Translate) -> _Filled:
    """Units without a target get one; their state says that it has to be reviewed."""
    encoding = _xml_encoding(data, path)
    content = _decoded(data, encoding, path).encode()
    units = _units(content, path, languages)
    wanted: list[tuple[Unit, list[bytes], int]] = []  # with parts, and the place of the text
    left = 0
    for unit in units:
        parts = MARKUP.split(_inner(content, unit.source)) if unit.source else []
        parts = parts[:1] + [part for number, part in enumerate(parts[1:]) if number % 3 != 1]
        texts = [place for place in range(0, len(parts), 2) if parts[place].strip()]
        if len(texts) == 1 and not any(part.startswith(b"<!") for part in parts):
            wanted.append((unit, parts, texts[0]))
        elif unit.source is not None and str(unit.source.text).strip():
            left += 1
    sources = [one_line(unescape(parts[place].decode(), ENTITIES)) for _, parts, place in wanted]
    edits: list[Edit] = []
    for (unit, parts, place), text in zip(wanted, translate(sources), strict=True):
        old = parts[place]
        before = old[: len(old) - len(old.lstrip())]
        after = old[len(old.rstrip()) :]
        parts[place] = before + escape(text).encode() + after
        edits += _target_edits(content, unit, b"".join(parts))
    for tag in {unit.language_tag for unit, _, _ in wanted if unit.language_tag is not None}:
        place = _tag(content, tag.begin).end() - 1
        attribute = f' {tag.attribute}="{languages[1]}"'.encode()
        edits.append(Edit(place, place, attribute))
    filled = _edited(content, edits).decode()
    return _Filled(filled.encode(encoding, "xmlcharrefreplace"), len(wanted), left)


ENTITIES = {"&quot;": '"', "&apos;": "'"}


class _Units(XliffHandler):
    """Collects the units that have to be translated."""

    def __init__(self, languages: Languages) -> None:
        super().__init__(languages)
        self.untranslated: list[Unit] = []
        self.seen: set[Languages] = set()

    def complete(self, unit: Unit) -> None:
        self.seen.add(self.languages)
        if self.direction != 1 or not unit.translatable or unit.source is None:
            return
        target = unit.target
        is_empty = target is None or not (str(target.text).strip() or target.text.has_markup)
        is_copy = target is not None and str(target.text) == str(unit.source.text)
        if is_empty or (is_copy and unit.stage in NOT_BEGUN):
            self.untranslated.append(unit)


def _units(content: bytes, path: str, languages: Languages) -> list[Unit]:
    handler = _Units(languages)
    handler.parser = XmlParser(handler, path, "utf-8")
    handler.parser.feed(content, last=True)
    for source, target in handler.seen:
        if matches(source, languages[0]) and (not target or matches(target, languages[1])):
            break
    else:
        for source, target in handler.seen:
            found = f"{source or '?'} to {target or '?'}"
            raise UserError(
                f"{path}: this is from {found}, but the model translates {languages[0]} to "
                f"{languages[1]}."
            )
    return handler.untranslated


def _inner(content: bytes, element: Element) -> bytes:
    return content[_tag(content, element.begin).end() : element.end]


def _tag(content: bytes, place: int) -> re.Match[bytes]:
    found = TAG.match(content, place)
    assert found is not None, "expat saw a tag here"
    return found


def _target_edits(content: bytes, unit: Unit, inner: bytes) -> list[Edit]:
    """What gives a unit this target."""
    assert unit.source is not None
    edits = []
    state = REVIEW.encode() if unit.name == "trans-unit" else None
    tag = _tag(content, unit.begin)
    if state is None:
        edits.append(Edit(*tag.span(), _with_state(tag.group(), TRANSLATED.encode())))
    elif APPROVED.search(tag.group()):
        edits.append(Edit(*tag.span(), APPROVED.sub(rb"\1no\2", tag.group())))
    name = re.sub(rb"<((?:[\w.-]+:)?)source\b.*", rb"\1target", _tag(content, unit.source.begin)[0])
    if unit.target is not None:
        opening = _tag(content, unit.target.begin)
        first = opening.group().replace(b"/>", b">")
        end = opening.end()
        if not opening.group().endswith(b"/>"):
            end = _tag(content, unit.target.end).end()
        begin = opening.start()
        indent = b""
    else:
        last = unit.segmented or unit.source
        begin = end = _tag(content, last.end).end()
        first = b"<" + name + b">"
        indent = content[len(content[: last.begin].rstrip()) : last.begin]
    if state is not None:
        first = _with_state(QUALIFIER.sub(b"", first), state)
    edits.append(Edit(begin, end, indent + first + inner + b"</" + name + b">"))
    return edits


def _with_state(tag: bytes, state: bytes) -> bytes:
    """A start tag with this state, in place of another if there is one."""
    known = re.search(rb"""\sstate\s*=\s*("[^"]*"|'[^']*')""", tag)
    if known is None:
        return tag[:-1].rstrip() + b' state="' + state + b'">'
    begin, end = known.span(1)
    return tag[: begin + 1] + state + tag[end - 1 :]


def _edited(content: bytes, edits: list[Edit]) -> bytes:
    parts = []
    place = 0
    for edit in sorted(edits):
        parts += [content[place : edit.begin], edit.new]
        place = edit.end
    return b"".join([*parts, content[place:]])


def _xml_encoding(data: bytes, path: str) -> str:
    """Byte-order marks stay in the text, so that they are written again."""
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            return encoding
    found = re.match(rb"""[^<]*<\?xml[^>]*\sencoding\s*=\s*["']([A-Za-z0-9._-]+)["']""", data)
    name = found.group(1).decode() if found else "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise UserError(f"{path}: the encoding '{name}' is unknown.") from None


def _decoded(data: bytes, encoding: str, path: str) -> str:
    try:
        text = data.decode(encoding)
    except UnicodeError as error:
        where = f" (byte {error.start + 1})" if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(f"{path}: not valid {encoding.upper()}{where}.") from None
    if text.encode(encoding) != data:
        raise UserError(f"{path}: its {encoding.upper()} cannot be written again as it is.")
    return text


def _check_language(code: str, path: str, languages: Languages) -> None:
    if code and not matches(code, languages[1]):
        raise UserError(f"{path}: this is in {code}, but the model translates into {languages[1]}.")
