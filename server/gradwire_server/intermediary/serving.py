"""`Serving`: the peers of a relay, and what it does for them while it stands before a master.

It ends with the connection to the parent. With the next one another one begins, which knows nothing
of it: its peers have dialled the master meanwhile.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gradwire_codecs import Update
from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
    Priority,
)
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.kinds import (
    CONTROL_STREAM,
    SNAPSHOT_STREAM,
    STATE_STREAM,
    WORKERS_MAX,
    EndCode,
    Kind,
)
from gradwire_protocol.messages.link import Link, Message, UpdateReceived
from gradwire_protocol.messages.masters.relaying import (
    CARRIED_BYTES_MAX,
    Arrived,
    Aside,
    Carried,
    Ended,
    Feed,
    KeyHolder,
    Opened,
    Taken,
)
from gradwire_server.branches.branch import RelayedConnection, relayed
from gradwire_server.config import MasterConfig
from gradwire_server.intermediary.batch import Batch, Entry
from gradwire_server.intermediary.children import Children
from gradwire_server.intermediary.kept_replica import KeptReplica
from gradwire_server.intermediary.peers import Peer, Peers
from gradwire_server.intermediary.results import Results
from gradwire_server.master.intake import Intake
from gradwire_server.metrics import Departure, RunMetrics
from gradwire_server.state.roster import Member, Roster
from gradwire_server.state.run import Run
from gradwire_server.updates.decoding import Decoder

logger = logging.getLogger("gradwire.relay")

PRIORITIES: Final = {
    SNAPSHOT_STREAM: Priority.SNAPSHOT,
    STATE_STREAM: Priority.SNAPSHOT,
    CONTROL_STREAM: Priority.CONTROL,
}
"""Of carried messages, by stream; that of all others is an update's."""


@dataclass(slots=True)
class Counts:
    """Counts of a relay, over all of its connections to parents."""

    sums: int = 0
    """How many sums parents were sent."""
    updates_merged: int = 0
    """How many updates were in them."""
    carried: int = 0
    """How many messages were carried, both ways."""


