"""TMX, the format of translation memories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cbmi.data.compressed import OnRead
from cbmi.data.formats.entry import (
    MARKUP_ONLY,
    OTHER_LANGUAGES,
    Entry,
    Languages,
    best_match,
    make_entry,
    matches,
)
from cbmi.data.formats.xml import XML_LANG, InlineText, XmlParser, stream_entries

NATIVE_CODE = frozenset({"bpt", "ept", "it", "ph", "sub", "ut"})  # hi marks text and stays


def read_tmx(path: str, languages: Languages, on_read: OnRead | None = None) -> Iterator[Entry]:
    """The units, each as an entry of the two languages."""
    handler = _TmxHandler(languages)
    parser = XmlParser(handler, path)
    handler.parser = parser
    yield from stream_entries(parser, path, "tmx", on_read)


class _TmxHandler:
    parser: XmlParser

    def __init__(self, languages: Languages) -> None:
        self.languages = languages
        self.entries: list[Entry] = []
        self.root: str | None = None
        self.line = 0  # where the unit begins
        self.variants: dict[str, InlineText] = {}  # of the unit, by their languages
        self.language = ""
        self.segment: InlineText | None = None

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if self.root is None:
            self.root = name
            if name != "tmx":
                raise ValueError(f"the document is <{name}>, not <tmx>")
        if self.segment is not None:
            self.segment.start(name)
        elif name == "tu":
            self.line = self.parser.line
            self.variants = {}
        elif name == "tuv":
            self.language = attributes.get(XML_LANG) or attributes.get("lang", "")
        elif name == "seg":
            self.segment = InlineText(NATIVE_CODE)

    def text(self, text: str) -> None:
        if self.segment is not None:
            self.segment.add(text)

    def end(self, name: str) -> None:
        if name == "seg" and self.segment is not None:
            self._keep(self.segment)
            self.segment = None
        elif self.segment is not None:
            self.segment.end()
        elif name == "tu":
            self.entries.append(self._entry())

    def _keep(self, segment: InlineText) -> None:
        wanted = any(matches(self.language, language) for language in self.languages)
        if wanted:
            self.variants.setdefault(self.language, segment)

    def _entry(self) -> Entry:
        texts = []
        left_out = None
        for language in self.languages:
            code = best_match(self.variants, language)
            if code is None:
                left_out = OTHER_LANGUAGES
                texts.append("")
                continue
            segment = self.variants[code]
            texts.append(str(segment))
            if segment.is_markup_only and left_out is None:
                left_out = MARKUP_ONLY
        return make_entry(texts[0], texts[1], self.line, left_out)
