"""A real browser, where there is one: `make test-browser` installs it and insists on it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

MISSING = "there is no browser here; `make test-browser` installs one"


def absent(reason: str) -> None:
    if os.environ.get("CBMI_BROWSER") == "required":
        pytest.fail(f"{MISSING}: {reason}")
    pytest.skip(f"{MISSING} ({reason})")


@pytest.fixture(scope="session")
def browser() -> Iterator:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        absent("Playwright is not installed")
    # If none is installed, Playwright uses its own.
    path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    quiet = [
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(
                executable_path=path, args=quiet, chromium_sandbox=os.getuid() != 0
            )
        except Error as error:
            absent(str(error).splitlines()[0])
        yield opened
        opened.close()


@pytest.fixture
def page(browser) -> Iterator:
    """A new page; an error of its script, or a dialog that corpus text opens, fails the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    problems = []

    def note_dialog(dialog) -> None:
        problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    opened = context.new_page()
    opened.set_default_timeout(20_000)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("dialog", note_dialog)
    yield opened
    context.close()
    assert problems == []
