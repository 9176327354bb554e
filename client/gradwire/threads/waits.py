"""`Waits`: a thread plays the training half of a worker, and sleeps where that waits."""

from collections.abc import Callable
from threading import Condition
from time import monotonic
from typing import TypeVar

from gradwire.replica.waits import Procedure
from gradwire.threads.signals import uninterrupted
from gradwire.worker.membership import Membership

Result = TypeVar("Result")


class Waits:
    """The waits of the training thread, which the network thread ends.

    Parameters
    ----------
    membership : Membership
        Which notifies it from now on.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._changed = Condition()
        membership.notify = self.notify

    def notify(self) -> None:
        """Have those who wait look again at what they wait for."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until a condition holds, or until `time.monotonic` has reached the deadline.

        Returns
        -------
        bool
            Whether it holds. A membership that is closed is not waited for.
        """
        with self._changed:
            while not condition():
                left = deadline - monotonic()
                if left <= 0 or self._membership.closed:
                    return condition()
                self._changed.wait(left)
        return True

    def run(self, procedure: Procedure[Result]) -> Result:
        """Play a procedure to its end, and return what it returns.

        Signal handlers that want to close the session wait for the next wait.
        """
        while True:
            try:
                with uninterrupted():
                    wait = next(procedure)
            except StopIteration as end:
                result: Result = end.value
                return result
            self.wait(wait.condition, wait.deadline)
