"""What all figures share: one style, and pictures as bytes.

Figures are made without pyplot: the caller's backend, settings and open figures stay as they are.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cbmi.errors import import_extra
from cbmi.files import write_together
from cbmi.progress import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that colour-blind readers can tell apart.
BLUE = "#0072b2"
ORANGE = "#d55e00"
GREEN = "#009e73"
RED = "#c1272d"
GREY = "#8a929c"
INK = "#1b2027"
FAINT = "#e1e5ea"
CYCLE = [BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#e69f00", "#6a3d9a", "#8c564b"]
STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5b6470",
    "axes.grid": True,
    "grid.color": "#e6e9ed",
    "axes.axisbelow": True,
    "legend.frameon": False,
    # Text as outlines: an SVG looks the same everywhere, whatever fonts are installed.
    "svg.fonttype": "path",
    # A fixed salt: the same figure gives the same bytes.
    "svg.hashsalt": "cbmi",
}
# The first font has all scripts except those of East Asia. Of the others, those installed fill in.
FONTS = [
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Zen Hei",
    "Noto Sans",
    "Arial Unicode MS",
]
PNG_DPI = 160
WIDTH = 9.0  # inches of a figure


class Picture(NamedTuple):
    """The files of a figure."""

    svg: bytes
    png: bytes


def check_plotting() -> None:
    """Refuse at once what would fail after hours of work because an extra is missing."""
    for module in ("jinja2", "matplotlib"):
        import_extra(module, "A page with figures", "plot")


class Plotter:
    """Makes figures as pyplot does, but registers them nowhere and opens no window."""

    def __init__(self) -> None:
        from matplotlib.patches import Rectangle

        self.Rectangle = Rectangle

    def figure(self, **settings: Any) -> Figure:
        """An empty figure. `settings` go to matplotlib's `Figure`, such as figsize and layout."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(**settings)
        FigureCanvasAgg(figure)  # becomes figure.canvas, whose renderer measures text
        return figure

    def subplots(
        self,
        rows: int = 1,
        columns: int = 1,
        *,
        sharex: bool = False,
        sharey: bool = False,
        squeeze: bool = True,
        **settings: Any,
    ) -> tuple[Figure, Any]:
        """A figure, and its axes as matplotlib gives them: one, or an array of them."""
        figure = self.figure(**settings)
        axes = figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=squeeze)
        return figure, axes


@contextmanager
def plotting() -> Iterator[Plotter]:
    """A `Plotter` in the package's style. Figures have to be made and drawn inside the block."""
    check_plotting()
    import matplotlib
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    fonts = [name for name in FONTS if name in installed]
    style: Any = STYLE | {"font.family": fonts}  # Any: matplotlib's stubs want literal keys
    with (
        matplotlib.rc_context(style),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        yield Plotter()
    _report_warnings(caught)


def _report_warnings(caught: list[warnings.WarningMessage]) -> None:
    """One sentence for all missing glyphs; other warnings are issued again."""
    glyphs_missing = False
    for warning in caught:
        if "missing from font" in str(warning.message):
            glyphs_missing = True
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if glyphs_missing:
        say(
            "Some characters of the figures have no glyph here: "
            f"install one of {', '.join(FONTS[1:4])}."
        )


def drawable(text: str) -> str:
    """Text that matplotlib draws as it is: a bare dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def drawn(figure: Figure) -> Picture:
    """The figure as SVG and PNG, without dates and versions: the same figure, the same bytes."""
    svg = io.BytesIO()
    figure.savefig(svg, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=PNG_DPI, bbox_inches="tight", metadata={"Software": None})
    return Picture(svg.getvalue(), png.getvalue())


def write_pictures(folder: Path, pictures: Mapping[str, Picture]) -> None:
    """Write NAME.svg and NAME.png for each picture by its name."""
    contents: dict[Path, str | bytes] = {}
    for name, picture in pictures.items():
        contents[folder / f"{name}.svg"] = picture.svg
        contents[folder / f"{name}.png"] = picture.png
    write_together(contents)


def data_address(svg: bytes) -> str:
    """An SVG as a data: URL, for a page that stands alone."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def panel_figure(
    plotter: Plotter, count: int, height: float, most: int = 2
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels of a height in inches, at most `most` in a row."""
    rows = -(-count // most)  # rounded up
    columns = -(-count // rows)
    figsize = (WIDTH, height * rows)
    figure, grid = plotter.subplots(
        rows, columns, figsize=figsize, squeeze=False, layout="constrained"
    )
    axes = list(grid.flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]
