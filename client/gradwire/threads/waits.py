"""`Waits`: runs the training half of a worker on a thread that sleeps while it waits."""

from collections.abc import Callable
from threading import Condition
from time import monotonic
from typing import TypeVar

from gradwire.replica.waits import Procedure
from gradwire.threads.signals import uninterrupted
from gradwire.worker.membership import Membership

Result = TypeVar("Result")


class Waits:
    """The waits of the training thread; the `membership` notifies them from now on."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._changed = Condition()
        membership.notify = self.notify

    def notify(self) -> None:
        """Make the waiting thread check its condition again."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until a condition holds, or until `time.monotonic` has reached the deadline.

        Returns whether it holds. A closed membership ends the wait.
        """
        with self._changed:
            while not condition():
                left = deadline - monotonic()
                if left <= 0 or self._membership.closed:
                    return condition()
                self._changed.wait(left)
        return True

    def run(self, procedure: Procedure[Result]) -> Result:
        """Run a procedure to its end; return what it returns.

        Signal handlers that want to close the session are put off until its next wait.
        """
        while True:
            try:
                with uninterrupted():
                    wait = next(procedure)
            except StopIteration as end:
                result: Result = end.value
                return result
            self.wait(wait.condition, wait.deadline)
