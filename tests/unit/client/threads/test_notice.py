"""When a wait is worth a word, and how often."""

import logging
from collections.abc import Callable

import pytest

from gradwire.threads.notice import (
    REPEAT_SECONDS,
    SILENT_SECONDS,
    TICK_SECONDS,
    WaitNotice,
)


class Terminal:
    """A console that remembers what it has shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def show(self, status: str) -> None:
        self.shown.append(status)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("gradwire.threads.notice.monotonic", clock)
    return clock


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "gradwire.wait")
    return caplog


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr("gradwire.threads.console.is_terminal", lambda: True)
    monkeypatch.setattr("gradwire.threads.console.current", lambda: terminal)
    return terminal


def wait(clock: Clock, seconds: float, purpose: Callable[[], str], notice: WaitNotice) -> None:
    """Wait as a thread does: it sleeps for as long as nothing is to be said."""
    end = clock.now + seconds
    notice.begin(purpose)
    while True:
        notice.look()
        left = notice.seconds_left
        assert left > 0, "the thread would not sleep"
        if clock.now + left > end:
            clock.now = end
            return
        clock.now += left


def one_thing() -> str:
    return "the others"


def test_a_long_wait_is_a_line_now_and_then(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    wait(clock, SILENT_SECONDS + 2.5 * REPEAT_SECONDS, one_thing, WaitNotice())

    assert log.messages[0] == "waiting (1 s) for the others"
    assert len(log.messages) == 3


def test_in_a_terminal_one_line_counts_on_and_is_gone_at_the_end(
    clock: Clock, terminal: Terminal, log: pytest.LogCaptureFixture
) -> None:
    notice = WaitNotice()

    wait(clock, SILENT_SECONDS + 1.5 * TICK_SECONDS, one_thing, notice)
    notice.end()
    notice.end()

    assert terminal.shown == ["waiting (1 s) for the others", "waiting (2 s) for the others", ""]
    assert log.messages == []


def test_who_wants_it_quiet_is_told_of_no_wait(clock: Clock, terminal: Terminal) -> None:
    logging.getLogger("gradwire.wait").setLevel(logging.WARNING)
    try:
        notice = WaitNotice()
        wait(clock, REPEAT_SECONDS, one_thing, notice)
        notice.end()
    finally:
        logging.getLogger("gradwire.wait").setLevel(logging.NOTSET)

    assert terminal.shown == []
