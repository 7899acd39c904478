"""XML as a stream of events, by expat: memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol
from xml.parsers import expat

from cbmi.data.compressed import BROKEN_ARCHIVE, OnRead, open_bytes
from cbmi.data.formats.entry import LONGEST_TEXT, Entry
from cbmi.errors import UserError

CHUNK = 1 << 16  # bytes read at a time
DEEPEST = 1000  # elements within each other
XML_LANG = "http://www.w3.org/XML/1998/namespace lang"


class Handler(Protocol):
    """Makes entries of a document's events. Names have no namespace."""

    entries: list[Entry]  # those that are complete; whoever reads them empties it

    def start(self, name: str, attributes: Mapping[str, str]) -> None: ...

    def end(self, name: str) -> None: ...

    def text(self, text: str) -> None: ...


class InlineText:
    """The text of a segment without its inline markup."""

    def __init__(self, native_code: frozenset[str]) -> None:
        """`native_code`: elements whose content is code of the original document, not text."""
        self.native_code = native_code
        self.parts: list[str] = []
        self.size = 0
        self.has_markup = False
        self.open_code = 0  # elements of native code, and those within them

    def start(self, name: str) -> None:
        self.has_markup = True
        if self.open_code or name in self.native_code:
            self.open_code += 1

    def end(self) -> None:
        if self.open_code:
            self.open_code -= 1

    def add(self, text: str) -> None:
        if self.open_code:
            return
        self.size += len(text)
        if self.size > LONGEST_TEXT:
            raise ValueError(f"this text is over {LONGEST_TEXT:,} characters long")
        self.parts.append(text)

    def __str__(self) -> str:
        return "".join(self.parts)

    @property
    def is_markup_only(self) -> bool:
        return self.has_markup and not str(self).strip()


class XmlParser:
    """Feeds bytes to a handler; refuses what no file of translations needs."""

    def __init__(self, handler: Handler, path: str, encoding: str | None = None) -> None:
        """`path` is for errors."""
        self.path = path
        self.handler = handler
        self.depth = 0
        self.expat = expat.ParserCreate(encoding, namespace_separator=" ")
        self.expat.buffer_text = True
        self.expat.StartElementHandler = self._start
        self.expat.EndElementHandler = self._end
        self.expat.CharacterDataHandler = handler.text
        # Entities can blow a small file up, or name other files. A DOCTYPE alone does no harm.
        self.expat.EntityDeclHandler = self._refuse_declaration
        self.expat.SkippedEntityHandler = self._refuse_entity

    def feed(self, data: bytes, last: bool = False) -> None:
        try:
            self.expat.Parse(data, last)
        except expat.ExpatError as error:
            problem = expat.ErrorString(error.code)
            raise UserError(f"{self.path}, line {error.lineno}: broken XML: {problem}.") from None
        except (ValueError, LookupError) as error:
            raise UserError(f"{self.path}, line {self.line}: {error}.") from None

    @property
    def line(self) -> int:
        return self.expat.CurrentLineNumber

    @property
    def byte(self) -> int:
        """Where the current event begins."""
        return self.expat.CurrentByteIndex

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"over {DEEPEST:,} elements stand within each other")
        self.handler.start(_local(name), attributes)

    def _end(self, name: str) -> None:
        self.depth -= 1
        self.handler.end(_local(name))

    def _refuse_declaration(self, name: str, *_: object) -> None:
        raise ValueError(f"the entity '{name}' is declared; declarations of entities are refused")

    def _refuse_entity(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            raise ValueError(f"the entity '&{name};' is unknown")


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def stream_entries(
    parser: XmlParser, path: str, root: str, on_read: OnRead | None
) -> Iterator[Entry]:
    """The entries of a file, as its handler completes them."""
    entries = parser.handler.entries
    is_empty = True
    try:
        with open_bytes(path, on_read) as file:
            while chunk := file.read(CHUNK):
                is_empty = False
                parser.feed(chunk)
                yield from entries
                entries.clear()
    except BROKEN_ARCHIVE as error:
        raise UserError(f"{path}: the archive is damaged ({error}).") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    if is_empty:
        raise UserError(f"{path}: the file is empty, where a {root} document should be.")
    parser.feed(b"", last=True)
    yield from entries
