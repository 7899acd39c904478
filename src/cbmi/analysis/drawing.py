"""What all figures share: matplotlib when it is there, one style, and pictures as bytes."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cbmi.errors import UserError
from cbmi.files import write_atomically

BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#d55e00", "#009e73", "#c1272d", "#8a929c"  # told apart by all eyes
INK, FAINT = "#1b2027", "#e1e5ea"
CYCLE = [BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#e69f00", "#6a3d9a", "#222222"]
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
Picture = tuple[bytes, bytes]  # SVG, PNG


@contextmanager
def plotting() -> Iterator[Any]:
    """pyplot in the house's style, without a screen; figures are closed at the end."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("Figures need the extra 'plot': pip install 'cbmi[plot]'.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        try:
            yield pyplot
        finally:
            pyplot.close("all")


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
