"""Connections of another process, as `Master` and its metrics see them.

`RemoteConnection` has the interface of `Connection` for its application, with the same guarantees:
calls on a connection that is over have no effect, no event follows `Disconnected`, and
`bytes_queued` counts a message from the call that queues it until it is reported as delivered.
`RemoteShard` turns calls into commands and reports into events; it does no I/O.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from gradwire_protocol import (
    Address,
    AddressChanged,
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    MessageDelivered,
    MessageReceived,
    Priority,
    ShapedMessage,
    State,
)
from gradwire_protocol.crypto.keys import Identity
from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_server.shards.arena import Arena
from gradwire_server.shards.figures import ConnectionFigures, Figures, parse_figures
from gradwire_server.shards.keys import PlainIdentity, parse_identity
from gradwire_server.shards.parcels import Inbox, Outbox, Parcel
from gradwire_server.shards.records import Command, Place, Poster, Record, Report


class RemoteConnection:
    """A connection of a shard, which has assigned its number."""

    def __init__(
        self, shard: "RemoteShard", number: int, address: Address, identity: Identity | None
    ) -> None:
        self.state = State.OPEN
        self.address = address
        self.identity = identity
        self.bytes_queued = 0
        """Payload bytes of the messages that were not reported as delivered."""
        self.figures = ConnectionFigures()
        """The last ones that the shard has sent."""
        self.number = number
        self._shard = shard
        self._queued: dict[tuple[int, int], int] = {}

    def send(
        self, stream: int, number: int, kind: int, payload: Payload, priority: Priority
    ) -> None:
        """Queue a message; see `Connection.send`."""
        size = memoryview(payload).nbytes
        assert 1 <= size <= MESSAGE_BYTES_MAX
        if self.state is State.OPEN:
            self._queue(stream, number, size)
            self._shard.send(self, stream, number, kind, payload, priority)

    def relay(self, message: ShapedMessage, priority: Priority) -> None:
        """Queue a message that goes to other connections, too."""
        if self.state is State.OPEN:
            self._queue(message.stream, message.number, message.total)
            self._shard.relay(self, message, priority)

    def release(self, charge: int) -> None:
        """Give back the charge of a `MessageReceived`."""
        if self.state is State.OPEN:
            self._shard.release(self, charge)

    def close(self, code: int, reason: str, now: float) -> None:
        """Close the connection with a reason. Messages that were not delivered are dropped."""
        del now  # the shard has its own clock
        if self.state is State.OPEN:
            self.end(State.CLOSING)
            self._shard.post(Command.CLOSE, self.number, code, reason)

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time in seconds; None before the first sample."""
        return self.figures.rtt

    @property
    def bytes_held(self) -> int:
        """Message bytes that are being received, or were not released."""
        return self.figures.bytes_held

    def on_delivered(self, stream: int, number: int) -> None:
        """Note that a message was delivered."""
        self.bytes_queued -= self._queued.pop((stream, number))

    def end(self, state: State) -> None:
        """Enter a state in which nothing is sent any more."""
        self.state = state
        self.bytes_queued = 0
        self._queued.clear()
        self.figures = ConnectionFigures(rtt=self.figures.rtt)

    def _queue(self, stream: int, number: int, size: int) -> None:
        self._queued[stream, number] = size
        self.bytes_queued += size


