"""Pages that stand alone, from the templates of the package."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

from cbmi.errors import UserError


def render_page(package: str, name: str, view: dict[str, Any], **filters: Callable) -> str:
    """A template of a package, filled in; all that it is given is escaped."""
    try:
        import jinja2
    except ImportError:
        raise UserError("Pages need the extra 'plot': pip install 'cbmi[plot]'.") from None
    places = [resources.files(package), resources.files("cbmi.analysis")]  # the latter has what all pages share

    def text_of(name: str) -> str:
        file = next(file for place in places if (file := place.joinpath(name)).is_file())
        return file.read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text_of),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name).render(view)
