"""Draining: a master that is told to stop delivers all messages under way, and then stops.

No worker may join any more, and the members are told. Each answers with the sequence of its last
update, so the master knows when all updates were accepted. It relays them as usual, until nothing
is queued for any worker. That takes some round trips. The master waits for a worker that does not
answer, on a suspended machine for instance, only until a deadline.

An operator's `drain` has no deadline: it waits until the workers leave by themselves.
"""

import logging
from collections.abc import Callable

from gradwire_protocol.messages.updates import Stopping
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")


class Draining:
    """Drains a master, and calls `on_drained` with the reason when it is time to stop."""

    def __init__(self, state: State, on_drained: Callable[[str], None]) -> None:
        self._state = state
        self._on_drained = on_drained
        self._due: float | None = None

    def begin(self, reason: str) -> None:
        """Send STOPPING to the workers. The caller calls `conclude` next."""
        state = self._state
        state.stopping = reason
        self._due = state.now + state.config.drain_seconds
        for member in state.roster.workers:
            member.link.send(Stopping(reason))

    def conclude(self) -> None:
        """Call `on_drained` if it is time to stop; the master calls this after every event."""
        if self._state.stopping is None or self._due is None:
            return
        late = self._waited_for()
        if late and self._state.now < self._due:
            return
        for name in late:
            logger.warning(
                "stopping without waiting any longer for %s: the limit is %g s",
                name,
                self._state.config.drain_seconds,
            )
        self._due = None
        self._on_drained(self._state.stopping)

    def next_timer(self) -> float | None:
        """Return when `conclude` has to be called at the latest."""
        return self._due

    def _waited_for(self) -> list[str]:
        """Return what the master still waits for, for the log."""
        run = self._state.run
        if run is None:
            return []
        if run.recovery is not None:
            return [f"run {run.name!r}, which is being recovered from its workers"]
        return [
            member.name
            for member in self._state.roster.workers
            if member.phase is Phase.LIVE
            and member.quarantine is None
            and not self._is_done(member)
        ]

    def _is_done(self, member: Member) -> bool:
        """Return whether a worker's updates were all accepted, and all messages to it delivered."""
        run = self._state.run
        assert run is not None
        accepted = run.accepted(member.rank)
        return (
            member.last_sequence is not None
            and member.last_sequence <= accepted
            and not run.relay.lacks(member)
            and not member.link.connection.bytes_queued
        )
