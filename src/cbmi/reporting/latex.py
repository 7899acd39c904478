"""Text for LaTeX."""

from __future__ import annotations

# What LaTeX needs in the place of a character.
LATEX = {
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
    "−": "$-$",
}


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(LATEX.get(character, character) for character in text)
