"""`Waits`: runs the training half of a worker on a thread that sleeps while it waits."""

from threading import Condition
from time import monotonic
from typing import TypeVar

from gradwire.replica.waits import Procedure, Wait
from gradwire.threads.notice import WaitNotice
from gradwire.threads.signals import uninterrupted
from gradwire.worker.membership import Membership

Result = TypeVar("Result")


class Waits:
    """The waits of the training thread; its `memberships` notify them from now on."""

    def __init__(self, *memberships: Membership) -> None:
        self._memberships: list[Membership] = []
        self._changed = Condition()
        self._notice = WaitNotice()
        for membership in memberships:
            self.add(membership)

    def add(self, membership: Membership) -> None:
        """Have one more membership notify them."""
        self._memberships.append(membership)
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

        Returns whether it holds. Once all memberships are closed no wait goes on. A long wait is
        shown, until another one begins or the procedure ends.
        """
        condition, notice = wait.condition, self._notice
        notice.begin(wait.purpose)
        while True:
            notice.look()  # without the lock, for which the network thread would wait
            with self._changed:
                if condition():
                    return True
                left = wait.deadline - monotonic()
                if left <= 0 or all(each.closed for each in self._memberships):
                    return False
                self._changed.wait(min(left, notice.seconds_left))
