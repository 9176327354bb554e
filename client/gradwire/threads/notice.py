"""`WaitNotice`: says what a thread waits for, if it waits for longer than a moment.

That is a line of the log, again when the thread waits for something else, and now and then.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import Final, TypeAlias

logger = logging.getLogger("gradwire.wait")

Purpose: TypeAlias = Callable[[], str]
"""Returns what is waited for; it is equal where the wait is the same."""

SILENT_SECONDS: Final = 1.0
"""Nothing is said of a shorter wait."""

LINES_SECONDS: Final = 10.0
"""Between two lines, at least: what is waited for may change at every moment."""

REPEAT_SECONDS: Final = 60.0
"""Between two lines that say the same."""


@contextmanager
def announced(purpose: Purpose) -> Iterator[None]:
    """Say what the block is waited for, if it takes long: it does not return meanwhile."""
    over = Event()

    def say() -> None:
        notice = WaitNotice()
        notice.begin(purpose)
        while not over.wait(notice.seconds_left):
            notice.look()
        notice.end()

    thread = Thread(target=say, name="gradwire-notice", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class WaitNotice:
    """What one thread waits for, as people read it."""

    def __init__(self) -> None:
        self._purpose: Purpose | None = None
        """What this wait is for; None while there is none."""
        self._began = self._next_at = 0.0
        self._said = ""
        """The last that was said of this wait; empty if nothing was."""
        self._said_at = 0.0

    def begin(self, purpose: Purpose) -> None:
        """Note that a wait begins, unless it is the one that is under way already.

        A wait may be interrupted, and go on for the same purpose.
        """
        if purpose != self._purpose:
            self.end()
            self._purpose, self._began = purpose, monotonic()
            self._next_at = self._began + SILENT_SECONDS

    @property
    def seconds_left(self) -> float:
        """How long nothing has to be said."""
        return max(self._next_at - monotonic(), 0.0)

    def look(self) -> None:
        """Say what is waited for, if it is time to."""
        now = monotonic()
        if self._purpose is None or now < self._next_at:
            return
        self._next_at = now + LINES_SECONDS
        what = self._purpose()
        if what != self._said or now - self._said_at >= REPEAT_SECONDS:
            logger.info("waiting (%d s) for %s", round(now - self._began), what)
            self._said, self._said_at = what, now

    def end(self) -> None:
        """Note that the wait is over, if one is under way."""
        self._purpose, self._said = None, ""
