"""`Pair`: two endpoints and a wire; and how tests read and write what is on it.

A `Pair` runs two production endpoints over a `SimulatedNetwork` and keeps every datagram that was
handed to the wire, while `Invariants` watches.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeAlias

from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Endpoint,
    Event,
    Keyring,
    MessageDelivered,
    MessageReceived,
    Priority,
    RunKey,
    Suite,
)
from gradwire_protocol.crypto.keys import SECRET_BYTES
from gradwire_protocol.delivery.shaped_message import fragment_bytes_of
from gradwire_protocol.limits import DATAGRAM_BYTES, PACKET_HEADER_BYTES, TAG_BYTES
from gradwire_protocol.wire.frames import (
    Data,
    Frame,
    pack_data,
    parse_frames,
)
from gradwire_protocol.wire.packets import (
    TRANSPORT,
    TRANSPORT_HEADER,
)
from support.endpoints import PLAIN
from support.invariants import Invariants
from support.network import Host, Link, SimulatedNetwork

INITIATOR: Final = "initiator"
RESPONDER: Final = "responder"
CLEAN: Final = Link()
"""A wire on which nothing bad happens, 10 ms long."""

UNIX_TIME: Final = 1_700_000_000.0
"""Of the moment at which virtual time begins."""

FRAGMENT_BYTES: Final = fragment_bytes_of(DATAGRAM_BYTES)
"""What a full fragment carries in datagrams of the usual size."""

Heard: TypeAlias = tuple[int, int, int, bytes]
"""A message that came in: stream, number, kind and payload."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A datagram handed to the wire."""

    at: float
    source: str
    target: str
    datagram: bytes

    @property
    def packet_type(self) -> int:
        """The first byte."""
        return self.datagram[0]

    @property
    def number(self) -> int:
        """The packet number; -1 for a packet of the handshake."""
        return packet_number(self.datagram) if self.packet_type == TRANSPORT else -1

    @property
    def frames(self) -> list[Frame]:
        """What is inside; nothing for a packet of the handshake."""
        return frames_of(self.datagram) if self.packet_type == TRANSPORT else []

    def has(self, kind: type[Frame]) -> bool:
        """Return whether a frame of this kind is inside."""
        return any(isinstance(frame, kind) for frame in self.frames)


def packet_number(datagram: bytes) -> int:
    """Return the packet number of a TRANSPORT packet."""
    number: int = TRANSPORT_HEADER.unpack_from(datagram)[4]
    return number


def frames_of(datagram: bytes) -> list[Frame]:
    """Return the frames of a TRANSPORT packet of suite 0, whoever it is for."""
    return parse_frames(memoryview(datagram)[PACKET_HEADER_BYTES:-TAG_BYTES])


def data_frame(
    payload: bytes,
    *,
    stream: int = 0,
    number: int = 0,
    kind: int = 1,
    index: int = 0,
    total: int | None = None,
    fragment_bytes: int = FRAGMENT_BYTES,
    shape: int = 0,
) -> bytes:
    """Return a DATA frame: the end of a message, unless `total` says otherwise."""
    whole = index * fragment_bytes + len(payload) if total is None else total
    view = memoryview(payload)
    return pack_data(Data(stream, number, kind, whole, fragment_bytes, index, view, shape))


def heard(event: Event) -> Heard:
    """Return what a message says."""
    assert isinstance(event, MessageReceived)
    return event.stream, event.number, event.kind, bytes(event.payload)


@dataclass(slots=True, eq=False)
class Side:
    """One end of a `Pair`: an endpoint, and an application that writes down what it hears."""

    network: SimulatedNetwork
    endpoint: Endpoint
    releases: bool = True
    """Whether messages are released as they come; else they wait for `release`."""
    events: list[Event] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    host: Host = field(init=False)
    _sent: int = 0
    _unreleased: list[int] = field(default_factory=list)

    @property
    def connection(self) -> Connection:
        """The connection; the last one if there were several."""
        return self.connections[-1]

    @property
    def messages(self) -> list[MessageReceived]:
        """Every message that came in."""
        return [event for event in self.events if isinstance(event, MessageReceived)]

    @property
    def heard(self) -> list[Heard]:
        """What every message that came in says."""
        return [heard(message) for message in self.messages]

    @property
    def payloads(self) -> list[bytes]:
        """The bytes of every message that came in."""
        return [bytes(message.payload) for message in self.messages]

    @property
    def delivered(self) -> list[tuple[int, int]]:
        """Stream and number of every message that is known to have arrived."""
        return [
            (event.stream, event.number)
            for event in self.events
            if isinstance(event, MessageDelivered)
        ]

    def send(
        self,
        payload: bytes,
        *,
        stream: int = 0,
        number: int | None = None,
        priority: Priority = Priority.UPDATE,
    ) -> int:
        """Send a message of kind 1, by default the next one of stream 0; return its number."""
        if number is None:
            number = self._sent
            self._sent += 1
        self.connection.send(stream, number, 1, payload, priority)
        self.network.turn(self.host)
        return number

    def release(self) -> None:
        """Be done with all messages that came in."""
        charges, self._unreleased = self._unreleased, []
        for charge in charges:
            self.connection.release(charge)
        self.network.turn(self.host)

    def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        self.connection.close(code, reason, self.network.now)
        self.network.turn(self.host)

    # What `SimulatedNetwork` calls.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Write it down."""
        if connection not in self.connections:
            self.connections.append(connection)
        self.events.append(event)
        if isinstance(event, MessageReceived):
            if self.releases:
                connection.release(event.charge)
            else:
                self._unreleased.append(event.charge)

    def handle_timer(self, now: float) -> None:
        """Have no timers."""

    def next_timer(self) -> float | None:
        """Have no timers."""
        return None


