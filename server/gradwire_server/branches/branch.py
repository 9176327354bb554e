"""`Branch`: a relay that stands before this master, and the connections of the peers behind it.

Behind it are also those of relays that are its peers. Their messages come through it, and for the
master they are other `Branch`es, to which workers can be sent: their peers are among this one's. A
relay has a `Branch` for each relay that stands before itself.

`RelayedConnection` has the interface of `Connection` for its application, with the same guarantees:
calls on a connection that is over have no effect, no event follows `Disconnected`, and
`bytes_queued` counts a message from the call that queues it until it is reported as delivered. So
for a master, a peer behind a relay is one like all others. No I/O is done here.
"""

from collections.abc import Callable, Iterator
from typing import Final, cast

from gradwire_protocol import (
    Address,
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
    Priority,
    ShapedMessage,
    State,
)
from gradwire_protocol.crypto.keys import Identity
from gradwire_protocol.delivery.shaped_message import Payload, fragment_bytes_of
from gradwire_protocol.limits import DATAGRAM_BYTES
from gradwire_protocol.messages.fields import REASON_CHARACTERS_MAX
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.masters.relaying import (
    Arrived,
    Carried,
    Ended,
    Opened,
    Relaying,
)

FRAGMENT_BYTES: Final = fragment_bytes_of(DATAGRAM_BYTES)


