"""Pages that stand alone, from the templates of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from cbmi.errors import import_extra


def render_page(
    package: str, name: str, view: Mapping[str, Any], **filters: Callable[..., Any]
) -> str:
    """The template `name` of a package, filled in with `view`, in which all text is escaped.

    A template may include those of `cbmi.reporting`, which all pages share. `filters` are Jinja
    filters by name.
    """
    jinja2 = import_extra("jinja2", "A page", "plot")
    folders = [resources.files(package), resources.files("cbmi.reporting")]

    def text_of(template: str) -> str | None:
        for folder in folders:
            file = folder.joinpath(template)
            if file.is_file():
                return file.read_text(encoding="utf-8")
        return None  # Jinja says which template it has not found

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text_of),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    page: str = environment.get_template(name).render(view)
    return page
