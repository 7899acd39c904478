"""Text for LaTeX."""

LATEX = {character: "\\" + character for character in "&%$#_{}"} | {
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
    """Text that LaTeX prints as it stands."""
    return "".join(LATEX.get(character, character) for character in text)