class RelayedConnection:
    """A connection of a peer to a relay, which has numbered it.

    Parameters
    ----------
    branch : Branch
        The relay that its messages come through.
    via : RelayedConnection, optional
        The relay behind `branch` that it has connected to; None if that is `branch`.
    """

    def __init__(
        self,
        branch: "Branch",
        number: int,
        identity: Identity | None,
        via: "RelayedConnection | None",
    ) -> None:
        self.state = State.OPEN
        self.branch = branch
        self.number = number
        self.identity = identity
        self.via = via
        relay = None if via is None else via.own_branch
        self.place = branch if relay is None else relay
        """The relay that it has connected to, as far as that is known here."""
        self.own_branch: Branch | None = None
        """That of the peer, if it is a relay that stands before this master."""
        self.bytes_queued = 0
        """Payload bytes of the messages that were not reported as delivered."""
        self.bytes_held = 0
        """None: the relay holds what comes from its peer."""
        self._queued: dict[tuple[int, int], int] = {}

    @property
    def address(self) -> Address:
        """That of the relay that it has connected to, and its number at `branch`."""
        return f"{self.place.address}#{self.number}"

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time of the relay in seconds; None before the first sample."""
        return self.branch.link.connection.rtt

    @property
    def heard_at(self) -> float | None:
        """When a packet of the relay came last: that of its peer, only the relay knows."""
        return self.branch.link.connection.heard_at

    @property
    def unanswered_since(self) -> float | None:
        """When the oldest packet was sent that the relay has not acknowledged; None without one."""
        return self.branch.link.connection.unanswered_since

    def send(
        self, stream: int, number: int, kind: int, payload: Payload, priority: Priority
    ) -> None:
        """Queue a message; see `Connection.send`."""
        del priority  # the relay's peer has it by its kind
        if self.state is State.OPEN:
            body = bytes(payload)
            self._queued[stream, number] = len(body)
            self.bytes_queued += len(body)
            self.branch.link.send_carried(Carried(self.number, stream, number, kind, body))

    def relay(self, message: ShapedMessage, priority: Priority) -> None:
        """Queue a message that goes to other connections, too."""
        payload = message.payload
        self.send(message.stream, message.number, message.kind, payload, priority)

    @property
    def connection(self) -> Connection:
        """Itself, as what it has the interface of."""
        return cast(Connection, self)

    def release(self, charge: int) -> None:
        """Return credit to the relay that its messages come through."""
        if charge:
            self.branch.link.connection.release(charge)

    def close(self, code: int, reason: str, now: float) -> None:
        """Close the connection with a reason. Messages that were not delivered are dropped."""
        del now  # the relay has its own clock
        if self.state is State.OPEN:
            self.end(State.CLOSING)
            self.branch.link.send(
                Ended(self.number, code, reason[:REASON_CHARACTERS_MAX], by_peer=False)
            )

    def on_delivered(self, stream: int, number: int) -> bool:
        """Note that a message was delivered; return whether it was under way."""
        size = self._queued.pop((stream, number), None)
        self.bytes_queued -= size or 0
        return size is not None

    def end(self, state: State) -> None:
        """Enter a state in which nothing is sent any more."""
        self.state = state
        self.bytes_queued = 0
        self._queued.clear()


class Branch:
    """A relay, and the connections of its peers.

    Parameters
    ----------
    link : Link
        To the relay.
    number : int
        One more for each relay.
    report : callable
        Called with a connection and an event, as `Application.handle_event` without the time.
    """

    def __init__(
        self,
        link: Link,
        relaying: Relaying,
        number: int,
        report: Callable[[Connection, Event], None],
    ) -> None:
        self.link = link
        self.number = number
        self.address = relaying.address
        """Where workers reach the relay."""
        before = relayed(link.connection)
        if before is not None:
            before.own_branch = self
        self.master: str = relaying.master if before is None else before.branch.master
        """Where the relay, or the first of those before it, has reached this master."""
        self.connected = 0
        """How many peers are connected to it, relays among them, without those behind these."""
        self.feeds = 0
        """How many of its peers it was told to feed, one after the other."""
        self.reached: dict[int, int] = {}
        """By rank: up to which update all its peers have what they are fed."""
        self.keeps_replica = False
        """Whether it fills in the blocks of a snapshot."""
        self.is_lost = False
        self.expected = 0
        """How many workers were sent there, and have not come yet."""
        self.failure: str | None = None
        """What is wrong with it, once something is."""
        self._report = report
        self._peers: dict[int, RelayedConnection] = {}

    def __len__(self) -> int:
        """Return the number of connections, with those behind its peers."""
        return len(self._peers)

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over the connections."""
        return iter([peer.connection for peer in self._peers.values()])

    def peer(self, number: int) -> Connection:
        """Return the connection of a peer; raise `InvalidMessageError` if there is none."""
        if number not in self._peers:
            raise InvalidMessageError(f"peer {number}: there is none")
        return self._peers[number].connection

    def receive(self, message: Opened | Carried | Arrived | Ended, charge: int = 0) -> None:
        """Act on what the relay says of its peers.

        Whatever is done with a carried message releases its `charge`. Raises `InvalidMessageError`
        if there is no such peer.
        """
        if isinstance(message, Opened):
            self._open(message)
            return
        peer = self._peers.get(message.peer)
        if peer is None:
            raise InvalidMessageError(f"{type(message).__name__} of peer {message.peer}: none")
        if isinstance(message, Ended):
            del self._peers[message.peer]
            peer.place.connected -= 1
        if peer.state is not State.OPEN:
            peer.release(charge)
            return
        match message:
            case Carried(_, stream, number, kind, payload):
                shaped = ShapedMessage.of(stream, number, kind, payload, FRAGMENT_BYTES)
                self._tell(peer, MessageReceived(shaped, charge))
            case Arrived(_, stream, number):
                if not peer.on_delivered(stream, number):
                    raise InvalidMessageError(f"Arrived: {number} of stream {stream} was not sent")
                self._tell(peer, MessageDelivered(stream, number))
            case Ended(_, code, reason, by_peer):
                peer.end(State.CLOSED)
                self._tell(peer, Disconnected(code, reason, by_peer))

    def lose(self, reason: str) -> None:
        """Note that the relay is gone: all connections of its peers are lost."""
        self.is_lost = True
        lost, self._peers = list(self._peers.values()), {}
        for peer in lost:
            peer.place.connected -= 1
            if peer.state is State.OPEN:
                peer.end(State.CLOSED)
                self._tell(peer, Disconnected(CloseCode.LOST, reason, by_peer=False))

    def _open(self, opened: Opened) -> None:
        if opened.peer in self._peers:
            raise InvalidMessageError(f"Opened: peer {opened.peer} for a second time")
        via = None if opened.via is None else self._peers.get(opened.via)
        if opened.via is not None and via is None:
            raise InvalidMessageError(f"Opened: via peer {opened.via}: there is none")
        identity = None if opened.holder is None else opened.holder.identity
        peer = self._peers[opened.peer] = RelayedConnection(self, opened.peer, identity, via)
        peer.place.connected += 1
        peer.place.expected = max(peer.place.expected - 1, 0)
        self._tell(peer, Connected())

    def _tell(self, peer: RelayedConnection, event: Event) -> None:
        self._report(peer.connection, event)


def relayed(connection: Connection) -> RelayedConnection | None:
    """Return a connection as one to a relay, if it is one."""
    found: object = connection
    return found if isinstance(found, RelayedConnection) else None
