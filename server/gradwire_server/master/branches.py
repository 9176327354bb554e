"""`Branches`: what relays that stand before this master send it, and are sent by it.

A relay is sent each result once, for all behind it: it is a member that takes part in nothing,
whose acknowledgements do not say what its peers have. It says that itself, in REACHED. Its peers
are members like all others, but for the results: before the first one, it is told to feed them.

What a relay has merged is taken as a whole, or not at all. Not at all, if a peer whose updates are
in it has taken part over another connection since: that one sends them again, or has sent them. The
relay makes the sum once more then, without these.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_protocol import InOrder
from gradwire_protocol.messages.admission import CODEC_VERSION, Join
from gradwire_protocol.messages.fields import WORKER_ID_BYTES, covers
from gradwire_protocol.messages.masters.relaying import Feed, Merged, PeerSpan, Reached, Taken
from gradwire_server.branches.arriving_sums import ArrivingSums
from gradwire_server.branches.branch import Branch, RelayedConnection, relayed
from gradwire_server.master.departures import Departures
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.run import Run
from gradwire_server.state.state import State

FEED_RANK: Final = -1
"""In place of a rank: a relay has none."""


class Feeds:
    """Which relays are sent results, and for which of the peers behind them."""

    def __init__(self) -> None:
        self.members: dict[Branch, Member] = {}
        """Each relay as a member that takes part in nothing."""
        self._fed: dict[Branch, set[RelayedConnection]] = {}

    def begin(self, run: Run, branch: Branch, feed: Feed) -> Member:
        """Begin to send results to a relay; the caller sends those after the versions in `feed`."""
        join = Join(
            run.name, bytes(WORKER_ID_BYTES), "relay", None, CODEC_VERSION,
            run.replica.quantum_exponent, run.layout,
        )  # fmt: skip
        member = self.members[branch] = Member(
            FEED_RANK,
            join,
            branch.link,
            InOrder(1),
            phase=Phase.LIVE,
            stands_by=True,
            behind=branch.reached,
        )
        self._fed[branch] = set()
        branch.reached.clear()
        branch.reached.update(feed.versions)
        return member

    def add(self, connection: RelayedConnection, feed: Feed, *, begins: bool) -> None:
        """Have a relay that is sent results pass them to one more of its peers."""
        branch = connection.branch
        self._fed[branch].add(connection)
        branch.feeds += 1
        for rank, sequence in feed.versions.items():  # more may have come here before FEED
            branch.reached[rank] = min(branch.reached.get(rank, 0), sequence)
        branch.link.send(replace(feed, peer=connection.number, begins=begins))

    def drop(self, run: Run | None, connection: RelayedConnection) -> None:
        """Note that a peer is gone; a relay without peers is sent nothing."""
        fed = self._fed.get(connection.branch, set())
        fed.discard(connection)
        if not fed:
            self.lose(run, connection.branch)

    def lose(self, run: Run | None, branch: Branch) -> None:
        """Send a relay no more results."""
        self._fed.pop(branch, None)
        branch.keeps_replica = False
        member = self.members.pop(branch, None)
        if member is not None and run is not None:
            run.relay.remove(member)

    def clear(self, run: Run | None) -> None:
        """Send no relay any more results."""
        for branch in [*self.members]:
            self.lose(run, branch)

    def on_delivered(
        self, run: Run | None, branch: Branch, rank: int, sequence: int, now: float
    ) -> None:
        """Note that a relay has an update that it was sent for all of its peers."""
        member = self.members.get(branch)
        if member is not None and run is not None:
            run.relay.on_delivered(member, rank, sequence, now)

    def receive_reached(self, branch: Branch, reached: Reached) -> bool:
        """Note what all peers of a relay have; return whether it counts.

        It does not if one has come since that the relay did not know.
        """
        if reached.feeds != branch.feeds or branch not in self.members:
            return False
        branch.reached.clear()
        branch.reached.update(reached.versions)
        branch.keeps_replica = reached.keeps_replica
        return True

    def too_slow(self, branch: Branch) -> str | None:
        """Return why a relay is too slow; None if it is not."""
        member = self.members.get(branch)
        return None if member is None else member.backlog.drop_reason


class Branches:
    """Takes what relays have merged, and feeds them.

    Parameters
    ----------
    take : callable
        Takes a sum into the round in progress; raises `MalformedUpdateError` if it does not fit.
    on_taken : callable
        Called with each member whose updates were taken.
    """

    def __init__(
        self,
        state: State,
        departures: Departures,
        take: Callable[[Run, Merged, Sequence[Update]], None],
        on_taken: Callable[[Member], None],
    ) -> None:
        self._state = state
        self._departures = departures
        self._take = take
        self._on_taken = on_taken
        self._feeds = Feeds()
        self._sums = ArrivingSums(state.decoder)

    # Results.

    def destinations(self) -> list[Member]:
        """Return whom a result is sent to: members, and relays for those behind them."""
        self.feed()
        direct = [m for m in self._state.roster.direct if m.phase in (Phase.SYNCING, Phase.LIVE)]
        return [*direct, *self._feeds.members.values()]

    def feed(self) -> None:
        """Have relays feed the members behind them that have come since."""
        roster, run = self._state.roster, self._state.run
        if run is None or not run.founded:
            return
        for member in [m for m in roster.unfed if m.phase in (Phase.SYNCING, Phase.LIVE)]:
            del roster.unfed[member]
            assert member.relayed is not None
            self._feed(run, member, member.relayed)

    def _feed(self, run: Run, member: Member, connection: RelayedConnection) -> None:
        assert run.rounds is not None  # all others are refused behind a relay
        begins = connection.branch not in self._feeds.members
        member.fed_from = run.relayed(run.relay.versions)
        feed = Feed(
            peer=connection.number,
            rank=member.rank,
            sequence=run.accepted(member.rank),
            versions=member.fed_from,
            observes=member.observes,
            begins=begins,
            run=run.name,
            elements=run.layout.elements,
            mode=run.mode,
            results=run.rounds.rank_of_results(run.relay.versions, self._state.now),
        )
        if begins:
            self._feeds.begin(run, connection.branch, feed)
        self._feeds.add(connection, feed, begins=begins)

    def drop(self, member: Member) -> None:
        """Forget a member that was removed."""
        if member.relayed is not None:
            self._feeds.drop(self._state.run, member.relayed)

    def note_fed(self, branch: Branch, rank: int, sequence: int) -> None:
        """Note that a relay has an update that it was sent for all of its peers."""
        self._feeds.on_delivered(self._state.run, branch, rank, sequence, self._state.now)

    def receive_reached(self, branch: Branch, reached: Reached) -> None:
        """Note what all peers of a relay have."""
        if self._feeds.receive_reached(branch, reached):
            self._departures.finish_run_if_complete()

    def has_all(self, member: Member) -> bool:
        """Return whether a member has all results, as far as its relay has to say that."""
        run = self._state.run
        if member.relayed is None or run is None:
            return True
        if member.fed_from is None:
            return False
        reached = member.relayed.branch.reached
        return covers(reached, run.relayed(run.relay.versions))

    def too_slow(self, branch: Branch) -> str | None:
        """Return why a relay is too slow; None if it is not."""
        return self._feeds.too_slow(branch)

    # Sums.

    def forget(self, branch: Branch) -> None:
        """Forget a relay that is gone."""
        self._sums.forget(branch)
        self._feeds.lose(self._state.run, branch)

    def receive_merged(self, branch: Branch, merged: Merged) -> None:
        """Take updates of peers of a relay, once all parts of their sum are here and decoded.

        Raises `InvalidMessageError` if they cannot be parts of one.
        """
        run = self._state.run
        parts = self._sums.take(branch, merged, None if run is None else run.layout.elements)
        if not parts:
            return
        merged = parts[-1]
        if run is None or run.rounds is None or not run.mode.merged or not run.founded:
            branch.link.send(Taken(merged.number, done=False, accepted={}))
            return
        self._sums.decode(
            branch,
            parts,
            run.layout.elements,
            lambda updates, bad: self._decoded(branch, run, merged, updates, bad),
        )

    def _decoded(
        self,
        branch: Branch,
        run: Run,
        merged: Merged,
        updates: Sequence[Update],
        bad: MalformedUpdateError | None,
    ) -> None:
        if run is not self._state.run:
            branch.link.send(Taken(merged.number, done=False, accepted={}))
            return
        wrong = [span for span in merged.spans if not self._fits(branch, run, span)]
        if bad is None and not wrong:
            try:
                self._take(run, merged, updates)
            except MalformedUpdateError as error:
                bad = error
        if bad is not None:  # the relay has looked at what it has merged
            self._state.metrics.updates_malformed.inc()
            branch.failure = f"it has merged what does not fit the run: {bad}"
            return
        accepted = {
            span.rank: run.accepted(span.rank)
            for span in merged.spans
            if wrong and self._is_holder(branch, span)
        }
        branch.link.send(Taken(merged.number, done=not wrong, accepted=accepted))
        if wrong:
            return
        for span in merged.spans:
            member = self._state.roster.at(span.rank)
            if member is not None:
                self._on_taken(member)

    def _fits(self, branch: Branch, run: Run, span: PeerSpan) -> bool:
        return self._is_holder(branch, span) and run.accepted(span.rank) == span.after

    def _is_holder(self, branch: Branch, span: PeerSpan) -> bool:
        """Return whether a rank was given to that peer of a relay last."""
        holder = self._state.roster.holders.get(span.rank)
        peer = None if holder is None else relayed(holder)
        return peer is not None and peer.branch is branch and peer.number == span.peer
