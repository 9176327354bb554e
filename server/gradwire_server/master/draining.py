"""Draining: a master that is told to end lets everything arrive that is under way, and then ends.

Nobody is let in any more, and the workers are told. Each answers with the sequence of its last
update, so it is known when the last one is in; what they have sent is passed on as ever, until
nothing waits for any of them. That takes some round trips. A worker that does not answer, because
its machine stands still for instance, is waited for until a deadline, and no longer.

An operator's `drain` is more patient: it waits until the workers leave by themselves.
"""

import logging
from collections.abc import Callable

from gradwire_protocol.messages.updates import Stopping
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")


class Draining:
    """Drains the master that a state is of.

    Parameters
    ----------
    on_drained : callable
        Called with the reason when it is time to stop, perhaps more than once.
    """

    def __init__(self, state: State, on_drained: Callable[[str], None]) -> None:
        self._state = state
        self._on_drained = on_drained
        self._due: float | None = None

    def begin(self, reason: str) -> None:
        """Tell the workers; `conclude` has to follow."""
        state = self._state
        state.stopping = reason
        self._due = state.now + state.config.drain_seconds
        for member in state.roster.workers:
            member.link.send(Stopping(reason))

    def conclude(self) -> None:
        """Say that it is time to stop, if it is; to be called after everything that happens."""
        if self._state.stopping is None or self._due is None:
            return
        late = self._waited_for()
        if late and self._state.now < self._due:
            return
        for name in late:
            logger.warning("stopping without waiting any longer for %s", name)
        self._due = None
        self._on_drained(self._state.stopping)

    def next_timer(self) -> float | None:
        """Return when `conclude` has to be called at the latest."""
        return self._due

    def _waited_for(self) -> list[str]:
        """Return what is not done yet."""
        run = self._state.run
        if run is None:
            return []
        if run.recovery is not None:
            return [f"run {run.name!r}, which is coming back from its workers"]
        return [
            member.name
            for member in self._state.roster.workers
            if member.phase is Phase.LIVE and member.aside is None and not self._is_done(member)
        ]

    def _is_done(self, member: Member) -> bool:
        """Return whether all is here that a worker has sent, and there that was sent to it."""
        assert self._state.run is not None
        accepted = self._state.run.relay.versions.get(member.rank, 0)
        return (
            member.last_sequence is not None
            and member.last_sequence <= accepted
            and not len(member.backlog)
            and not member.link.connection.bytes_queued
        )
