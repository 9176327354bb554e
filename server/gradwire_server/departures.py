"""Departures: who takes part no more, whether it wanted so or not, and when a run is finished.

A worker that has said how far its updates go leaves, or has finished, when the last one is in. Who
is at fault, too slow, denied or not wanted any more is sent away. Either way what it has sent
counts, as far as it came, and then its rank is free.
"""

import logging
from collections.abc import Callable
from typing import Final

from gradwire_protocol import CloseCode, Connection, Disconnected, UsageError
from gradwire_protocol.messages import EndCode, Finished
from gradwire_server.founding import found_again
from gradwire_server.metrics import Departure
from gradwire_server.roster import Member, Phase
from gradwire_server.state import State

logger = logging.getLogger("gradwire.master")

DEPARTURES: Final[dict[int, Departure]] = {
    CloseCode.LOST: Departure.DISCONNECTED,
    CloseCode.IDLE: Departure.IDLE,
    CloseCode.DENIED: Departure.DENIED,
}
"""What it is called when a connection ended with a code of the transport; else it is a fault."""


class Departures:
    """Parts with members.

    Parameters
    ----------
    state : State
    on_lost : callable
        Called with a member whose connection was lost, before its place is given up.
    on_forgotten : callable
        Called with every member that is gone, after the roster has forgotten it.
    """

    def __init__(
        self,
        state: State,
        *,
        on_lost: Callable[[Member], None],
        on_forgotten: Callable[[Member], None],
    ) -> None:
        self._state = state
        self._on_lost = on_lost
        self._on_forgotten = on_forgotten

    # By themselves.

    def settle(self, member: Member) -> None:
        """See whether a member's last update is in, and what follows from it."""
        if member.going:
            return  # what it sent comes in while we part with it
        if member.observes:
            self._let_go(member)
            return
        run = self._state.run
        if run is None or member.last_sequence is None:
            return
        if member.aside is not None:
            if member.leaving is not None:
                self._dismiss(member, "it left")
            else:
                self.finish_if_all_have()  # nobody waits for it any more
            return
        if member.last_sequence > run.relay.versions.get(member.rank, 0):
            return
        if member.leaving is not None:
            self._let_go(member)
        else:
            self.finish_if_all_have()

    def finish_if_all_have(self) -> None:
        """Say that the run is finished if everyone who is waited for has finished it."""
        run = self._state.run
        if run is None or run.finished:
            return
        versions = run.relay.versions
        waited_for = [member for member in self._state.roster.workers if member.aside is None]
        if waited_for and all(
            member.last_sequence is not None
            and versions.get(member.rank, 0) >= member.last_sequence
            and not member.lacks_correction
            for member in waited_for
        ):
            run.finished = True
            self._state.metrics.runs_finished.inc()
            logger.info("run %r is finished", run.name)
            for member in self._state.roster:
                if member.aside is not None:
                    self._dismiss(member, "the run is finished")
            self._state.tell_all(Finished(dict(versions)))

    def disconnected(self, member: Member, event: Disconnected) -> None:
        """Part with a member whose connection has ended."""
        if event.by_peer:
            departure = Departure.DISCONNECTED
        else:
            departure = DEPARTURES.get(event.code, Departure.FAULT)
        logger.warning("%s is gone: %s", member.name, event.reason)
        if not event.by_peer and event.code in (CloseCode.IDLE, CloseCode.LOST):
            self._keep_place(member)
        self._remove(member, departure)

    def _let_go(self, member: Member) -> None:
        """Part with who has said that it leaves, and of whom all is here."""
        logger.info("%s left: %s", member.name, member.leaving or "done")
        member.link.connection.close(EndCode.LEFT, "left", self._state.now)
        self._remove(member, Departure.LEFT)

    # Sent away.

    def expel(self, connection: Connection, code: int, reason: str, departure: Departure) -> None:
        """End a connection for a fault of the other side."""
        connection.close(code, reason, self._state.now)
        self._state.lobby.leave(connection)
        member = self._state.roster.of(connection)
        if member is None:
            logger.warning("closed a connection from %s: %s", connection.address, reason)
        elif not member.going:
            logger.warning("closed the connection of %s: %s", member.name, reason)
            if departure is Departure.REPLACED:
                self._keep_place(member)  # by itself, perhaps, over another connection
            self._remove(member, departure)

    def expel_unfit(self, member: Member, code: int, reason: str) -> None:
        """Send a worker away whose update does not fit the run."""
        self.expel(member.link.connection, code, reason, Departure.FAULT)

    def expel_by_order(self, member: Member, reason: str) -> None:
        """Send a member away because an operator wants it so."""
        if member.aside is not None:
            self._dismiss(member, reason)
        else:
            connection = member.link.connection
            self.expel(connection, EndCode.EXPELLED, reason, Departure.EXPELLED)

    def expel_quarantined(self, rank: int, reason: str) -> None:
        """Send a worker away that is in quarantine; `UsageError` if there is none."""
        self._dismiss(self.quarantined(rank), reason)

    def dismiss_observers(self) -> None:
        """Send away who observes a run that is over, for another one begins."""
        for member in self._state.roster:
            reason = "the run that was observed is over, and another one begins"
            self.expel(member.link.connection, EndCode.RUN_OVER, reason, Departure.RUN_OVER)

    def drop_if_too_slow(self, connection: Connection) -> None:
        """Send away for whom more waits than is kept for one."""
        state = self._state
        if state.roster.of(connection) is None and connection not in state.lobby:
            return
        queued, limit = connection.bytes_queued, state.config.relay_queue_bytes_max
        if queued > limit:
            reason = f"{queued} bytes wait for this worker; the limit is {limit}"
            self.expel(connection, EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)

    def drop_all_too_slow(self) -> None:
        """Do that to every member, if anything was sent since the last time.

        Once the event is handled, not in the midst of it: to part with one member can bring in
        updates of its own, which make another one too slow, and so on, as deep as there are
        members.
        """
        while self._state.queues_grew:
            self._state.queues_grew = False
            for connection in list(self._state.roster.connections):
                self.drop_if_too_slow(connection)

    def quarantined(self, rank: int) -> Member:
        """Return the worker of a rank that is in quarantine; `UsageError` if there is none."""
        member = self._state.roster.at(rank)
        if member is None or member.aside is None:
            raise UsageError(f"no worker of rank {rank} is in quarantine")
        return member

    def _dismiss(self, member: Member, why: str) -> None:
        """Send a worker away that is in quarantine."""
        reason = (
            f"in quarantine since an update was far larger than the others': {why}; "
            f"{len(member.aside or ())} updates were dropped"
        )
        connection = member.link.connection
        self.expel(connection, EndCode.QUARANTINED, reason, Departure.QUARANTINED)

    # What both come to.

    def _keep_place(self, member: Member) -> None:
        """Expect a member back whose connection was lost."""
        if member.phase not in (Phase.SYNCING, Phase.LIVE):
            return
        member.going = True  # or its last update would let it go, in the midst of this
        self._on_lost(member)
        if member.leaving is not None:
            return  # it wanted to go
        self._state.leases.keep(
            member.join.worker_id,
            member.rank,
            member.link.connection.identity,
            self._state.now,
            missed_correction=member.clipped,
            finished=member.last_sequence is not None,
        )

    def stop(self, reason: str) -> None:
        """Part with all members: the master ends."""
        for member in self._state.roster:
            member.link.connection.close(EndCode.STOPPED, reason, self._state.now)
            self._forget(member, Departure.STOPPED)

    def _remove(self, member: Member, departure: Departure) -> None:
        """Part with a member that is not going yet."""
        state = self._state
        member.going = True
        state.decoder.drain(member.rank)  # it counts, and the rank may soon be another's
        self._forget(member, departure)
        state.tell_roster()
        if state.run is not None and not found_again(state.run, state.roster):
            state.end_run()
        self.finish_if_all_have()
        # Who was cut off at the end may still want to hear of it, until another run begins.
        over = state.run is not None and state.run.finished and not state.roster.workers
        if over and not state.leases.has_finished:
            state.end_run()

    def _forget(self, member: Member, departure: Departure) -> None:
        state = self._state
        state.roster.remove(member)
        self._on_forgotten(member)
        if state.run is not None:
            state.run.relay.remove(member)
        state.metrics.leaves.labels(departure).inc()
        state.count_members()