class Pair:
    """An initiator that dials and a responder that answers; `Invariants` watches both.

    Parameters
    ----------
    link : Link
        What the wire does.
    config, responder_config : ConnectionConfig
        The latter is the same unless it is given.
    connections_max : int
        Of the responder.
    suite : Suite
        A sealed one gives both sides keys.
    seed : int
    """

    def __init__(
        self,
        link: Link = CLEAN,
        config: ConnectionConfig = PLAIN,
        *,
        responder_config: ConnectionConfig | None = None,
        connections_max: int = 4,
        suite: Suite = Suite.CHECKSUM,
        seed: int = 0,
    ) -> None:
        self.network = SimulatedNetwork(seed, link)
        self._credentials = {} if suite is Suite.CHECKSUM else self._keys(suite)
        self.network.on_datagram = self._on_datagram
        self.invariants = Invariants(self.network)
        self.wire: list[Passing] = []
        """Every datagram that one of them sent, those lost included."""
        self.lets_pass: Callable[[Passing], bool] = lambda _: True
        """Whether a datagram gets through, besides what the link does."""
        self._configs = {RESPONDER: responder_config or config, INITIATOR: config}
        self._connections_max = connections_max
        self.responder = self._add(RESPONDER)
        self.initiator = self._add(INITIATOR)

    def dial(self) -> Self:
        """Let the initiator begin."""
        connection = self.initiator.endpoint.connect(RESPONDER, self.network.now)
        self.initiator.connections.append(connection)
        self.network.turn(self.initiator.host)
        return self

    def connect(self) -> Self:
        """Let the initiator dial, and wait until both are connected and quiet."""
        self.dial()
        sides = (self.initiator, self.responder)
        self.network.run(lambda: all(Connected() in side.events for side in sides), seconds=60)
        self.network.run_for(1.0)
        return self

    def restart_responder(self, *, instance: str = RESPONDER) -> None:
        """Let a responder that knows nothing but its keys take the place of the one there was."""
        self.network.kill(self.responder.host)
        credentials = self._credentials.get(RESPONDER)
        if credentials is not None:
            self._credentials[RESPONDER] = replace(credentials, instance=instance)
        self.responder = self._add(RESPONDER)

    def restart_initiator(self) -> None:
        """Let an initiator that has sent nothing take the place of the one there was."""
        self.network.kill(self.initiator.host)
        self.initiator = self._add(INITIATOR)

    def sent_by(self, source: str) -> list[Passing]:
        """Return what one of them has sent."""
        return [passing for passing in self.wire if passing.source == source]

    def _add(self, address: str) -> Side:
        endpoint = Endpoint(
            self._configs[address],
            random_bytes=self.network.random.randbytes,
            connections_max=self._connections_max if address == RESPONDER else 0,
            credentials=self._credentials.get(address),
        )
        side = Side(self.network, endpoint)
        side.host = self.network.add(address, endpoint, side)
        return side

    def _keys(self, suite: Suite) -> dict[str, Credentials]:
        run_key = self.run_key = RunKey(self.network.random.randbytes(SECRET_BYTES))
        keys = {INITIATOR: run_key.worker_key(INITIATOR), RESPONDER: None}
        return {
            address: Credentials(
                key=key,
                keyring=None if key else Keyring([run_key]),
                suite=suite,
                unix_time_ns=lambda: round(1e9 * (UNIX_TIME + self.network.now)),
                instance="" if key else address,
            )
            for address, key in keys.items()
        }

    def _on_datagram(self, source: str, target: str, datagram: bytes) -> bool:
        passing = Passing(self.network.now, source, target, datagram)
        self.wire.append(passing)
        return self.lets_pass(passing)


def kinds_of(frames: Iterable[Frame]) -> list[str]:
    """Return the names of frames."""
    return [type(frame).__name__ for frame in frames]
