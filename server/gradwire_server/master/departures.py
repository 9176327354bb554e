"""Departures: members that leave or are expelled, and the end of a run.

A worker that has announced its last update leaves, or has finished, once that update was accepted.
A member that breaks the protocol, is too slow, is denied or is expelled by an operator is
disconnected. Either way the updates that came from it count, and then its rank is free.
"""

import logging
from collections.abc import Callable
from typing import Final

from gradwire_protocol import CloseCode, Disconnected, UsageError
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.updates import Finished
from gradwire_server.metrics import Departure
from gradwire_server.replica.founding import found_again, recover
from gradwire_server.series.journal import Happening
from gradwire_server.state.roster import Member, Parted, Phase
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")

DEPARTURES: Final[dict[int, Departure]] = {
    CloseCode.LOST: Departure.DISCONNECTED,
    CloseCode.IDLE: Departure.IDLE,
    CloseCode.DENIED: Departure.DENIED,
}
"""Departure by the code with which the transport ended a connection; any other code is a fault."""


WORDS: Final[dict[str, str]] = {
    Departure.DISCONNECTED: "lost",
    Departure.IDLE: "lost",
    Departure.TOO_SLOW: "too slow",
    Departure.SENT_BACK: "sent back",
}
"""What is said of a worker by how it has departed; of others, that."""


