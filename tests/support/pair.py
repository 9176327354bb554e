"""Connections for tests: `Pair`, two endpoints and a wire, and `Puppet`, one peer played by hand.

A `Pair` runs two production endpoints over a `SimulatedNetwork` and keeps every datagram that was
handed to the wire. A `Puppet` stands in for one of them: the test writes each of its packets and
reads each answer, and time is what the test says it is.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Self

from gradwire_protocol import (
    Address,
    Connected,
    Connection,
    ConnectionConfig,
    Endpoint,
    Event,
    MessageReceived,
    Priority,
)
from gradwire_protocol.frames import (
    Ack,
    Challenge,
    Frame,
    pack_ack,
    pack_data_header,
    pack_ping,
    parse_frames,
)
from gradwire_protocol.limits import PACKET_HEADER_BYTES, WINDOW_BYTES
from gradwire_protocol.packets import (
    TRANSPORT,
    TRANSPORT_HEADER,
    Accept,
    Init,
    TransportLimits,
)
from gradwire_protocol.protection import CHECKSUM_BYTES, checksums
from support.network import Host, Link, SimulatedNetwork

INITIATOR: Final = "initiator"
RESPONDER: Final = "responder"
CLEAN: Final = Link()
"""A wire on which nothing bad happens, 10 ms long."""
DEFAULTS: Final = ConnectionConfig()


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
    """Return the frames of a TRANSPORT packet, whoever it is for."""
    return parse_frames(memoryview(datagram)[PACKET_HEADER_BYTES:-CHECKSUM_BYTES])


def data_frame(
    payload: bytes,
    *,
    stream: int = 0,
    number: int = 0,
    kind: int = 1,
    offset: int = 0,
    total: int | None = None,
) -> bytes:
    """Return a DATA frame: a whole message, unless `offset` and `total` say otherwise."""
    whole = offset + len(payload) if total is None else total
    return pack_data_header(stream, number, kind, offset, whole, len(payload)) + payload


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
    def payloads(self) -> list[bytes]:
        """The bytes of every message that came in."""
        return [bytes(message.payload) for message in self.messages]

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
    """An initiator that dials and a responder that answers.

    Parameters
    ----------
    link : Link
        What the wire does.
    config, responder_config : ConnectionConfig
        The latter is the same unless it is given.
    connections_max : int
        Of the responder.
    seed : int
    """

    def __init__(
        self,
        link: Link = CLEAN,
        config: ConnectionConfig = DEFAULTS,
        *,
        responder_config: ConnectionConfig | None = None,
        connections_max: int = 4,
        seed: int = 0,
    ) -> None:
        self.network = SimulatedNetwork(seed, link)
        self.network.on_datagram = self._on_datagram
        self.wire: list[Passing] = []
        """Every datagram that one of them sent, those lost included."""
        self.lets_pass: Callable[[Passing], bool] = lambda _: True
        """Whether a datagram gets through, besides what the link does."""
        self.responder = self._add(RESPONDER, responder_config or config, connections_max)
        self.initiator = self._add(INITIATOR, config, 0)

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

    def sent_by(self, source: str) -> list[Passing]:
        """Return what one of them has sent."""
        return [passing for passing in self.wire if passing.source == source]

    def _add(self, address: str, config: ConnectionConfig, connections_max: int) -> Side:
        endpoint = Endpoint(
            config, random_bytes=self.network.random.randbytes, connections_max=connections_max
        )
        side = Side(self.network, endpoint)
        side.host = self.network.add(address, endpoint, side)
        return side

    def _on_datagram(self, source: str, target: str, datagram: bytes) -> bool:
        passing = Passing(self.network.now, source, target, datagram)
        self.wire.append(passing)
        return self.lets_pass(passing)


class Puppet:
    """A peer whose every packet the test writes; it has dialled a production endpoint.

    Parameters
    ----------
    config : ConnectionConfig
        Of the endpoint.
    window_bytes, datagram_bytes, idle_timeout_seconds
        What the puppet says about itself.
    """

    ADDRESS: Final = "puppet"
    SESSION_ID: Final = 7

    def __init__(
        self,
        config: ConnectionConfig = DEFAULTS,
        *,
        window_bytes: int = WINDOW_BYTES,
        datagram_bytes: int = 1400,
        idle_timeout_seconds: float = 30.0,
    ) -> None:
        self.now = 1000.0
        self.next_number = 0
        self.largest = -1
        """The highest packet number that came from the endpoint."""
        self.challenges: list[Challenge] = []
        """Every challenge that came from the endpoint."""
        self.bytes_from: Counter[Address] = Counter()
        self.bytes_to: Counter[Address] = Counter()
        """What the endpoint received from every address, and what it sent there."""
        self.endpoint = Endpoint(config, random_bytes=Random(1).randbytes, connections_max=1)
        limits = TransportLimits(window_bytes, datagram_bytes, idle_timeout_seconds)
        init = Init(self.SESSION_ID, bytes(32), limits)
        self.endpoint.receive_datagram(init.pack(), self.ADDRESS, self.now)
        [(answer, _)] = self.endpoint.datagrams_to_send(self.now)
        self._accept = Accept.parse(answer, init.pack())
        self._sealing, self._opening = checksums(init.nonce, self._accept.nonce)
        self.send(pack_ping())
        self.now += 0.01
        self.endpoint.handle_timer(self.now)
        self.receive()

    @property
    def connection(self) -> Connection:
        """The connection at the other end."""
        [connection] = self.endpoint.connections()
        return connection

    def pack(self, *frames: bytes, number: int | None = None, flags: int = 0) -> bytes:
        """Return a packet, by default with the next packet number.

        `flags` goes into the flags and the reserved field behind them.
        """
        if number is None:
            number = self.next_number
        self.next_number = max(self.next_number, number + 1)
        session_id = self._accept.session_id
        header = TRANSPORT_HEADER.pack(TRANSPORT, flags & 0xFF, flags >> 8, session_id, number)
        return self._sealing.seal(bytearray(header + b"".join(frames)))

    def send(
        self,
        *frames: bytes,
        number: int | None = None,
        flags: int = 0,
        address: Address = ADDRESS,
    ) -> None:
        """Let the endpoint receive a packet now."""
        self.deliver(self.pack(*frames, number=number, flags=flags), address)

    def acknowledge(self) -> None:
        """Acknowledge now whatever came so far."""
        self.send(pack_ack(Ack([(0, self.largest)], 0.0, 0, 0)))

    def deliver(self, datagram: bytes, address: Address = ADDRESS) -> None:
        """Let the endpoint receive a datagram now."""
        self.bytes_from[address] += len(datagram)
        self.endpoint.receive_datagram(datagram, address, self.now)

    def receive(self) -> list[list[Frame]]:
        """Return what the endpoint sends now: the frames of each packet."""
        return [frames for frames, _ in self.receive_addressed()]

    def receive_addressed(self) -> list[tuple[list[Frame], Address]]:
        """Return what the endpoint sends now: the frames of each packet, and where it goes."""
        packets = []
        while burst := self.endpoint.datagrams_to_send(self.now):
            for datagram, address in burst:
                assert self._opening.open(memoryview(datagram)) is not None
                self.bytes_to[address] += len(datagram)
                frames = frames_of(datagram)
                self.largest = max(self.largest, packet_number(datagram))
                self.challenges += [frame for frame in frames if isinstance(frame, Challenge)]
                packets.append((frames, address))
        return packets

    def wait(self, until: float) -> list[list[Frame]]:
        """Let time pass, serving every timer of the endpoint; return what it sends meanwhile."""
        packets = self.receive()
        while (timer := self.endpoint.next_timer()) is not None and timer <= until:
            self.now = max(self.now, timer)
            self.endpoint.handle_timer(self.now)
            packets += self.receive()
        self.now = until
        return packets

    def events(self) -> list[Event]:
        """Return what the endpoint has to report."""
        events = []
        while (item := self.endpoint.next_event()) is not None:
            events.append(item[1])
        return events


def kinds_of(frames: Iterable[Frame]) -> list[str]:
    """Return the names of frames."""
    return [type(frame).__name__ for frame in frames]
