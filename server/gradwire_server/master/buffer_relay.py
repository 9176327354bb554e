"""The relay of module buffers: the latest buffers of every worker reach all members.

The run's buffers come from its first worker, as its parameters do, and before them. From then on
the master keeps the latest buffers of each rank and computes nothing: workers find out what all
use. It sends every change to each member, in order, so a member that has received all messages has
the same buffers as the master. When the run has finished, members receive all buffers before they
hear of the end; so all end with what follows from the same buffers.

The buffers of a worker that has left are dropped, unless they are its final ones: these stay until
the run has finished, as its updates do, or until the rank's next worker has sent its own. That one
begins with them. If they are all that the run has, they stay until any other worker has sent its
own. Returning workers bring final buffers back to a restarted master.
"""

from collections.abc import Collection
from dataclasses import replace

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_server.state.buffer_feed import RankBuffers
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.run import Run
from gradwire_server.state.state import State


class BufferRelay:
    """Keeps and relays the buffers of all ranks."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._begun: Run | None = None
        """The run whose members have been sent what they waited for."""

    def receive(self, member: Member, buffers: Buffers) -> None:
        """Store and relay the buffers that a worker has sent.

        Raises `InvalidMessageError` if the run has not begun, unless this worker is to begin it.
        """
        state = self._state
        run = state.run
        founds = member.phase is Phase.FOUNDING and run is not None and run.recovery is None
        if run is None or not (run.founded or founds):
            raise InvalidMessageError(f"Buffers from {member.name} before the run has begun")
        state.metrics.buffers_received.inc()
        feed = member.buffers
        if buffers.rank != member.rank:
            self._restore(buffers)
        elif feed.has_final or not (
            buffers.final
            or feed.allowance.try_spend(state.now, buffers.nbytes + len(buffers.layout))
        ):
            state.metrics.buffers_refused.inc()
        else:
            feed.has_final = buffers.final
            if member.quarantine is None:
                self._store(buffers)
            else:
                feed.quarantined = buffers

    def release(self, member: Member) -> None:
        """Store and relay what a worker has sent in its quarantine, which is over."""
        buffers, member.buffers.quarantined = member.buffers.quarantined, None
        if buffers is not None:
            self._store(buffers)

    def enter(self, member: Member) -> None:
        """Send all buffers to a member that has joined: those of the rank's last worker as well."""
        run = self._state.run
        if run is not None and not member.stands_by:
            self._enter(member, set(run.buffers))

    def enter_again(self, member: Member) -> None:
        """Send the buffers of others to a member that has returned.

        In a finished run, that includes whether the others ended with its own buffers or without.
        """
        run = self._state.run
        if run is not None and not member.stands_by:
            ranks = run.buffers.keys() ^ {member.rank}
            self._enter(member, ranks if run.finished else ranks - {member.rank})

    def begin(self) -> None:
        """Send the first buffers to all who have waited for the run to begin, once it has."""
        run = self._state.run
        if run is None or not run.founded:
            self._begun = None
            return
        if run is self._begun:
            return
        self._begun = run
        for member in self._state.roster:
            if run.recovered and not member.stands_by:
                # A run that goes on from a checkpoint has its buffers only now.
                own = set() if member.join.resume is None else {member.rank}
                member.buffers.unsent |= dict.fromkeys(sorted(run.buffers.keys() - own))
            self._send_unsent(member)

    def forget(self, member: Member) -> None:
        """Forget the buffers of a worker that has left, unless they are its final ones."""
        run = self._state.run
        kept = None if run is None else run.buffers.get(member.rank)
        if run is None or kept is None or kept.final or run.finished or member.observes:
            return
        if run.founded and len(run.buffers) == 1:
            run.buffers[member.rank] = replace(kept, is_orphan=True)
            return
        del run.buffers[member.rank]
        self._tell_all(member.rank)

    def on_delivered(self, member: Member, number: int) -> bool:
        """Note that a control message was delivered; return whether the member has all buffers."""
        feed = member.buffers
        if not feed.on_delivered(number):
            return False
        self._state.metrics.buffers_relayed.inc()
        self._send_unsent(member)
        if feed.is_complete:
            feed.end(member.link)
        return feed.is_complete

    # Private.

    def _enter(self, member: Member, ranks: Collection[int]) -> None:
        member.buffers.unsent = dict.fromkeys(sorted(ranks))
        self._send_unsent(member)

    def _restore(self, buffers: Buffers) -> None:
        """Store final buffers of another rank that a worker brings back to a recovered run.

        The master believes them, as it does updates, only where the rank has no member.
        """
        state = self._state
        run = state.run
        assert run is not None
        rank = buffers.rank
        if (
            buffers.final
            and run.recovered
            and rank not in run.assigned_ranks
            and (rank not in run.buffers or run.buffers[rank].is_orphan)
            and state.roster.at(rank) is None
        ):
            self._store(buffers)

    def _store(self, buffers: Buffers) -> None:
        state, rank = self._state, buffers.rank
        run = state.run
        assert run is not None
        if run.finished:
            return  # a returning worker has to end with the same buffers as the others
        kept = RankBuffers(buffers.pack(), buffers.final) if buffers.nbytes else None
        if kept == run.buffers.get(rank):
            return
        orphans = [r for r, each in run.buffers.items() if each.is_orphan and r != rank]
        for orphan in orphans if kept is not None else ():
            del run.buffers[orphan]
            self._tell_all(orphan)
        if kept is None:
            del run.buffers[rank]
        else:
            run.buffers[rank] = kept
        self._tell_all(rank)
        if len(run.buffers) > 2 * state.config.workers_max:
            gone = next(each for each in run.buffers if state.roster.at(each) is None)
            del run.buffers[gone]
            state.metrics.buffers_refused.inc()
            self._tell_all(gone)

    def _tell_all(self, rank: int) -> None:
        """Send the buffers of a rank to all other members."""
        run = self._state.run
        assert run is not None
        for member in self._state.roster:
            if member.rank == rank or member.stands_by:
                continue
            if run.founded or rank in run.buffers:
                member.buffers.unsent[rank] = None
                self._send_unsent(member)
            else:
                member.buffers.unsent.pop(rank, None)  # it has not been told of them

    def _send_unsent(self, member: Member) -> None:
        """Send as many unsent buffers as there is room for."""
        feed, run = member.buffers, self._state.run
        if run is not None and not run.founded:
            return  # they follow WELCOME
        while feed.unsent and feed.has_room:
            rank = next(iter(feed.unsent))
            del feed.unsent[rank]
            kept = None if run is None else run.buffers.get(rank)
            none = Buffers.withdrawal(rank)
            feed.send(member.link, none, none.pack() if kept is None else kept.packed)
            self._state.queues_grew = True
