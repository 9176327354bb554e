"""`Children`: the relays that stand before this one.

A relay connects as any peer, and asks to stand before the master. This relay carries that, and when
the master has let it, is its parent: what the relay's peers say comes as if they were connected
here, with numbers of this relay, and its sums become part of the sums of this one. It is sent each
result once.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_protocol import Connection, Event, InvalidMessageError, MessageReceived
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.kinds import CONTROL_STREAM, RANK_END
from gradwire_protocol.messages.link import Message
from gradwire_protocol.messages.masters.relaying import (
    Arrived,
    Aside,
    Carried,
    Ended,
    Feed,
    Merged,
    Opened,
    Reached,
    Relaying,
    Taken,
)
from gradwire_server.branches.arriving_sums import ArrivingSums
from gradwire_server.branches.branch import Branch, RelayedConnection
from gradwire_server.intermediary.batch import Batch, Entry
from gradwire_server.intermediary.peers import Peer, Peers
from gradwire_server.intermediary.results import Results
from gradwire_server.master.branches import Feeds
from gradwire_server.state.run import Run
from gradwire_server.updates.decoding import Decoder


class Children:
    """Relays before this one, in one run.

    Parameters
    ----------
    report : callable
        Called with the connection of a peer of one, and an event.
    say : callable
        Sends a message to the parent.
    fail : callable
        Called with a child that has merged what does not fit, and with the reason.
    """

    def __init__(
        self,
        peers: Peers,
        results: Results,
        decoder: Decoder,
        *,
        report: Callable[[Connection, Event], None],
        say: Callable[[Aside], None],
        fail: Callable[[Peer, str], None],
    ) -> None:
        self._peers = peers
        self._results = results
        self._report = report
        self._say = say
        self._fail = fail
        self._numbers = count(1)
        self._feeds = Feeds()
        self._sums = ArrivingSums(decoder)
        self._unanswered: set[Branch] = set()
        """Those of which a sum waits, or is under way."""
        self._sent: dict[Branch, dict[int, int]] = {}
        """The results that were sent to a child which was not fed for a while."""

    # How a peer becomes one.

    def receive_request(self, peer: Peer, event: MessageReceived) -> int:
        """Note that a peer asks to stand before the master; return the credit of its message.

        Raises `InvalidMessageError` if it is not the first thing that it says.
        """
        if event.number != 0:
            raise InvalidMessageError("Relaying is not the first message")
        [(asked, charge)] = peer.link.receive_held(event)
        assert isinstance(asked, Relaying)
        peer.asks = asked
        return charge

    def admit(self, peer: Peer, answer: Carried) -> None:
        """Let a peer be a relay, as the master has: pass on its answer.

        Raises `InvalidMessageError` if the peer has not asked.
        """
        if peer.asks is None or (answer.stream, answer.number) != (CONTROL_STREAM, 0):
            raise InvalidMessageError("Relaying for a peer that has not asked")
        peer.relay = Branch(peer.link, peer.asks, next(self._numbers), self._report)
        peer.asks = None
        peer.link.send(Relaying.parse(answer.payload))

    # What they say.

    def receive(self, child: Peer, event: MessageReceived, batch: Batch | None) -> None:
        """Act on what a child says.

        Raises `InvalidMessageError` if it must not.
        """
        connection = child.link.connection
        for message, charge in child.link.receive_held(event):
            if connection not in self._peers:
                return
            assert child.relay is not None
            if isinstance(message, Carried):
                child.relay.receive(message, charge)
            else:
                connection.release(charge)
                self._receive(child, child.relay, message, batch)

    def _receive(self, child: Peer, branch: Branch, message: Message, batch: Batch | None) -> None:
        match message:
            case Opened() | Arrived() | Ended():
                branch.receive(message)
            case Merged():
                self._receive_merged(child, branch, message, batch)
            case Reached():
                if self._feeds.receive_reached(branch, message):
                    self._results.note_news()
            case Aside():
                peer = self._peers.of(branch.peer(message.peer))
                if peer is not None:
                    self._say(Aside(peer.number))
            case _:
                raise InvalidMessageError(f"{type(message).__name__} from a relay")

    def _receive_merged(
        self, child: Peer, branch: Branch, merged: Merged, batch: Batch | None
    ) -> None:
        run = self._results.run
        parts = self._sums.take(branch, merged, None if run is None else run.layout.elements)
        if not parts:
            return
        merged = parts[-1]
        if branch in self._unanswered:
            raise InvalidMessageError(f"Merged {merged.number} before the answer to the last one")
        if merged.updates != sum(span.sequence - span.after for span in merged.spans):
            raise InvalidMessageError(f"Merged: {merged.updates} updates in other spans")
        self._unanswered.add(branch)

        def answer(done: bool, accepted: Mapping[int, int]) -> None:
            self._unanswered.discard(branch)
            branch.link.send(Taken(merged.number, done, accepted))

        if batch is None or run is None:
            answer(False, {})
            return

        def take(updates: Sequence[Update], error: MalformedUpdateError | None) -> None:
            if child.link.connection not in self._peers:
                return  # it was lost meanwhile
            if error is not None:
                self._fail(child, f"it has merged what does not fit the run: {error}")
            elif run is not self._results.run:
                answer(False, {})
            else:
                batch.add(
                    Entry(
                        merged.spans,
                        updates,
                        merged.updates,
                        merged.based_on,
                        merged.clocks,
                        branch,
                        answer,
                    )
                )

        self._sums.decode(branch, parts, run.layout.elements, take)

    # Results.

    def restart(self) -> None:
        """Send none of them results any more: the parent begins from other versions."""
        for branch, member in self._feeds.members.items():
            self._note_sent(branch)
            self._results.remove(member)
        self._feeds.clear(self._results.run)

    def _note_sent(self, branch: Branch) -> None:
        if self._results.run is not None:
            raise_to(self._sent.setdefault(branch, {}), self._results.run.relay.versions)

    def feed(self, run: Run, connection: RelayedConnection, feed: Feed, now: float) -> bool:
        """Have a child pass results to a peer; return whether all that it lacks is here.

        No result is sent twice over a connection: what a child had before it begins, it keeps.
        """
        branch = connection.branch
        begins = branch not in self._feeds.members
        floor = dict(feed.versions)
        raise_to(floor, self._sent.get(branch, {}))
        can_queue = not begins or run.relay.can_queue(floor, without=-1)
        if not can_queue or not run.relay.log.reaches_back_to(feed.versions, without=-1):
            return False
        if begins:
            member = self._feeds.begin(run, branch, feed)
            self._results.feed(run, member, floor, now)
        self._feeds.add(connection, feed, begins=begins)
        return True

    def on_delivered(self, branch: Branch, stream: int, number: int, now: float) -> None:
        """Note that a child has a result."""
        member = self._feeds.members.get(branch)
        if member is not None and stream < RANK_END:
            self._results.on_delivered(member, stream, number, now)

    # Losses.

    def drop(self, connection: RelayedConnection) -> None:
        """Forget a peer of a child."""
        branch = connection.branch
        member = self._feeds.members.get(branch)
        self._feeds.drop(self._results.run, connection)
        if member is not None and branch not in self._feeds.members:
            self._note_sent(branch)
            self._results.remove(member)

    def lose(self, branch: Branch) -> None:
        """Forget a child: the connections of its peers are lost."""
        self._sums.forget(branch)
        self._unanswered.discard(branch)
        branch.lose(f"the relay at {branch.address} is gone")
