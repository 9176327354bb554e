"""`Waits`: runs the training half of a worker on a thread that sleeps while it waits.

`WaitNotice` says what the thread waits for, if it waits for longer than a moment: by a line of the
log, again when the thread waits for something else, and now and then.
"""

import logging
from collections.abc import Callable
from threading import Condition
from time import monotonic
from typing import Final, TypeAlias, TypeVar

from gradwire.replica.waits import Procedure, Wait
from gradwire.threads.signals import uninterrupted
from gradwire.worker.membership import Membership

logger = logging.getLogger("gradwire.wait")

Purpose: TypeAlias = Callable[[], str]
"""Returns what is waited for; it is equal where the wait is the same."""

SILENT_SECONDS: Final = 1.0
"""Nothing is said of a shorter wait."""

LINES_SECONDS: Final = 10.0
"""Between two lines, at least: what is waited for may change at every moment."""

REPEAT_SECONDS: Final = 60.0
"""Between two lines that say the same."""

Result = TypeVar("Result")


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


class Waits:
    """The waits of the training thread; the `membership` notifies them from now on."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._changed = Condition()
        self._notice = WaitNotice()
        membership.notify = self.notify

    def notify(self) -> None:
        """Make the waiting thread check its condition again."""
        with self._changed:
            self._changed.notify_all()

    def run(self, procedure: Procedure[Result]) -> Result:
        """Run a procedure to its end; return what it returns.

        Signal handlers that want to close the session are put off until its next wait.
        """
        try:
            while True:
                try:
                    with uninterrupted():
                        wait = next(procedure)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                self.wait(wait)
        finally:
            self._notice.end()

    def wait(self, wait: Wait) -> bool:
        """Wait until a condition holds, or until `time.monotonic` has reached the deadline.

        Returns whether it holds. A closed membership ends the wait. A long wait is shown, until
        another one begins or the procedure ends.
        """
        condition, notice = wait.condition, self._notice
        notice.begin(wait.purpose)
        while True:
            notice.look()  # without the lock, for which the network thread would wait
            with self._changed:
                if condition():
                    return True
                left = wait.deadline - monotonic()
                if left <= 0 or self._membership.closed:
                    return False
                self._changed.wait(min(left, notice.seconds_left))