class Departures:
    """Removes members from the run.

    Parameters
    ----------
    on_left : callable
        Called with a member that leaves, once all its updates were accepted.
    on_lost : callable
        Called with a member whose connection was lost, before it is removed.
    on_forgotten : callable
        Called with every removed member, after the roster has forgotten it.
    """

    def __init__(
        self,
        state: State,
        *,
        on_left: Callable[[Member], None],
        on_lost: Callable[[Member], None],
        on_forgotten: Callable[[Member], None],
    ) -> None:
        self._state = state
        self._on_left = on_left
        self._on_lost = on_lost
        self._on_forgotten = on_forgotten

    def handle_timer(self) -> None:
        """Remove members that have missed a deadline."""
        due = self._recovery_due
        if due is not None and self._state.now >= due:
            self._recover_without()
        self._drop_stalled()

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        run, recovery = self._state.run, self._recovery_due
        slow = None if run is None else run.relay.stalls_at(self._state.config.slow_seconds)
        return earliest((slow, recovery))

    # Members that leave.

    def check_completion(self, member: Member) -> None:
        """Let a member leave or finish, once its last update was accepted."""
        if member.removing:
            return  # its updates are accepted while it is removed
        if member.observes:
            self._complete_leave(member)
            return
        run = self._state.run
        if run is None or member.last_sequence is None:
            return
        if member.quarantine is not None:
            if member.leaving is not None:
                self._expel_quarantined(member, "it left")
            else:
                self.finish_run_if_complete()  # the run no longer waits for it
            return
        if member.last_sequence > run.accepted(member.rank):
            return
        if member.leaving is None:
            self.finish_run_if_complete()
        elif self._state.stopping is None:
            self._complete_leave(member)
        # Else the master is stopping, and the worker leaves because it was told to: it is still
        # sent the updates of others.

    def finish_run_if_complete(self) -> None:
        """Finish the run if all its workers have finished, and have all updates and buffers.

        Workers leave when they hear of the end. One that left while another lacks an update could
        not send it again to a master that is killed just now.
        """
        run = self._state.run
        if run is None or run.finished:
            return
        versions = run.relay.versions
        waited_for = [member for member in self._state.roster.workers if member.quarantine is None]
        if self._state.stopping is not None and any(m.leaving is not None for m in waited_for):
            return  # they leave because the master stops, and would have gone on training
        if run.rounds is not None and run.rounds.has_rest:
            return  # what the last mean has left is relayed first
        if waited_for and all(
            member.last_sequence is not None
            and versions.get(member.rank, 0) >= member.last_sequence
            and not run.relay.lacks(member)
            and member.buffers.is_complete
            for member in waited_for
        ):
            run.finished = True
            self._state.metrics.runs_finished.inc()
            self._state.note(Happening.FINISHED, f"run {run.name!r} is finished")
            for member in self._state.roster:
                if member.quarantine is not None:
                    self._expel_quarantined(member, "the run is finished")
            said = Finished(dict(versions))
            packed = said.pack()
            for member in self._state.roster:
                member.buffers.send_after_buffers(member.link, said, packed)
            self._state.queues_grew = True

    def disconnected(self, member: Member, event: Disconnected) -> None:
        """Remove a member whose connection has ended."""
        if event.by_peer:
            departure = Departure.DISCONNECTED
        else:
            departure = DEPARTURES.get(event.code, Departure.FAULT)
        text = f"{member.name} is gone: {event.reason}"
        self._state.note(Happening.LOST, text, rank=member.rank, level=logging.WARNING)
        if event.code == CloseCode.STALLED or (
            not event.by_peer and event.code in (CloseCode.IDLE, CloseCode.LOST)
        ):
            self._reserve_rank(member)
        self._remove(member, departure)

    def _complete_leave(self, member: Member) -> None:
        """Remove a member that sent LEAVE, once its last update has arrived."""
        text = f"{member.name} left: {member.leaving or 'done'}"
        self._state.note(Happening.LEFT, text, rank=member.rank)
        self._on_left(member)
        member.link.connection.close(EndCode.LEFT, "left", self._state.now)
        self._remove(member, Departure.LEFT)

    # Members that are expelled.

    def expel(
        self,
        member: Member,
        code: int,
        reason: str,
        departure: Departure,
        *,
        is_back: bool = False,
    ) -> None:
        """Close the connection of a member, and remove it.

        The run does not finish meanwhile without one that `is_back`; the caller looks again when it
        is a member.
        """
        member.link.connection.close(code, reason, self._state.now)
        if member.removing or self._state.roster.at(member.rank) is not member:
            return
        text = f"closed the connection of {member.name}: {reason}"
        self._state.note(Happening.EXPELLED, text, rank=member.rank, level=logging.WARNING)
        if departure in (Departure.REPLACED, Departure.TOO_SLOW):
            # It may return, over another connection, or when it is faster.
            self._reserve_rank(member)
        self._remove(member, departure, is_back=is_back)

    def expel_by_order(self, member: Member, reason: str) -> None:
        """Expel a member by order of an operator."""
        if member.quarantine is not None:
            self._expel_quarantined(member, reason)
        else:
            self.expel(member, EndCode.EXPELLED, reason, Departure.EXPELLED)

    def end_run(self, reason: str) -> str:
        """End the run by order of an operator; return what has become of it.

        Its last checkpoint stays. Raises `UsageError` if there is no run.
        """
        state = self._state
        run = state.run
        if run is None:
            raise UsageError("there is no run to end")
        run.ended = True
        workers = state.roster.workers
        for member in workers:
            self.expel_by_order(member, reason)
        for member in state.roster:
            self.expel(member, EndCode.RUN_OVER, reason, Departure.RUN_OVER)
        state.end_run()
        kept = run.last_checkpoint
        return (
            f"run {run.name!r} is over, after {count_updates(run.relay.versions, without=-1)} "
            f"updates; workers sent away: {len(workers)}; last checkpoint: "
            f"{'none' if kept is None else kept.name}. The next worker to join begins another run"
        )

    def expel_observers(self) -> None:
        """Expel the observers of a run that is over, because another one begins."""
        for member in self._state.roster:
            reason = "the run that was observed is over, and another one begins"
            self.expel(member, EndCode.RUN_OVER, reason, Departure.RUN_OVER)

    def _drop_stalled(self) -> None:
        """Expel members that are behind and have taken nothing for too long."""
        run, seconds = self._state.run, self._state.config.slow_seconds
        if run is not None:
            for member, reason in run.relay.too_slow(seconds, self._state.now):
                self.expel(member, EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)

    def drop_for_memory(self) -> None:
        """Expel the members that are furthest behind, while the log takes too much memory."""
        run = self._state.run
        while run is not None and (slowest := run.relay.drop_slowest(self._state.now)) is not None:
            member, reason = slowest
            self.expel(member, EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)

    def drop_all_too_slow(self) -> None:
        """Check every member, if messages were queued since the last check.

        The master calls this after an event, not while it handles one: removing a member can let in
        updates of its own, which make another member too slow, and so on, as deep as there are
        members.
        """
        while self._state.queues_grew:
            self._state.queues_grew = False
            for member in self._state.roster:
                reason = self._too_slow(member)
                if reason is not None:
                    self.expel(member, EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)

    def _too_slow(self, member: Member) -> str | None:
        """Return why a member is too slow; None if it is not.

        Updates, sums, snapshots and buffers are bounded where they are queued. This bounds all
        other messages.
        """
        run, limit = self._state.run, self._state.config.relay_backlog_bytes_max
        queued = member.link.connection.bytes_queued - member.buffers.nbytes
        queued -= 0 if run is None else run.relay.bytes_under_way(member)
        queued -= 0 if member.feed is None else member.feed.nbytes
        if queued > limit:
            return f"{queued} bytes wait for this worker; the limit is {limit}"
        return None

    def _expel_quarantined(self, member: Member, why: str) -> None:
        """Expel a worker that is in quarantine."""
        reason = (
            f"in quarantine since an update was far larger than the others': {why}; "
            f"{len(member.quarantine or ())} updates were dropped"
        )
        self.expel(member, EndCode.QUARANTINED, reason, Departure.QUARANTINED)

    # Both.

    def _reserve_rank(self, member: Member) -> None:
        """Reserve the rank of a member whose connection was lost."""
        if member.phase not in (Phase.SYNCING, Phase.LIVE):
            return
        member.removing = True  # else its last update, in `_on_lost`, would remove it twice
        self._on_lost(member)
        if member.leaving is not None or member.stands_by:
            return  # it was leaving, or needs no particular rank
        self._state.leases.reserve(
            member.join.worker_id,
            member.rank,
            member.link.connection.identity,
            self._state.now,
            finished=member.last_sequence is not None,
        )

    def stop(self, reason: str, code: EndCode = EndCode.STOPPED) -> None:
        """Remove all members: the master ends, or is no longer in charge."""
        for member in self._state.roster:
            member.link.connection.close(code, reason, self._state.now)
            self._forget(member, Departure.STOPPED)

    def _remove(self, member: Member, departure: Departure, *, is_back: bool = False) -> None:
        """Remove a member, and do what follows from that."""
        state = self._state
        member.removing = True
        state.decoder.drain(member.rank)  # its updates count, and another may get its rank soon
        self._forget(member, departure)
        state.tell_roster()
        self._found_again()
        if not is_back:
            self.finish_run_if_complete()
            self.end_run_if_over()

    def end_run_if_over(self) -> None:
        """Forget the run if it has finished and no worker is connected any more.

        A worker that was cut off at the end may still return to hear of it, until another run
        begins; and an observer may still have to be sent a part of it.
        """
        state = self._state
        if (
            state.run is not None
            and state.run.finished
            and not state.roster.workers
            and not state.leases.has_finished
            and not state.run.relay.behind
            and not any(member.buffers.has_last for member in state.roster)
        ):
            state.end_run()

    @property
    def _recovery_due(self) -> float | None:
        """When a recovery goes on without the workers, or the heir, that have not come."""
        run = self._state.run
        recovery = None if run is None else run.recovery
        if recovery is None:
            return None
        # After the contents, the replica is on its way; how long it takes depends on its size.
        is_coming = recovery.contents is not None and recovery.has_log
        return None if is_coming else recovery.deadline

    def _recover_without(self) -> None:
        """Continue the recovery without the workers, or the heir, that have not come in time."""
        state = self._state
        run = state.run
        assert run is not None
        recovery = run.recovery
        assert recovery is not None
        if not recovery.gathering:
            assert recovery.heir is not None
            reason = f"did not send in {recovery.seconds:g} s what it was asked for"
            self.expel(recovery.heir, CloseCode.IDLE, reason, Departure.SENT_BACK)
        elif recovery.returned:
            recover(run, state.roster, state.now)
        else:
            recovery.gathering = False
            self._found_again()

    def _found_again(self) -> None:
        """Where the run has no replica yet, continue with the members that are left."""
        state = self._state
        run = state.run
        if run is None or found_again(run, state.roster, state.now):
            return
        state.end_run()
        if run.local_copy is not None:
            state.serve(run.local_copy)  # it still waits for its workers

    def _forget(self, member: Member, departure: Departure) -> None:
        state = self._state
        state.roster.remove(member)
        self._on_forgotten(member)
        if (run := state.run) is not None:
            run.relay.remove(member)
            if not member.observes:
                word = "finished" if run.finished else WORDS.get(departure, departure)
                address = member.link.connection.address
                run.parted[member.rank] = Parted(member.shown_name, member.key_name, address, word)
        state.metrics.leaves.labels(departure).inc()
        state.count_members()
