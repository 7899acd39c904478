"""XLIFF 1.2 and 2, the formats of translation tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cbmi.data.compressed import OnRead
from cbmi.data.formats.entry import (
    FUZZY,
    MARKUP_ONLY,
    NOT_FOR_TRANSLATION,
    OTHER_LANGUAGES,
    UNTRANSLATED,
    Entry,
    Languages,
    make_entry,
    matches,
    turned,
)
from cbmi.data.formats.xml import InlineText, XmlParser, stream_entries

# Version 1.2 has code within these, version 2 has it elsewhere (originalData).
NATIVE_CODE = frozenset({"bpt", "ept", "it", "ph", "sub"})
SKIPPED = frozenset({"alt-trans", "ignorable", "bin-unit"})  # with a source and target of their own
NOT_BEGUN = frozenset({"new", "needs-translation", "initial"})


def read_xliff(path: str, languages: Languages, on_read: OnRead | None = None) -> Iterator[Entry]:
    """The units (1.2) or segments (2) as entries. A file of the other direction is turned."""
    handler = XliffHandler(languages)
    parser = XmlParser(handler, path)
    handler.parser = parser
    yield from stream_entries(parser, path, "xliff", on_read)


@dataclass
class Element:
    """A part of a unit, with its places in the file."""

    text: InlineText
    state: str
    begin: int  # bytes: of its first tag, and of its last one
    end: int = 0


@dataclass(frozen=True)
class LanguageTag:
    """The tag that says the languages of a unit, if it does not say the target's."""

    begin: int
    attribute: str  # that is missing


@dataclass
class Unit:
    """A <trans-unit> of version 1.2 or a <segment> of version 2."""

    name: str
    begin: int
    line: int
    translatable: bool
    state: str  # of a <segment>; in version 1.2 the target has it
    language_tag: LanguageTag | None = None
    source: Element | None = None
    segmented: Element | None = None  # <seg-source>
    target: Element | None = None

    @property
    def stage(self) -> str:
        return self.state or (self.target.state if self.target else "")


class XliffHandler:
    parser: XmlParser

    def __init__(self, languages: Languages) -> None:
        self.wanted = languages
        self.entries: list[Entry] = []
        self.languages: Languages = ("", "")  # of the current <file>
        self.language_tag: LanguageTag | None = None
        self.translate = [True]  # of the elements that are open; it is inherited
        self.skipped = 0  # depth within an element that is skipped
        self.unit: Unit | None = None
        self.open: Element | None = None  # the source or target that is being read

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if len(self.translate) == 1 and name != "xliff":
            raise ValueError(f"the document is <{name}>, not <xliff>")
        own = attributes.get("translate")
        self.translate.append(self.translate[-1] if own is None else own != "no")
        if self.open is not None:
            self.open.text.start(name)
        elif self.skipped or name in SKIPPED:
            self.skipped += 1
        elif name == "xliff":
            self.languages = (attributes.get("srcLang", ""), attributes.get("trgLang", ""))
            self._note_language_tag("srcLang" in attributes, "trgLang")
        elif name == "file" and "source-language" in attributes:
            target = attributes.get("target-language", "")
            self.languages = (attributes["source-language"], target)
            self._note_language_tag(True, "target-language")
        elif name in ("trans-unit", "segment"):
            state = attributes.get("state", "")
            parser = self.parser
            self.unit = Unit(
                name, parser.byte, parser.line, self.translate[-1], state, self.language_tag
            )
        elif self.unit is not None and name in ("source", "target", "seg-source"):
            text = InlineText(NATIVE_CODE)
            self.open = Element(text, attributes.get("state", ""), self.parser.byte)
            attribute = "segmented" if name == "seg-source" else name
            setattr(self.unit, attribute, self.open)

    def _note_language_tag(self, says_source: bool, attribute: str) -> None:
        is_missing = says_source and not self.languages[1]
        self.language_tag = LanguageTag(self.parser.byte, attribute) if is_missing else None

    def text(self, text: str) -> None:
        if self.open is not None:
            self.open.text.add(text)

    def end(self, name: str) -> None:
        self.translate.pop()
        if self.open is not None:
            if name in ("source", "target", "seg-source"):
                self.open.end = self.parser.byte
                self.open = None
            else:
                self.open.text.end()
        elif self.skipped:
            self.skipped -= 1
        elif self.unit is not None and name == self.unit.name:
            self.complete(self.unit)
            self.unit = None

    def complete(self, unit: Unit) -> None:
        """Take a unit that has ended."""
        self.entries.append(self._entry(unit))

    @property
    def direction(self) -> int | None:
        """1: the file translates as is wanted; -1: the other way round; None: other languages."""
        source, target = self.languages
        for direction, wanted in ((1, self.wanted), (-1, self.wanted[::-1])):
            # A file may leave its target language open.
            if matches(source, wanted[0]) and (not target or matches(target, wanted[1])):
                return direction
        return None

    def _entry(self, unit: Unit) -> Entry:
        texts = []
        markup_only = False
        for side in (unit.source, unit.target):
            texts.append("" if side is None else str(side.text))
            markup_only |= side is not None and side.text.is_markup_only
        left_out = None
        if self.direction is None:
            left_out = OTHER_LANGUAGES
        elif not unit.translatable:
            left_out = NOT_FOR_TRANSLATION
        elif markup_only:
            left_out = MARKUP_ONLY
        elif unit.stage in NOT_BEGUN:
            left_out = UNTRANSLATED
        elif unit.stage.startswith("needs-"):
            left_out = FUZZY
        entry = make_entry(texts[0], texts[1], unit.line, left_out)
        return turned(entry) if self.direction == -1 else entry
