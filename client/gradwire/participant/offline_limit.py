"""`OfflineLimit`: how many steps a worker trains without the master before it waits for it."""

from collections.abc import Callable
from typing import Final

from gradwire.replica.waits import Procedure, until
from gradwire.settings.settings import Settings
from gradwire.worker.membership import Membership

STEPS_MAX: Final = 1_000
"""A worker that trains by itself drifts away from the others, so further steps wait."""


class OfflineLimit:
    """Counts the steps of one worker since it lost its connection."""

    steps_max = STEPS_MAX

    def __init__(
        self, settings: Settings, membership: Membership, clock: Callable[[], float]
    ) -> None:
        # Dialling ends after `reconnect_seconds`; a last try takes up to `connect_timeout_seconds`.
        self._timeout = settings.reconnect_seconds + settings.connect_timeout_seconds
        self._membership = membership
        self._clock = clock
        self._steps = 0

    def may_train(self) -> Procedure[bool]:
        """Return whether a step may be made; after too many alone, wait for the master first."""
        if self._membership.lost is None:
            self._steps = 0
            return True
        self._steps += 1
        if self._steps <= self.steps_max:
            return True
        deadline = self._clock() + self._timeout
        return (
            yield from until(
                self._membership, self._may_stop_waiting, deadline, self._clock, self._purpose
            )
        )

    def timeout_message(self) -> str:
        """Return the error message for a wait that took too long."""
        return (
            f"{self.steps_max} steps were trained without the master; waited {self._timeout:g} s "
            "for it to come back"
        )

    def _purpose(self) -> str:
        return (
            f"the master to come back ({self._membership.lost}): {self.steps_max} steps were "
            "trained without it"
        )

    def _may_stop_waiting(self) -> bool:
        """Return whether the connection is back, or the master needs the training thread."""
        membership = self._membership
        called = membership.replica_wanted or membership.comparison is not None
        return membership.lost is None or called
