"""`Results`: the updates that the parent relays, on their way to the peers of a relay.

The parent sends each once. From which versions on a peer is sent them, it says in FEED; what it has
not got by then comes to it another way. A peer that is slow is sent sums (see `conflation`). The
parent is told what all peers have: that alone makes an update stable there.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from gradwire_codecs import MalformedUpdateError, Replica, decode
from gradwire_protocol import Connection, InOrder, InvalidMessageError
from gradwire_protocol.messages.admission import CODEC_VERSION, Join
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import CONFLATED_STREAM
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.masters.relaying import Feed, Reached
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.config import MasterConfig
from gradwire_server.intermediary.kept_replica import KeptReplica
from gradwire_server.intermediary.peers import Peer
from gradwire_server.state.relay import Relay
from gradwire_server.state.roster import Member, Phase, Roster
from gradwire_server.state.run import Run
from gradwire_server.updates.rounds import Rounds
from gradwire_server.updates.update_rate import UpdateRate

REACHED_SECONDS: Final = 0.02
"""How often the parent is told what all peers have, if that has changed."""


class Results:
    """What the parent relays, and which peer has what of it."""

    def __init__(self, config: MasterConfig, kept: KeptReplica | None = None) -> None:
        self.run: Run | None = None
        """The run of the peers, without a replica; None before the first is fed."""
        self.roster = Roster()
        """The peers that take part in it here."""
        self.kept = kept
        """The replica, if one is kept for peers that come later."""
        self._config = config
        self._feeds = 0
        self._fed: dict[Member, Mapping[int, int]] = {}
        """The peers that results are sent to, relays among them, and from which versions on."""
        self._arriving: dict[int, InOrder[UpdateReceived]] = {}
        self._early: list[UpdateReceived] = []
        """What came before the first FEED."""
        self._reached = Reached(0, {}, keeps_replica=False)
        self._reached_at = float("-inf")
        self._may_have_news = False
        """Whether something has happened since after which all peers may have more."""

    # Peers.

    @property
    def feeds_any(self) -> bool:
        """Whether results are sent to anybody."""
        return bool(self._fed)

    def begin(self, feed: Feed, up: Connection, now: float) -> None:
        """Begin with the first peer that is fed.

        The parent sends no result twice, so those that have overtaken FEED are kept.
        """
        early, self._early = [*self._early, *self._overtaking(feed, up)], []
        layout = Layout((Tensor("parameters", (feed.elements,)),))
        relay = Relay(feed.elements, self._config.relay, has_rounds=feed.mode.has_rounds)
        relay.start_from(feed.versions)
        run = Run(feed.run, layout, Replica(np.zeros(1, np.int32)), None, relay, mode=feed.mode)
        run.recovered = True  # peers may have results that this relay has not
        if feed.mode.merged:
            run.rounds = Rounds(feed.mode, layout, {})
        self.run = run
        self._arriving = {}
        if self.kept is not None:
            self.kept.restart()
        for received in early:
            self.receive(received, up, now)

    def _overtaking(self, feed: Feed, up: Connection) -> Iterator[UpdateReceived]:
        """Yield what has come, in order or not, and is after the versions in FEED."""
        if self.run is None:
            return
        for rank, _, message in self.run.relay.log.since(feed.versions, without=-1):
            if rank == feed.results:
                yield UpdateReceived(rank, EncodedUpdate.parse(message.payload), message, 0)
        for rank, arriving in self._arriving.items():
            for received in arriving.take_waiting():
                if rank == feed.results:
                    yield received
                else:
                    up.release(received.charge)

    def note_feed(self, feed: Feed) -> Run:
        """Count a FEED; return the run that it is of.

        Raises `InvalidMessageError` if that has not begun.
        """
        self._feeds += 1
        self._may_have_news = True
        if self.run is None or feed.elements != self.run.layout.elements:
            raise InvalidMessageError(f"Feed of {feed.elements} elements, without a beginning")
        return self.run

    def add(self, run: Run, peer: Peer, feed: Feed) -> Member:
        """Add a peer that takes part from now on; the caller feeds it next."""
        join = peer.join or Join(
            feed.run, bytes(WORKER_ID_BYTES), "peer", None, CODEC_VERSION, 0, run.layout
        )
        pace: UpdateRate[UpdateReceived] = UpdateRate(self._config.update_rate_max)
        first = feed.sequence + 1
        member = Member(feed.rank, join, peer.link, InOrder(first), phase=Phase.LIVE, pace=pace)
        peer.member = member
        self.roster.add_member(member)
        if run.rounds is not None:
            run.rounds.accepted[feed.rank] = feed.sequence
        return member

    def feed(self, run: Run, member: Member, versions: Mapping[int, int], now: float) -> bool:
        """Send a peer all results after some versions; return whether the first ones are kept."""
        self._fed[member] = versions
        if not run.relay.can_catch_up(versions, without=-1):
            return False
        run.relay.catch_up(member, versions, now)
        return True

    def remove(self, member: Member) -> None:
        """Remove a peer that is fed no more."""
        self._may_have_news = True
        if self.roster.at(member.rank) is member:
            self.roster.remove(member)
        self._fed.pop(member, None)
        if self.run is not None:
            self.run.relay.remove(member)

    # Updates.

    def receive(self, received: UpdateReceived, up: Connection, now: float) -> None:
        """Pass on an update of the parent, in order, to all peers that lack it.

        Raises `InvalidMessageError` if it does not fit the run.
        """
        run = self.run
        if run is None:
            self._early.append(received)
            return
        rank = received.rank
        if rank not in self._arriving:
            self._arriving[rank] = InOrder(run.relay.next_sequence(rank))
        if self._arriving[rank].is_duplicate(received.update.sequence):
            up.release(received.charge)  # it came after the last peer had gone
            return
        for each in self._arriving[rank].insert(received.update.sequence, received):
            up.release(each.charge)
            self._relay(run, each, now)

    def _relay(self, run: Run, received: UpdateReceived, now: float) -> None:
        update, rank, sequence = received.update, received.rank, received.update.sequence
        self._may_have_news = True
        try:
            decoded = decode(update.body, run.layout.elements)
        except MalformedUpdateError as error:
            raise InvalidMessageError(f"update {sequence} of rank {rank}: {error}") from None
        if self.kept is not None:
            self.kept.add(rank, sequence, decoded)
        run.relay.accept(
            rank,
            sequence,
            received.message,
            decoded,
            [m for m, floor in self._fed.items() if floor.get(rank, 0) < sequence],
            now,
            clocks=update.clocks_of(rank),
            closes=update.closes,
        )

    def on_delivered(self, member: Member, stream: int, number: int, now: float) -> None:
        """Note that an update, or a part of a sum, was delivered to a peer."""
        if self.run is None:
            return
        self._may_have_news = True
        if stream == CONFLATED_STREAM:
            self.run.relay.on_part_delivered(member, now)
        else:
            self.run.relay.on_delivered(member, stream, number, now)

    def too_slow(self, now: float) -> Iterator[tuple[Member, str]]:
        """Yield the peers that take too little, each with the reason."""
        for member in [*self._fed]:
            if member.backlog.drop_reason is not None:
                yield member, member.backlog.drop_reason
        if self.run is not None:
            yield from self.run.relay.conflation.stalled(self._config.slow_seconds, now)

    # What all peers have.

    def note_news(self) -> None:
        """Note that a relay has said what its peers have."""
        self._may_have_news = True

    def take_reached(self, now: float) -> Reached | None:
        """Return what all peers have, if it is time to say so and it has changed."""
        run = self.run
        due = self.reached_due
        if run is None or due is None or now < due:
            return None
        self._may_have_news = False
        keeps = self.kept is not None and self.kept.is_complete
        news = Reached(self._feeds, run.relayed(run.relay.reached), keeps_replica=keeps)
        if news == self._reached:
            return None
        self._reached, self._reached_at = news, now
        return news

    @property
    def reached_due(self) -> float | None:
        """When to look whether all peers have more."""
        is_due = self._may_have_news and self.run is not None
        return self._reached_at + REACHED_SECONDS if is_due else None

    @property
    def slow_due(self) -> float | None:
        """When to look whether a peer takes too little."""
        return (
            None if self.run is None else self.run.relay.conflation.due(self._config.slow_seconds)
        )
