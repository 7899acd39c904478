"""Progress where there is no terminal: plain lines that promise nothing they cannot know."""

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
