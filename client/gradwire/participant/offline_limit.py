"""`OfflineLimit`: a worker that has lost the master trains on for some steps, then waits for it."""

from collections.abc import Callable

from gradwire.replica.waits import Procedure, until
from gradwire.settings.settings import Settings
from gradwire.worker.membership import Membership


class OfflineLimit:
    """Counts the steps of one worker since its connection was lost.

    Parameters
    ----------
    settings : Settings
    membership : Membership
    clock : callable
        Returns seconds, from any beginning.
    """

    def __init__(
        self, settings: Settings, membership: Membership, clock: Callable[[], float]
    ) -> None:
        self._steps_max = settings.alone_steps_max
        # The worker gives up after the former; the last try may take the latter.
        self._timeout = settings.reconnect_seconds + settings.connect_timeout_seconds
        self._membership = membership
        self._clock = clock
        self._steps = 0

    def may_train(self) -> Procedure[bool]:
        """Return whether a step may be made, after a wait where too many were made alone."""
        if self._membership.lost is None:
            self._steps = 0
            return True
        self._steps += 1
        if self._steps <= self._steps_max:
            return True
        deadline = self._clock() + self._timeout
        return (yield from until(self._membership, self._is_called, deadline, self._clock))

    def what_it_waited_for(self) -> str:
        """Return what to say when the wait was in vain."""
        return (
            f"{self._steps_max} steps were trained without the master; waited {self._timeout:g} s "
            "for it to come back"
        )

    def _is_called(self) -> bool:
        """Return whether the training thread is needed, or need not wait for the master."""
        membership = self._membership
        called = membership.wanted or membership.comparison is not None
        return membership.lost is None or called
