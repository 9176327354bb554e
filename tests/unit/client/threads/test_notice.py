"""When a wait is worth a word, and how often."""

import logging
from collections.abc import Callable

import pytest

from gradwire.threads.waits import REPEAT_SECONDS, SILENT_SECONDS, WaitNotice


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("gradwire.threads.waits.monotonic", clock)
    return clock


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "gradwire.wait")
    return caplog


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


def test_what_is_waited_for_next_is_said_again(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    notice = WaitNotice()

    wait(clock, 2 * SILENT_SECONDS, one_thing, notice)
    wait(clock, 2 * SILENT_SECONDS, lambda: "the master", notice)

    assert log.messages == ["waiting (1 s) for the others", "waiting (1 s) for the master"]