class Parcels:
    """Parcels of process 0 for shards: a message for several shards is stored once."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._last: Parcel | None = None

    def of(self, message: ShapedMessage) -> Parcel:
        """Return the parcel of a message: that of the last call, if it is the same message.

        That is enough, because a master relays a message to one worker after the other.
        """
        if self._last is None or self._last.content is not message:
            self.release()
            self._last = Parcel(self.arena, message)
        return self._last

    def release(self) -> None:
        """Let go of the last parcel."""
        if self._last is not None:
            self._last.release()
            self._last = None


class RemoteShard:
    """A shard and its connections.

    Parameters
    ----------
    parcels : Parcels
        Shared by all shards.
    report : callable
        Called with a connection and an event, as `Application.handle_event` without the time.
    refusal : callable
        Returns why a new connection cannot stay; None if it can.
    """

    def __init__(
        self,
        parcels: Parcels,
        arena: Arena,
        channel: Poster,
        report: Callable[[Connection, Event], None],
        refusal: Callable[[], str | None],
    ) -> None:
        self.figures = Figures()
        """The last ones that the shard has sent."""
        self.ready = False
        self.quiet = False
        self.answered = 0
        """Number of FIGURES received."""
        self.log: Callable[[int, str, str], None] = lambda level, logger, line: None
        """Called with level, logger and text of the shard's log records."""
        self._parcels = parcels
        self._channel = channel
        self._report = report
        self._refusal = refusal
        self._inbox = Inbox(arena)
        self._outbox = Outbox()
        self._connections: dict[int, RemoteConnection] = {}
        self._released: dict[int, int] = {}
        self._relayed: tuple[Parcel, ShapedMessage, Priority, list[int]] | None = None
        self._handlers: Final[dict[int, Callable[..., None]]] = {
            Report.READY: self._on_ready,
            Report.CONNECTED: self._on_connected,
            Report.RECEIVED: self._on_received,
            Report.DELIVERED: self._on_delivered,
            Report.MOVED: self._on_moved,
            Report.DISCONNECTED: self._on_disconnected,
            Report.GONE: self._on_gone,
            Report.FIGURES: self._on_figures,
            Report.QUIET: self._on_quiet,
            Report.LOG: self._on_log,
            Report.TAKEN: self._outbox.on_taken,
        }

    def __len__(self) -> int:
        """Return the number of connections, also those that are being closed."""
        return len(self._connections)

    # Commands.

    def post(self, *record: object) -> None:
        """Post a command to the shard."""
        self._post_relayed()
        self._channel.post(*record)

    def send(
        self,
        connection: RemoteConnection,
        stream: int,
        number: int,
        kind: int,
        payload: Payload,
        priority: Priority,
    ) -> None:
        """Have a connection send a message."""
        parcel = Parcel(self._parcels.arena, payload)
        place = self._outbox.add_parcel(parcel)
        parcel.release()
        self.post(Command.SEND, connection.number, place, stream, number, kind, int(priority))

    def relay(
        self, connection: RemoteConnection, message: ShapedMessage, priority: Priority
    ) -> None:
        """Have a connection send a message that goes to other connections, too."""
        parcel = self._parcels.of(message)
        relayed = self._relayed
        if relayed is not None and relayed[0] is parcel and relayed[2] is priority:
            relayed[3].append(connection.number)
            return
        self._post_relayed()
        parcel.retain()
        self._relayed = parcel, message, priority, [connection.number]

    def release(self, connection: RemoteConnection, charge: int) -> None:
        """Give back credit of a connection."""
        self._released[connection.number] = self._released.get(connection.number, 0) + charge

    def flush(self) -> None:
        """Send all posted commands."""
        self._post_relayed()
        if self._released:
            self._channel.post(Command.RELEASE, list(self._released.items()))
            self._released.clear()
        if self._inbox.taken:
            self._channel.post(Command.TAKEN, self._inbox.taken)
            self._inbox.taken = 0
        self._channel.flush()

    # Reports.

    def handle(self, records: Sequence[Record]) -> None:
        """Act on reports of the shard."""
        for record in records:
            self._handlers[record[0]](*record[1:])

    def lose(self, reason: str) -> None:
        """Note that the shard has ended: all its connections are lost."""
        lost = list(self._connections.values())
        self._connections.clear()
        was_open = [connection for connection in lost if connection.state is State.OPEN]
        for connection in lost:
            connection.end(State.CLOSED)
        if self._relayed is not None:
            self._relayed[0].release()
            self._relayed = None
        self._outbox.clear()
        for connection in was_open:
            self._tell(connection, Disconnected(CloseCode.LOST, reason, by_peer=False))

    # Private.

    def _post_relayed(self) -> None:
        if self._relayed is None:
            return
        parcel, message, priority, numbers = self._relayed
        self._relayed = None
        self._channel.post(
            Command.RELAY, numbers, self._outbox.add_parcel(parcel), message.stream, message.number,
            message.kind, int(priority), message.fragment_bytes,
        )  # fmt: skip
        parcel.release()

    def _tell(self, connection: RemoteConnection, event: Event) -> None:
        # The one place where a RemoteConnection is passed as a Connection.
        self._report(cast(Connection, connection), event)

    def _on_ready(self) -> None:
        self.ready = True

    def _on_connected(self, number: int, address: Address, identity: PlainIdentity) -> None:
        connection = self._connections[number] = RemoteConnection(
            self, number, address, parse_identity(identity)
        )
        refusal = self._refusal()
        if refusal is None:
            self._tell(connection, Connected())
        else:
            connection.close(CloseCode.FULL, refusal, 0.0)

    def _on_received(
        self,
        number: int,
        place: Place,
        stream: int,
        message_number: int,
        kind: int,
        fragment_bytes: int,
        charge: int,
    ) -> None:
        payload = self._inbox.payload_at(place)
        connection = self._connections[number]
        if connection.state is State.OPEN:
            message = ShapedMessage.of(stream, message_number, kind, payload, fragment_bytes)
            self._tell(connection, MessageReceived(message, charge))

    def _on_delivered(self, number: int, stream: int, message_number: int) -> None:
        connection = self._connections[number]
        if connection.state is State.OPEN:
            connection.on_delivered(stream, message_number)
            self._tell(connection, MessageDelivered(stream, message_number))

    def _on_moved(self, number: int, address: Address) -> None:
        connection = self._connections[number]
        connection.address = address
        if connection.state is State.OPEN:
            self._tell(connection, AddressChanged(address))

    def _on_disconnected(self, number: int, code: int, reason: str, by_peer: bool) -> None:
        connection = self._connections.pop(number)
        was_open = connection.state is State.OPEN
        connection.end(State.CLOSED)
        if was_open:
            self._tell(connection, Disconnected(code, reason, by_peer))

    def _on_gone(self, number: int) -> None:
        self._connections.pop(number).end(State.CLOSED)

    def _on_figures(self, plain: tuple[Any, ...]) -> None:
        self.figures, connections = parse_figures(plain)
        self.answered += 1
        for number, figures in connections.items():
            if number in self._connections:
                self._connections[number].figures = figures

    def _on_quiet(self) -> None:
        self.quiet = True

    def _on_log(self, level: int, logger: str, line: str) -> None:
        self.log(level, logger, line)