class Serving:
    """Serves peers.

    Parameters
    ----------
    up : Link
        To the parent, which has answered.
    kept : KeptReplica, optional
        The replica, if one is kept.
    """

    def __init__(
        self,
        config: MasterConfig,
        metrics: RunMetrics,
        decoder: Decoder,
        up: Link,
        kept: KeptReplica | None,
        counts: Counts,
        now: float,
    ) -> None:
        self.now = now
        """The time, which the owner sets before it calls."""
        self.peers = Peers()
        self._config = config
        self._metrics = metrics
        self._decoder = decoder
        self._up = up
        self._kept = kept
        self._counts = counts
        self._has_ended = False
        """Whether the parent is gone: nothing is said to it any more."""
        self._charges: dict[tuple[int, int], tuple[Connection, int]] = {}
        """By stream and number of what is carried to the parent: whose credit it holds."""
        self._results = Results(config, kept)
        self._children = Children(
            self.peers,
            self._results,
            decoder,
            report=self.handle_event,
            say=self._say,
            fail=lambda child, reason: self._end(child, CloseCode.INVALID_MESSAGE, reason),
        )
        self._batch: Batch | None = None
        """What is to be merged; None where the run's mode has nothing of that."""
        self._intake = Intake(
            config, metrics, decoder, self._results.roster, self, self, lambda member: None
        )

    @property
    def roster(self) -> Roster:
        """The peers that take part."""
        return self._results.roster

    def end(self, reason: str, code: EndCode) -> list[Link]:
        """Close the connections of all peers; return those that the parent had not answered.

        These are not closed.
        """
        self._has_ended = True
        self._decoder.drain()
        left: list[Link] = []
        for peer in self.peers:
            connection = peer.link.connection
            if relayed(connection) is not None:
                continue  # its relay closes it
            if peer.was_answered:
                connection.close(code, reason, self.now)
            else:
                left.append(peer.link)
        self.peers.clear()
        if self._kept is not None:
            self._kept.clear()
        return left

    def handle_timer(self) -> None:
        """Act on every deadline until now."""
        self._intake.handle_timer(self.now)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` and `conclude` have to be called at the latest."""
        results, batch = self._results, self._batch
        return earliest(
            (
                self._intake.next_timer(),
                results.slow_due,
                results.reached_due,
                None if batch is None else batch.due,
            )
        )

    # What the parent says.

    def receive(self, message: Message) -> None:
        """Act on a message of the parent.

        Raises `InvalidMessageError` if it is none for a relay.
        """
        match message:
            case UpdateReceived():
                self._results.receive(message, self._up.connection, self.now)
            case Carried():
                self._pass_down(message)
            case Ended():
                peer = self.peers.at(message.peer)
                if peer is not None:
                    peer.link.connection.close(message.code, message.reason, self.now)
                    self._up.send(message)  # the parent forgets the peer then
                    self._forget(peer)
            case Feed():
                self._feed(message)
            case Taken():
                self._receive_taken(message)
            case Aside():
                self._release(message)
            case _:
                raise InvalidMessageError(f"{type(message).__name__} for a relay")

    def on_delivered(self, stream: int, number: int) -> None:
        """Note that the parent has a message: the peer that sent it has its credit back."""
        connection, charge = self._charges.pop((stream, number), (None, 0))
        if connection is not None:
            connection.release(charge)

    def _receive_taken(self, taken: Taken) -> None:
        if self._batch is None:
            return  # it is of a run before this one
        self._batch.receive(taken)

    def _on_gap(self, number: int) -> None:
        peer = self.peers.at(number)
        if peer is not None:
            self._end(peer, EndCode.STEPPED_DOWN, "the master lacks updates that were merged")

    def _release(self, aside: Aside) -> None:
        """End the quarantine of a peer, by order of an operator."""
        peer = self.peers.at(aside.peer)
        if peer is None:
            return
        nested = relayed(peer.link.connection)
        if nested is not None:
            nested.branch.link.send(Aside(nested.number))
        elif peer.member is not None and peer.member.quarantine is not None:
            run = self._results.run
            assert run is not None
            self._decoder.drain(peer.member.rank)
            self._intake.release(run, peer.member, self.now)
            peer.is_aside = False

    def _pass_down(self, carried: Carried) -> None:
        """Send a peer what is carried to it."""
        peer = self.peers.at(carried.peer)
        if peer is None:
            return  # its connection was lost meanwhile
        peer.was_answered = True
        run, feeds = self._results.run, self._results.feeds_any
        if self._kept is not None and self._kept.take(run, peer, carried, feeds=feeds):
            return  # it is filled in when all is here that it takes
        self._counts.carried += 1
        peer.carried.add((carried.stream, carried.number))
        if carried.kind == Kind.RELAYING and relayed(peer.link.connection) is None:
            self._children.admit(peer, carried)
            return
        priority = PRIORITIES.get(carried.stream, Priority.UPDATE)
        peer.link.connection.send(
            carried.stream, carried.number, carried.kind, carried.payload, priority
        )

    def _fill(self, peer: Peer) -> None:
        """Send a peer the blocks of our own replica that are due."""
        if self._kept is None or self._results.run is None:
            return
        if not self._kept.fill(self._results.run, peer):
            self._end(peer, EndCode.STEPPED_DOWN, "this relay has no replica any more")

    def _feed(self, feed: Feed) -> None:
        """Send a peer all results after some versions, from now on."""
        results = self._results
        if feed.begins:
            self._children.restart()
            self._begin_batch(feed)
            results.begin(feed, self._up.connection, self.now)
        run, peer = results.note_feed(feed), self.peers.at(feed.peer)
        if peer is None:
            return  # its connection was lost meanwhile
        older = results.roster.at(feed.rank)
        if older is not None:  # its end is on the way
            self._drop_member(older)
        nested = relayed(peer.link.connection)
        self._give_rank(feed, peer, nested)
        peer.floor = dict(feed.versions)
        if nested is not None:
            has_all = self._children.feed(run, nested, feed, self.now)
        else:
            member = results.add(run, peer, feed)
            has_all = results.feed(run, member, feed.versions, self.now)
        if not has_all:
            self._end(peer, EndCode.STEPPED_DOWN, "too much has come since it was let in")
            return
        if self._kept is not None:
            self._kept.note_fed(run, peer)
        early, peer.early = peer.early, []
        for event in early:
            if peer.member is not None and peer.link.connection in self.peers:
                self._take_update(peer, peer.member, event)

    def _give_rank(self, feed: Feed, peer: Peer, nested: RelayedConnection | None) -> None:
        if self._batch is None:
            return
        if nested is None:
            self._batch.give_rank(feed.rank, peer.number, feed.sequence)
        else:
            behind = nested.branch, nested.number
            self._batch.give_rank(feed.rank, peer.number, feed.sequence, behind)

    def _begin_batch(self, feed: Feed) -> None:
        if not feed.mode.merged:
            if self._batch is not None:
                self._batch.end()
            self._batch = None
            return
        self._batch = self._batch or Batch(self._config.merge_seconds, self._on_gap)
        self._batch.restart(feed.elements)

    # Peers.

    def handle_event(self, connection: Connection, event: Event) -> None:
        """Act on an event of a connection, of a peer or a new one."""
        peer = self.peers.of(connection)
        if peer is not None:
            self._from_peer(peer, event)
        elif isinstance(event, Connected):
            peer = self.peers.add(connection)
            holder = KeyHolder.of(connection.identity)
            self._up.send(Opened(peer.number, holder, self._via(connection)))
        elif isinstance(event, MessageReceived):  # its connection was closed meanwhile
            connection.release(event.charge)

    def _via(self, connection: Connection) -> int | None:
        """Return the number of the relay that a peer has connected to, if that is not this one."""
        nested = relayed(connection)
        if nested is None:
            return None
        place = nested.branch.link.connection if nested.via is None else nested.via.connection
        peer = self.peers.of(place)
        return None if peer is None else peer.number

    def _from_peer(self, peer: Peer, event: Event) -> None:
        match event:
            case MessageReceived():
                self._receive_from(peer, event)
            case MessageDelivered(stream, number):
                self._delivered(peer, stream, number)
            case Disconnected(code, reason, by_peer):
                self._intake_lost(peer)
                if peer.link.connection in self.peers:  # else one of its updates was no good
                    self._say(Ended(peer.number, code, reason, by_peer))
                    self._forget(peer)

    def _receive_from(self, peer: Peer, event: MessageReceived) -> None:
        if peer.relay is not None:
            try:
                self._children.receive(peer, event, self._batch)
            except InvalidMessageError as error:
                self._end_invalid(peer, error)
        elif relayed(peer.link.connection) is not None:
            self._carry(peer, event, event.charge)
        elif event.kind == Kind.RELAYING:
            try:
                charge = self._children.receive_request(peer, event)
            except InvalidMessageError as error:
                self._end_invalid(peer, error)
            else:
                self._carry(peer, event, charge)
        else:
            self._receive_from_worker(peer, event)

    def _receive_from_worker(self, peer: Peer, event: MessageReceived) -> None:
        if event.kind == Kind.UPDATE and event.stream < WORKERS_MAX:
            if peer.member is None:
                peer.early.append(event)
                return
            if self._batch is not None:
                self._take_update(peer, peer.member, event)
                return
        self._carry(peer, event, event.charge)

    def _carry(self, peer: Peer, event: MessageReceived, charge: int) -> None:
        """Send a message of a peer to the parent, which holds the peer's credit until then."""
        payload = bytes(event.payload)
        if len(payload) > CARRIED_BYTES_MAX:
            reason = f"a message of {len(payload)} bytes; a relay carries {CARRIED_BYTES_MAX}"
            self._end(peer, CloseCode.INVALID_MESSAGE, reason)
            return
        if event.kind == Kind.JOIN and event.stream == CONTROL_STREAM:
            with suppress(InvalidMessageError):  # else the parent says so
                peer.join = Join.parse(payload)
        name = self._up.send_carried(
            Carried(peer.number, event.stream, event.number, event.kind, payload)
        )
        self._charges[name] = peer.link.connection, charge
        self._counts.carried += 1

    def _take_update(self, peer: Peer, member: Member, event: MessageReceived) -> None:
        """Take an update of a peer that is to be merged."""
        run = self._results.run
        assert run is not None
        if self._batch is None:
            self._carry(peer, event, event.charge)
            return
        try:
            for received in peer.link.receive(event):
                assert isinstance(received, UpdateReceived)
                self._intake.accept_update(run, member, received, self.now)
        except InvalidMessageError as error:
            self._end_invalid(peer, error)

    def _end_invalid(self, peer: Peer, error: InvalidMessageError) -> None:
        self._metrics.messages_invalid.inc()
        self._end(peer, CloseCode.INVALID_MESSAGE, str(error))

    def _tell_if_aside(self, peer: Peer, member: Member) -> None:
        """Tell the parent, once, that updates of a peer are kept aside."""
        if member.quarantine is not None and not peer.is_aside:
            peer.is_aside = True
            self._say(Aside(peer.number))

    def _delivered(self, peer: Peer, stream: int, number: int) -> None:
        if (stream, number) in peer.carried:
            peer.carried.remove((stream, number))
            self._say(Arrived(peer.number, stream, number))
        elif peer.relay is not None:
            self._children.on_delivered(peer.relay, stream, number, self.now)
        elif peer.member is not None:
            self._results.on_delivered(peer.member, stream, number, self.now)

    def _end(self, peer: Peer, code: int, reason: str) -> None:
        """Close the connection of a peer, and tell the parent."""
        logger.warning("closed the connection of peer %d: %s", peer.number, reason)
        peer.link.connection.close(code, reason, self.now)
        self._say(Ended(peer.number, code, reason, by_peer=False))
        self._forget(peer)

    def _intake_lost(self, peer: Peer) -> None:
        """Take the updates of a lost peer that wait: they were acknowledged."""
        if peer.member is not None:
            self._intake.flush(peer.member)
            self._decoder.drain(peer.member.rank)

    def _forget(self, peer: Peer) -> None:
        self.peers.remove(peer)
        if self._kept is not None:
            self._kept.forget(peer)
        if peer.relay is not None:
            self._children.lose(peer.relay)
        nested = relayed(peer.link.connection)
        if nested is not None:
            self._children.drop(nested)
        if peer.member is not None and self.roster.of(peer.link.connection) is peer.member:
            self._drop_member(peer.member)

    def _drop_member(self, member: Member) -> None:
        self._results.remove(member)
        self._intake.forget(member)

    def _say(self, message: Ended | Arrived | Aside) -> None:
        if not self._has_ended:
            self._up.send(message)

    # What `Intake` asks for.

    def take(self, run: Run, member: Member, received: UpdateReceived, update: Update) -> None:
        """Take an update that was looked at into the next sum."""
        assert run.rounds is not None
        assert self._batch is not None
        peer = self.peers.of(member.link.connection)
        assert peer is not None
        run.rounds.accepted[member.rank] = received.update.sequence
        self._batch.add(Entry.of(peer.number, member.rank, received.update, update))

    def expel(self, connection: Connection, code: int, reason: str, departure: Departure) -> None:
        """Close the connection of a peer."""
        del departure  # it is the parent that counts those
        peer = self.peers.of(connection)
        if peer is not None:
            self._end(peer, code, reason)

    def check_completion(self, member: Member) -> None:
        """Do nothing: the parent lets members leave and finish."""

    # Consequences.

    def conclude(self) -> None:
        """Do what is due after every event."""
        for peer in self.peers:
            if peer.member is not None:
                self._tell_if_aside(peer, peer.member)
            self._fill(peer)
        for member, reason in list(self._results.too_slow(self.now)):
            self.expel(member.link.connection, EndCode.TOO_SLOW, reason, Departure.TOO_SLOW)
        if self._batch is not None:
            for merged in self._batch.next_sum(self.now):
                self._up.send_merged(merged)
                self._counts.sums += merged.is_last
                self._counts.updates_merged += merged.is_last * merged.updates
        reached = self._results.take_reached(self.now)
        if reached is not None:
            self._up.send(reached)
