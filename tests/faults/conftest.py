"""How many cases were tried, and how many held."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def held(record_property) -> Callable[[], None]:
    """A function to call after each case of a test that has many."""

    def count() -> None:
        record_property("held", True)

    return count


def pytest_terminal_summary(terminalreporter) -> None:
    lines = []
    total = 0
    broken = 0
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if "tests/faults/" not in report.nodeid or report.when != "call":
                continue
            cases = sum(1 for name, _ in report.user_properties if name == "held")
            has_failed = outcome == "failed"
            cases = max(cases, 0 if has_failed else 1)
            total += cases + has_failed
            broken += has_failed
            if cases > 1 or has_failed:
                name = report.nodeid.partition("tests/faults/")[2]
                lines.append(f"{name}: {cases} held, {int(has_failed)} not")
    if total:
        terminalreporter.section("faults")
        for line in sorted(lines):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"{total} cases: {total - broken} held, {broken} not")
