"""`Puppet`: one end of a connection played by hand.

It stands in for the peer of a production endpoint: the test writes each of its packets and reads
each answer, and time is what the test says it is.
"""

from collections import Counter
from random import Random
from typing import Final, Self

from gradwire_protocol import Address, Connected, Connection, ConnectionConfig, Endpoint, Event
from gradwire_protocol.connection.train import ECN_NOT
from gradwire_protocol.limits import DATAGRAM_BYTES, WINDOW_BYTES
from gradwire_protocol.wire.frames import TOKEN_BYTES, Challenge, Frame, pack_ack, pack_ping
from gradwire_protocol.wire.packets import (
    RESET,
    SINGLE,
    TRANSPORT,
    TRANSPORT_HEADER,
    TransportLimits,
)
from gradwire_protocol.wire.ranges import RangeSet
from support.acks import ack
from support.endpoints import PLAIN, agreed, events_of, hand_over, init_of, sent_by
from support.pair import FRAGMENT_BYTES, data_frame, frames_of, packet_number


class Puppet:
    """A peer whose every packet the test writes; it has dialled a production endpoint.

    Parameters
    ----------
    config : ConnectionConfig
        Of the endpoint.
    window_bytes, datagram_bytes, idle_timeout_seconds
        What the puppet says about itself.
    seed : int
        Of the endpoint: which packet numbers it leaves out, for example.
    """

    ADDRESS: Final = "puppet"
    SESSION_ID: Final = 7

    def __init__(
        self,
        config: ConnectionConfig = PLAIN,
        *,
        window_bytes: int = WINDOW_BYTES,
        datagram_bytes: int = DATAGRAM_BYTES,
        idle_timeout_seconds: float = 30.0,
        seed: int = 1,
    ) -> None:
        self.now = 1000.0
        self.next_number = 0
        self.came = RangeSet()
        """The packet numbers that came from the endpoint."""
        self.challenges: list[Challenge] = []
        """Every challenge that came from the endpoint."""
        self.bytes_from: Counter[Address] = Counter()
        self.bytes_to: Counter[Address] = Counter()
        """What the endpoint received from every address, and what it sent there."""
        self.largest_datagram = 0
        """Size of the largest one that came from the endpoint."""
        self.endpoint = Endpoint(config, random_bytes=Random(seed).randbytes, connections_max=1)
        limits = TransportLimits(window_bytes, datagram_bytes, idle_timeout_seconds)
        init = init_of(self.SESSION_ID, limits=limits)
        hand_over(self.endpoint, [init], self.ADDRESS, self.now)
        [(answer, _)] = sent_by(self.endpoint, self.now)
        self._reply, self._sealing, self._opening = agreed(init, answer)
        self.send(pack_ping())
        self.now += 0.01
        self.endpoint.handle_timer(self.now)
        self.receive()

    def opened(self) -> Self:
        """Take the event that says so; return the puppet."""
        assert self.events() == [Connected()]
        return self

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
        session_id = self._reply.session_id
        header = TRANSPORT_HEADER.pack(TRANSPORT, flags & 0xFF, flags >> 8, session_id, number)
        return bytes(self._sealing.seal(bytearray(header + b"".join(frames))))

    def fragments(
        self, payload: bytes, *, stream: int = 0, number: int = 0, flags: int = SINGLE
    ) -> list[bytes]:
        """Return a message in packets of one fragment each."""
        cut = range(0, len(payload), FRAGMENT_BYTES)
        return [
            self.pack(
                data_frame(
                    payload[at : at + FRAGMENT_BYTES],
                    stream=stream,
                    number=number,
                    index=index,
                    total=len(payload),
                ),
                flags=flags,
            )
            for index, at in enumerate(cut)
        ]

    def send(
        self,
        *frames: bytes,
        number: int | None = None,
        flags: int = 0,
        address: Address = ADDRESS,
    ) -> None:
        """Let the endpoint receive a packet now, as long as a `Sender` makes it at least."""
        padding = bytes(max(TOKEN_BYTES - sum(map(len, frames)), 0))
        self.deliver(self.pack(*frames, padding, number=number, flags=flags), address=address)

    def acknowledge(self, address: Address = ADDRESS) -> None:
        """Acknowledge now whatever came so far."""
        ranges = [(first, stop - 1) for first, stop in self.came.descending()]
        self.send(pack_ack(ack(*ranges)), address=address)

    def deliver(self, *datagrams: bytes, address: Address = ADDRESS, ecn: int = ECN_NOT) -> None:
        """Let the endpoint receive datagrams now, in one read: only the last may be shorter."""
        self.bytes_from[address] += sum(map(len, datagrams))
        hand_over(self.endpoint, datagrams, address, self.now, ecn=ecn)

    def receive(self) -> list[list[Frame]]:
        """Return what the endpoint sends now: the frames of each packet."""
        return [frames for frames, _ in self.receive_addressed()]

    def receive_addressed(self) -> list[tuple[list[Frame], Address]]:
        """Return what the endpoint sends now: the frames of each packet, and where it goes."""
        packets = []
        for datagram, address in sent_by(self.endpoint, self.now):
            if datagram[0] == RESET:
                continue  # the endpoint does not know us any more
            assert self._opening.open(memoryview(datagram)) is not None
            self.bytes_to[address] += len(datagram)
            self.largest_datagram = max(self.largest_datagram, len(datagram))
            frames = frames_of(datagram)
            number = packet_number(datagram)
            assert self.came.add_range(number, number + 1)
            self.challenges += [frame for frame in frames if isinstance(frame, Challenge)]
            packets.append((frames, address))
        return packets

    def has(self, first: int, last: int) -> bool:
        """Return whether consecutive packets came from the endpoint."""
        return any(start <= first and last < stop for start, stop in self.came)

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
        return [event for _, event in events_of(self.endpoint)]
