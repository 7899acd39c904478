"""Requests to stop: handlers that last as long as a block, in the main thread only."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cbmi.signals import stop_signals

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def own_handlers():
    """Handlers of our own: a signal that comes at the wrong time must not end the tests."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, do_nothing)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def do_nothing(number: int, frame: Any) -> None: ...


def recorder(asked: list[int]) -> Callable[[int, Any], None]:
    def ask(number: int, frame: Any) -> None:
        asked.append(number)

    return ask


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_asks_inside_the_block_and_not_after_it(number):
    asked: list[int] = []
    with stop_signals(recorder(asked)):
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert asked == [number, number]
    signal.raise_signal(number)
    assert asked == [number, number]
    assert signal.getsignal(number) is do_nothing


def test_handlers_are_restored_after_an_error():
    with pytest.raises(ValueError, match="oops"), stop_signals(recorder([])):
        raise ValueError("oops")
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == [do_nothing, do_nothing]


def test_a_handler_that_python_does_not_know_gives_way_to_the_default(monkeypatch):
    """`signal.signal` returns None for a handler that was installed from C."""
    set_handler = signal.signal

    def set_without_previous(number: int, handler: Any) -> None:
        set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", set_without_previous)
    asked: list[int] = []
    with stop_signals(recorder(asked)):
        signal.raise_signal(signal.SIGTERM)
    assert asked == [signal.SIGTERM]
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    assert handlers == [signal.SIG_DFL, signal.SIG_DFL]


def test_another_thread_runs_the_block_without_handlers():
    seen: list[Any] = []

    def work() -> None:
        with stop_signals(recorder([])):
            for number in STOP_SIGNALS:
                seen.append(signal.getsignal(number))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [do_nothing, do_nothing]
