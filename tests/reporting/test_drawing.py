"""Figures: the same bytes each time, and nothing of the caller's matplotlib changed."""

import warnings
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest
from matplotlib import pyplot

from cbmi.reporting.drawing import (
    FONTS,
    data_address,
    drawable,
    drawn,
    plotting,
    write_pictures,
)


def picture(title="title"):
    with plotting() as plotter:
        figure, axis = plotter.subplots(figsize=(3, 2), layout="constrained")
        axis.plot([1, 2, 3], [3, 1, 2], label=title)
        axis.set_title(title)
        axis.legend()
        return drawn(figure)


@pytest.mark.parametrize("backend", ["pdf", "svg"])
def test_the_callers_matplotlib_stays_as_it_is(backend):
    before = matplotlib.get_backend()
    try:
        matplotlib.rcParams["backend"] = backend
        matplotlib.rcParams["font.size"] = 13.5
        settings = dict(matplotlib.rcParams)
        own = pyplot.figure()
        picture()
        assert matplotlib.get_backend() == backend
        assert dict(matplotlib.rcParams) == settings
        assert pyplot.get_fignums() == [own.number]  # neither closed nor joined by ours
    finally:
        pyplot.close("all")
        matplotlib.rcdefaults()
        matplotlib.use(before)


def test_settings_are_restored_after_an_error():
    settings = dict(matplotlib.rcParams)
    with pytest.raises(ZeroDivisionError), plotting():
        raise ZeroDivisionError
    assert dict(matplotlib.rcParams) == settings


def test_the_same_figure_gives_the_same_bytes():
    first = picture()
    assert first == picture()
    assert first.png.startswith(b"\x89PNG")
    assert ElementTree.fromstring(first.svg).tag.endswith("svg")


def test_subplots_are_like_those_of_pyplot():
    with plotting() as plotter:
        _, axis = plotter.subplots()
        assert axis.get_subplotspec() is not None
        _, pair = plotter.subplots(1, 2, sharey=True)
        assert pair.shape == (2,)
        assert pair[0].get_shared_y_axes().joined(*pair)
        _, grid = plotter.subplots(1, 2, squeeze=False)
        assert grid.shape == (1, 2)
        figure = plotter.figure(figsize=(3, 2))
        assert figure.canvas.get_renderer() is not None  # measures text before it is drawn


def test_a_dollar_sign_is_no_formula():
    assert drawable("5 $ or 6 $") == r"5 \$ or 6 \$"
    picture(drawable("$\\nonsense$"))


def warn_and_draw_what_no_font_has():
    with plotting() as plotter:
        warnings.warn("something else", stacklevel=1)
        figure, axis = plotter.subplots()
        axis.set_title("\U00012000\U00012001")  # cuneiform
        drawn(figure)


def test_missing_glyphs_are_said_once_and_other_warnings_pass(capsys):
    with pytest.warns(UserWarning, match="something else") as caught:
        warn_and_draw_what_no_font_has()
    assert len(caught) == 1
    said = capsys.readouterr().err
    assert said.count("no glyph") == 1
    assert FONTS[1] in said


def test_pictures_are_written_by_name(tmp_path):
    made = picture()
    write_pictures(tmp_path / "figures", {"one": made})
    assert (tmp_path / "figures" / "one.svg").read_bytes() == made.svg
    assert (tmp_path / "figures" / "one.png").read_bytes() == made.png
    assert data_address(b"<svg/>") == "data:image/svg+xml;base64,PHN2Zy8+"
