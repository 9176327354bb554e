"""The relay of buffers: what every worker's hold reaches everyone, the latest of it.

The master keeps the latest of each rank and computes nothing: workers take the mean. What it keeps
is what counts, and it says every change of it to each member, in order, so a member that has been
told everything knows the same. When the run is finished, all have been told everything before they
hear of that; so all take the mean of the same.

Of a worker that is gone nothing counts any more, unless it has sent its last: then that counts
until the run is finished, as its updates do. A master that was started anew is told such by those
who are back.
"""

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.states import Buffers
from gradwire_server.state.buffer_feed import KeptBuffers
from gradwire_server.state.roster import Member
from gradwire_server.state.state import State


class BufferRelay:
    """Passes on what buffers hold."""

    def __init__(self, state: State) -> None:
        self._state = state

    def receive(self, member: Member, buffers: Buffers) -> None:
        """Take what a worker's buffers hold.

        Raises
        ------
        InvalidMessageError
            If there is no run yet.
        """
        state = self._state
        run = state.run
        if run is None or not run.founded:
            raise InvalidMessageError(f"Buffers from {member.name} before the run has begun")
        state.metrics.buffers_received.inc()
        feed = member.buffers
        if buffers.rank != member.rank:
            self._take_of_another(buffers)
        elif feed.has_final or not (
            buffers.final or feed.allowance.try_spend(state.now, buffers.nbytes)
        ):
            state.metrics.buffers_refused.inc()
        else:
            feed.has_final = buffers.final
            if member.aside is None:
                self._keep(buffers)
            else:
                feed.aside = buffers

    def release(self, member: Member) -> None:
        """Take what was sent during a quarantine that is over."""
        buffers, member.buffers.aside = member.buffers.aside, None
        if buffers is not None:
            self._keep(buffers)

    def enter(self, member: Member) -> None:
        """Tell a member everything that is let in, or back in.

        Where it comes after the end, and the others have ended without it, it has to know that.
        """
        run = self._state.run
        if run is not None and not member.stands_by:
            ranks = run.buffers.keys() ^ {member.rank}
            if not run.finished:
                ranks -= {member.rank}
            member.buffers.unsent = dict.fromkeys(sorted(ranks))
            self._proceed(member)

    def begin_rank(self, rank: int) -> None:
        """Forget what somebody has left behind whose rank is another one's now."""
        run = self._state.run
        if run is not None and run.buffers.pop(rank, None) is not None:
            self._tell_all(rank)

    def forget(self, member: Member) -> None:
        """Forget what those of a worker hold that is gone, unless it was its last."""
        run = self._state.run
        kept = None if run is None else run.buffers.get(member.rank)
        if run is None or kept is None or kept.final or run.finished or member.observes:
            return
        del run.buffers[member.rank]
        self._tell_all(member.rank)

    def on_delivered(self, member: Member, number: int) -> bool:
        """Note that a control message has arrived; return whether its receiver knows all now."""
        feed = member.buffers
        if not feed.on_delivered(number):
            return False
        self._state.metrics.buffers_relayed.inc()
        self._proceed(member)
        if feed.is_told:
            feed.end(member.link)
        return feed.is_told

    # Private.

    def _take_of_another(self, buffers: Buffers) -> None:
        """Take what somebody has left behind in a run that this master got back.

        The word of a worker is believed of a rank that is nobody's, as it is of updates then.
        """
        state = self._state
        run = state.run
        assert run is not None
        rank = buffers.rank
        if (
            buffers.final
            and run.recovered
            and rank not in run.given
            and rank not in run.buffers
            and state.roster.at(rank) is None
        ):
            self._keep(buffers)

    def _keep(self, buffers: Buffers) -> None:
        state, rank = self._state, buffers.rank
        run = state.run
        assert run is not None
        if run.finished:
            return  # who comes back is to end with what the others have ended with
        kept = KeptBuffers(buffers.pack(), buffers.final) if buffers.nbytes else None
        if kept == run.buffers.get(rank):
            return
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
        """Let all others know what there is of a rank."""
        for member in self._state.roster:
            if member.rank != rank and not member.stands_by:
                member.buffers.unsent[rank] = None
                self._proceed(member)

    def _proceed(self, member: Member) -> None:
        """Send what there is room for."""
        feed, run = member.buffers, self._state.run
        while feed.unsent and feed.has_room:
            rank = next(iter(feed.unsent))
            del feed.unsent[rank]
            kept = None if run is None else run.buffers.get(rank)
            none = Buffers.none_of(rank)
            feed.send(member.link, none, none.pack() if kept is None else kept.packed)
            self._state.queues_grew = True
