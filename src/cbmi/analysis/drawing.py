"""What all figures share: matplotlib when it is there, one style, and pictures as bytes."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cbmi.errors import UserError
from cbmi.files import write_atomically
from cbmi.progress import say

BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#d55e00", "#009e73", "#c1272d", "#8a929c"  # told apart by all eyes
INK, FAINT = "#1b2027", "#e1e5ea"
CYCLE = [BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#e69f00", "#6a3d9a", "#8c564b"]
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5b6470",
    "axes.grid": True,
    "grid.color": "#e6e9ed",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "path",  # the same everywhere
    "svg.hashsalt": "cbmi",
}
# The first has all but the scripts of Asia; of the others those that are installed help out.
FONTS = ["DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans", "Arial Unicode MS"]
Picture = tuple[bytes, bytes]  # SVG, PNG


def check_plotting() -> None:
    """Refuse at once what would fail for want of an extra after hours of work."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("Pages and figures need the extra 'plot': pip install 'cbmi[plot]'.") from None


@contextmanager
def plotting() -> Iterator[Any]:
    """pyplot in the house's style, without a screen; figures are closed at the end."""
    check_plotting()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import font_manager, pyplot

    known = set(font_manager.get_font_names())
    style = STYLE | {"font.family": [name for name in FONTS if name in known]}
    with pyplot.rc_context(style), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield pyplot
        finally:
            pyplot.close("all")
    missing = [warning for warning in caught if "missing from font" in str(warning.message)]
    for warning in caught:
        if warning not in missing:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        say(f"Some characters of the figures have no glyph here: install one of {', '.join(FONTS[1:4])}.")


def drawable(text: str) -> str:
    """Text as it stands: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def drawn(figure: Any) -> Picture:
    vector, pixels = io.BytesIO(), io.BytesIO()
    figure.savefig(vector, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    figure.savefig(pixels, format="png", dpi=160, bbox_inches="tight", metadata={"Software": None})
    return vector.getvalue(), pixels.getvalue()


def write_pictures(folder: Path, pictures: dict[str, Picture]) -> None:
    """NAME.svg and NAME.png of each."""
    for name, (vector, pixels) in pictures.items():
        write_atomically(folder / f"{name}.svg", vector)
        write_atomically(folder / f"{name}.png", pixels)


def data_address(svg: bytes) -> str:
    """An SVG as an address that holds all of it, for a page that stands alone."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
