"""Progress without a terminal: plain lines that promise only what is known, and silence."""

from __future__ import annotations

import threading

import pytest

from cbmi import progress


def test_time_left_is_said_once_something_is_known_of_it(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.bar("Work", 100, "steps", done=20) as shown:
        now[0] = 15.0
        shown.advance(0)
        now[0] = 40.0
        shown.advance(20, "loss 1.5")
    assert capsys.readouterr().err.splitlines() == [
        "Work: 20 of 100 steps (20%), 0 steps/s",
        "Work: 40 of 100 steps (40%), loss 1.5, 2:00 left",
    ]


def test_without_a_total(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.bar("Reading", None, "lines") as shown:
        shown.advance(5)  # too early for a line
        now[0] = 10.0
        shown.advance(995)
    assert capsys.readouterr().err.splitlines() == ["Reading: 1,000 lines, 100 lines/s"]


def count_a_minute(monkeypatch: pytest.MonkeyPatch) -> progress.Bar:
    """A bar that counts to ten and has had time enough to print a line."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.bar("Work", 100, "steps") as shown:
        now[0] = 60.0
        shown.advance(10)
    return shown


def test_nothing_is_printed_inside_quiet(monkeypatch, capsys):
    with progress.quiet():
        progress.say("not heard")
        shown = count_a_minute(monkeypatch)
    assert type(shown) is progress.Bar
    assert shown.done == 10  # it counts all the same
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_quiet_ends_with_its_block_even_if_that_fails(monkeypatch, capsys):
    def fail() -> None:
        raise ValueError("oops")

    with progress.quiet():
        with pytest.raises(ValueError, match="oops"), progress.quiet():
            fail()
        progress.say("still inside the outer block")
    progress.say("heard")
    count_a_minute(monkeypatch)
    assert capsys.readouterr().err.splitlines() == [
        "heard",
        "Work: 10 of 100 steps (10%), 0.17 steps/s, 9:00 left",
    ]


def test_quiet_does_not_silence_other_threads(capsys):
    with progress.quiet():
        other = threading.Thread(target=progress.say, args=("from another thread",))
        other.start()
        other.join()
    assert capsys.readouterr().err == "from another thread\n"
