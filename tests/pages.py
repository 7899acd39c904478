"""Pages of the documentation, and a corpus with the file names that they use."""

from __future__ import annotations

import re
from pathlib import Path

from cbmi.demo.corpus import generate


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a Markdown text that are marked with a language ("": with none)."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [code for marked, code in found if marked == language]


def write_corpus(folder: Path) -> None:
    """train, valid and test files of 150, 15 and 15 pairs."""
    folder.mkdir(exist_ok=True)
    pairs = generate(180, seed=3)
    for start, stop, name in ((0, 150, "train"), (150, 165, "valid"), (165, 180, "test")):
        sources = [pair.source for pair in pairs[start:stop]]
        targets = [pair.target for pair in pairs[start:stop]]
        for side, lines in (("en", sources), ("de", targets)):
            text = "".join(line + "\n" for line in lines)
            (folder / f"{name}.{side}").write_text(text, encoding="utf-8")
