"""`WaitNotice`: says what a thread waits for, if it waits for longer than a moment.

In a terminal that is one line, which goes on counting and is gone when the wait is over. Elsewhere
it is a line of the log, again when the thread waits for something else, and now and then.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import Final, TypeAlias

from gradwire.threads import console

logger = logging.getLogger("gradwire.wait")

Purpose: TypeAlias = Callable[[], str]
"""Returns what is waited for; it is equal where the wait is the same."""

SILENT_SECONDS: Final = 1.0
"""Nothing is said of a shorter wait."""

TICK_SECONDS: Final = 1.0
"""Between two changes of the line in a terminal."""

LINES_SECONDS: Final = 10.0
"""Between two lines of the log, at least: what is waited for may change at every moment."""

REPEAT_SECONDS: Final = 60.0
"""Between two lines of the log that say the same."""


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
        self._status: console.Console | None = None
        """Where a line changes; None if there is no such line."""

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
        terminal = console.current() if console.is_terminal() else None
        self._next_at = now + (TICK_SECONDS if terminal else LINES_SECONDS)
        if not logger.isEnabledFor(logging.INFO):
            return
        what, seconds = self._purpose(), round(now - self._began)
        self._status = terminal
        if terminal is None:
            if what != self._said or now - self._said_at >= REPEAT_SECONDS:
                logger.info("waiting (%d s) for %s", seconds, what)
                self._said, self._said_at = what, now
        else:
            terminal.show(f"waiting ({seconds} s) for {what}")

    def end(self) -> None:
        """Note that the wait is over, if one is under way."""
        if self._status is not None:
            self._status.show("")
        self._purpose, self._said, self._status = None, "", None
