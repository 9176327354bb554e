"""`LocalShard`: the shard's side of the exchange with process 0; it does no I/O.

It turns the events of connections into records, and commands into calls. It decides nothing, and
does not look into messages.
"""

from collections.abc import Callable, Sequence
from typing import Final

from gradwire_protocol import (
    AddressChanged,
    Connected,
    Connection,
    Disconnected,
    Endpoint,
    Event,
    MessageDelivered,
    MessageReceived,
    Priority,
    ShapedMessage,
)
from gradwire_server.shards.arena import Arena
from gradwire_server.shards.figures import Figures, pack_figures
from gradwire_server.shards.keys import pack_identity, parse_keyring
from gradwire_server.shards.parcels import Inbox, Outbox, Parcel
from gradwire_server.shards.records import Command, Place, Poster, Record, Report


class LocalShard:
    """Executes commands of process 0, and reports events to it."""

    def __init__(
        self,
        endpoint: Endpoint,
        figures: Figures,
        arena: Arena,
        arena_of_parent: Arena,
        channel: Poster,
    ) -> None:
        self.elsewhere = 0
        """Number of connections in other processes, which count towards the limit."""
        self.stopping = False
        """Whether process 0 has asked to be told when all connections are over."""
        self._endpoint = endpoint
        self._figures = figures
        self._arena = arena
        self._channel = channel
        self._outbox = Outbox()
        self._inbox = Inbox(arena_of_parent)
        self._numbers: dict[Connection, int] = {}
        self._connections: dict[int, Connection] = {}
        self._next_number = 0
        self._now = 0.0
        self._commands: Final[dict[int, Callable[..., None]]] = {
            Command.SEND: self._send,
            Command.RELAY: self._relay,
            Command.RELEASE: self._release,
            Command.CLOSE: self._close,
            Command.KEYS: self._set_keys,
            Command.LIMITS: self._limit,
            Command.ASK: self._answer,
            Command.STOP: self._stop,
            Command.TAKEN: self._outbox.on_taken,
        }

    def flush(self) -> None:
        """Send all posted records."""
        if self._inbox.taken:
            self._channel.post(Report.TAKEN, self._inbox.taken)
            self._inbox.taken = 0
        self._channel.flush()

    # Events of connections.

    def handle_event(self, connection: Connection, event: Event) -> None:
        """Report an event to process 0."""
        if isinstance(event, Connected):
            number = self._numbers[connection] = self._next_number
            self._next_number += 1
            self._connections[number] = connection
            identity = pack_identity(connection.identity)
            self._channel.post(Report.CONNECTED, number, connection.address, identity)
            return
        known = self._numbers.get(connection)
        if known is not None:
            self._tell(known, event)
        # Else process 0 has closed the connection, and hears nothing more about it.

    def _tell(self, number: int, event: Event) -> None:
        match event:
            case MessageReceived(message, charge):
                parcel = Parcel(self._arena, message)
                self._channel.post(
                    Report.RECEIVED, number, self._outbox.add_parcel(parcel), message.stream,
                    message.number, message.kind, message.fragment_bytes, charge,
                )  # fmt: skip
                parcel.release()
            case MessageDelivered(stream, message_number):
                self._channel.post(Report.DELIVERED, number, stream, message_number)
            case AddressChanged(address):
                self._channel.post(Report.MOVED, number, address)
            case Disconnected(code, reason, by_peer):
                self._forget(number)
                self._channel.post(Report.DISCONNECTED, number, code, reason, by_peer)

    # Commands of process 0.

    def handle(self, records: Sequence[Record], now: float) -> None:
        """Execute commands. The caller has the endpoint send next."""
        self._now = now
        for record in records:
            self._commands[record[0]](*record[1:])

    def _send(
        self, to: int, place: Place, stream: int, number: int, kind: int, priority: int
    ) -> None:
        payload = self._inbox.payload_at(place)
        connection = self._connections.get(to)
        if connection is not None:
            connection.send(stream, number, kind, payload, Priority(priority))

    def _relay(
        self,
        to: Sequence[int],
        place: Place,
        stream: int,
        number: int,
        kind: int,
        priority: int,
        fragment_bytes: int,
    ) -> None:
        payload = self._inbox.payload_at(place)
        # Copied once, into the rows that all connections send from.
        message = ShapedMessage.of(stream, number, kind, payload, fragment_bytes)
        for name in to:
            connection = self._connections.get(name)
            if connection is not None:
                connection.relay(message, Priority(priority))

    def _release(self, charges: Sequence[tuple[int, int]]) -> None:
        for number, charge in charges:
            connection = self._connections.get(number)
            if connection is not None:
                connection.release(charge)

    def _close(self, number: int, code: int, reason: str) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            self._forget(number)
            connection.close(code, reason, self._now)
            self._channel.post(Report.GONE, number)

    def _set_keys(self, run_keys: str, denied: Sequence[str]) -> None:
        self._endpoint.set_keyring(parse_keyring(run_keys, denied), self._now)

    def _limit(self, elsewhere: int, link_rate: float | None) -> None:
        self.elsewhere = elsewhere
        if link_rate is not None:
            self._endpoint.link.rate = link_rate

    def _answer(self) -> None:
        self._channel.post(Report.FIGURES, pack_figures(self._figures, self._connections))

    def _stop(self) -> None:
        self._endpoint.connections_max = 0
        self.stopping = True

    def _forget(self, number: int) -> None:
        del self._numbers[self._connections.pop(number)]
