"""Departures: who takes part no more, whether it wanted so or not, and when a run is finished.

A worker that has said how far its updates go leaves, or has finished, when the last one is in. Who
is at fault, too slow, denied or not wanted any more is sent away. Either way what it has sent
counts, as far as it came, and then its rank is free.
"""

import logging
from collections.abc import Callable
from typing import Final

from gradwire_protocol import CloseCode, Connection, Disconnected, UsageError
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.states import StatePart
from gradwire_protocol.messages.updates import Finished
from gradwire_server.metrics import Departure
from gradwire_server.replica.founding import found_again, recover
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.state import State

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
    on_left : callable
        Called with a member that leaves, when all that it has sent is here.
    on_lost : callable
        Called with a member whose connection was lost, before its place is given up.
    on_forgotten : callable
        Called with every member that is gone, after the roster has forgotten it.
    """

    def __init__(
        self,
        state: State,
        *,
        on_left: Callable[[Member], None] = lambda member: None,
        on_lost: Callable[[Member], None],
        on_forgotten: Callable[[Member], None],
    ) -> None:
        self._state = state
        self._on_left = on_left
        self._on_lost = on_lost
        self._on_forgotten = on_forgotten

    def handle_timer(self) -> None:
        """Part with who has not done in time what it should have."""
        due = self._recovery_due
        if due is not None and self._state.now >= due:
            self._recover_without()
        self._drop_stalled()

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        run, recovery = self._state.run, self._recovery_due
        slow = None if run is None else run.relay.conflation.due(self._state.config.slow_seconds)
        deadlines = [deadline for deadline in (slow, recovery) if deadline is not None]
        return min(deadlines, default=None)

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
        if member.leaving is None:
            self.finish_if_all_have()
        elif self._state.stopping is None:
            self._let_go(member)
        # Else it is still sent what others have sent: it leaves because it was told to.

    def finish_if_all_have(self) -> None:
        """Say that the run is finished if everyone who is waited for has finished it.

        And has everything: who hears it leaves, and may be the only one that could send something
        again to a master that is killed just now.
        """
        run = self._state.run
        if run is None or run.finished:
            return
        versions = run.relay.versions
        waited_for = [member for member in self._state.roster.workers if member.aside is None]
        if self._state.stopping is not None and any(m.leaving is not None for m in waited_for):
            return  # those would have trained on
        if waited_for and all(
            member.last_sequence is not None
            and versions.get(member.rank, 0) >= member.last_sequence
            and not len(member.backlog)
            and member.buffers.is_told
            for member in waited_for
        ):
            run.finished = True
            self._state.metrics.runs_finished.inc()
            logger.info("run %r is finished", run.name)
            for member in self._state.roster:
                if member.aside is not None:
                    self._dismiss(member, "the run is finished")
            said = Finished(dict(versions))
            packed = said.pack()
            for member in self._state.roster:
                member.buffers.say_last(member.link, said, packed)
            self._state.queues_grew = True

    def disconnected(self, member: Member, event: Disconnected) -> None:
        """Part with a member whose connection has ended."""
        if event.by_peer:
            departure = Departure.DISCONNECTED
        else:
            departure = DEPARTURES.get(event.code, Departure.FAULT)
        logger.warning("%s is gone: %s", member.name, event.reason)
        if event.code == CloseCode.STALLED or (
            not event.by_peer and event.code in (CloseCode.IDLE, CloseCode.LOST)
        ):
            self._keep_place(member)
        self._remove(member, departure)

    def _let_go(self, member: Member) -> None:
        """Part with who has said that it leaves, and of whom all is here."""
        logger.info("%s left: %s", member.name, member.leaving or "done")
        self._on_left(member)
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
            if departure in (Departure.REPLACED, Departure.TOO_SLOW):
                # It comes back, perhaps: over another connection, or when it is quicker.
                self._keep_place(member)
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
        member = self._state.roster.of(connection)
        if member is None and connection not in self._state.lobby:
            return
        reason = self._too_slow(connection.bytes_queued, member)
        if reason is not None:
            self.expel(connection, EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)

    def _drop_stalled(self) -> None:
        """Send away who has taken nothing of what was added up for it, for too long."""
        run, seconds = self._state.run, self._state.config.slow_seconds
        if run is not None:
            for member, reason in run.relay.conflation.stalled(seconds, self._state.now):
                connection = member.link.connection
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

    def _too_slow(self, queued: int, member: Member | None) -> str | None:
        """Return why somebody is too slow for whom so many bytes wait; None if he is not.

        Updates, sums, snapshots and states are bounded where they are queued. Nothing else bounds
        what the master has to say besides, and corrections.
        """
        limit = self._state.config.relay_backlog_bytes_max
        if member is not None:
            backlog = member.backlog
            if backlog.hopeless is not None:
                return backlog.hopeless
            if backlog.correction_bytes > limit:
                waiting = backlog.correction_bytes
                return f"corrections of {waiting} bytes wait for this worker; the limit is {limit}"
            queued -= backlog.nbytes + backlog.correction_bytes + member.buffers.nbytes
            queued -= sum(feed.nbytes for feed in (backlog.feed, member.feed) if feed is not None)
            queued -= len(member.state_parts) * StatePart.BYTES_MAX
        if queued > limit:
            return f"{queued} bytes wait for this worker; the limit is {limit}"
        return None

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
        if member.leaving is not None or member.stands_by:
            return  # it wanted to go, or needs no rank of its own
        self._state.leases.keep_place(
            member.join.worker_id,
            member.rank,
            member.link.connection.identity,
            self._state.now,
            missed_correction=member.clipped,
            finished=member.last_sequence is not None,
        )

    def stop(self, reason: str, code: EndCode = EndCode.STOPPED) -> None:
        """Part with all members: the master ends, or is not in charge any more."""
        for member in self._state.roster:
            member.link.connection.close(code, reason, self._state.now)
            self._forget(member, Departure.STOPPED)

    def _remove(self, member: Member, departure: Departure) -> None:
        """Part with a member that is not going yet."""
        state = self._state
        member.going = True
        state.decoder.drain(member.rank)  # it counts, and the rank may soon be another's
        self._forget(member, departure)
        state.tell_roster()
        self._found_again()
        self.finish_if_all_have()
        self.end_if_over()

    def end_if_over(self) -> None:
        """Forget the run if it is finished, and nobody is there any more.

        Who was cut off at the end may still want to hear of it, until another run begins; and who
        observes it may not have got all of it, as a part is still to be sent.
        """
        state = self._state
        if (
            state.run is not None
            and state.run.finished
            and not state.roster.workers
            and not state.leases.has_finished
            and not len(state.run.relay.conflation)
            and not any(member.buffers.has_last for member in state.roster)
        ):
            state.end_run()

    @property
    def _recovery_due(self) -> float | None:
        """When those who are back go on without what has not come."""
        run = self._state.run
        recovery = None if run is None else run.recovery
        # When the contents have come, the replica does: its size says how long that may take.
        return None if recovery is None or recovery.contents is not None else recovery.deadline

    def _recover_without(self) -> None:
        """Go on with the run's recovery without what has not come in time."""
        state = self._state
        run = state.run
        assert run is not None
        recovery = run.recovery
        assert recovery is not None
        if not recovery.gathering:
            slow = recovery.owing or [each for each in [recovery.heir] if each is not None]
            for member in slow:
                reason = f"did not give in {recovery.seconds:g} s what it was asked for"
                self.expel(member.link.connection, CloseCode.IDLE, reason, Departure.SENT_BACK)
        elif recovery.returned:
            recover(run, state.roster, state.now)
        else:
            recovery.gathering = False
            self._found_again()

    def _found_again(self) -> None:
        """Go on where a run is not founded yet, with those who are left."""
        state = self._state
        run = state.run
        if run is None or found_again(run, state.roster, state.now):
            return
        recovery = run.recovery
        if recovery is None or not recovery.has_asked:
            state.end_run()
            if run.own is not None:
                state.run = run.own  # and it waits for them still
                state.metrics.parameters.set(state.run.layout.elements)
            return
        # Nothing was decided yet, so all that there is to lose is the time of coming once more.
        returned = list(recovery.returned)
        recovery.gather_again(state.now)
        for member in returned:
            reason = "the worker whose replica was to be taken is gone: come once more"
            member.link.connection.close(CloseCode.IDLE, reason, state.now)
            self._forget(member, Departure.SENT_BACK)
        state.tell_roster()

    def _forget(self, member: Member, departure: Departure) -> None:
        state = self._state
        state.roster.remove(member)
        self._on_forgotten(member)
        if state.run is not None:
            state.run.relay.remove(member)
        state.metrics.leaves.labels(departure).inc()
        state.count_members()
