"""What a peer may send, sensible or not, and what an endpoint makes of it.

A `Trace` is written step by step: every step appends datagrams or changes those before. A
`Listener` is the endpoint that receives them, in reads of many or one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from gradwire_protocol import Connection, ConnectionConfig, Endpoint, MessageReceived
from gradwire_protocol.connection.train import ECN_CAPABLE
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    PACKET_HEADER_BYTES,
    TAG_BYTES,
    TRAIN_PACKETS_MAX,
)
from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.wire.frames import SHAPES_MAX, pack_data
from gradwire_protocol.wire.packets import (
    MASK,
    SINGLE,
    TRANSPORT,
    TRANSPORT_HEADER,
    TransportLimits,
)
from support.endpoints import agreed, init_of
from support.fragments import fragment_of, message_of, packets_of
from support.state import State, state_of

START: Final = 1000.0
LIMITS: Final = TransportLimits(2**24, DATAGRAM_BYTES_MAX, 30.0)
CONFIG: Final = ConnectionConfig(lossless=True)
"""What is sent does not depend on what congestion control makes of acknowledgements."""
ADDRESSES: Final = ("peer", "elsewhere")


@dataclass(slots=True)
class Peer:
    """Who sends packets, as the one knows him who receives them."""

    session_id: int
    sealing: Checksum
    number: int = 0
    """Of the next packet."""


@dataclass(frozen=True, slots=True)
class Datagram:
    """A datagram on its way."""

    data: bytes
    address: str = ADDRESSES[0]
    ecn: int = ECN_CAPABLE
    moment: int = 0
    """Datagrams of one moment can be read together."""


class Listener:
    """An endpoint with two connections, whose peers are played by hand.

    Two of them that received the same are in the same state.
    """

    def __init__(self) -> None:
        self.now = START
        self.endpoint = Endpoint(CONFIG, random_bytes=Random(1).randbytes, connections_max=4)
        self._charges: list[tuple[Connection, int]] = []

    def shake_hands(self, session_id: int) -> Peer:
        """Ask for a connection; return who is to open it with a packet."""
        init = init_of(session_id, session_id.to_bytes(32, "little"), LIMITS)
        self.receive([Datagram(init)])
        train = self.endpoint.next_train(self.now)
        assert train is not None
        [answer] = train.datagrams()
        reply, sealing, _ = agreed(init, answer)
        return Peer(reply.session_id, sealing)

    def receive(self, datagrams: Sequence[Datagram]) -> None:
        """Receive datagrams in one read: all of one size, but that the last may be shorter."""
        first = datagrams[0]
        data = b"".join(datagram.data for datagram in datagrams)
        self.read(data, len(first.data), first.address, first.ecn)

    def read(
        self, data: bytes, segment: int, address: str = ADDRESSES[0], ecn: int = ECN_CAPABLE
    ) -> None:
        """Receive datagrams, one behind the other."""
        buffer = bytearray(data)
        self.endpoint.receive(memoryview(buffer), segment, address, ecn, self.now)
        buffer[:] = b"\xa5" * len(buffer)  # it is the owner's again

    def turn(self) -> State:
        """Take what there is to report and to send, and serve the timers; return all of it."""
        said: list[State] = []
        if (timer := self.endpoint.next_timer()) is not None and timer <= self.now:
            self.endpoint.handle_timer(self.now)
        while (item := self.endpoint.next_event()) is not None:
            connection, event = item
            said.append([connection.session_id, state_of(event)])
            if isinstance(event, MessageReceived):
                self._charges.append((connection, event.charge))
        while (train := self.endpoint.next_train(self.now)) is not None:
            said.append([train.datagrams(), train.address, train.ecn])
        return [said, self.endpoint.next_timer()]

    def release(self) -> None:
        for connection, charge in self._charges:
            connection.release(charge)
        self._charges.clear()


@dataclass(slots=True)
class Trace:
    """Datagrams, in the order they arrive in."""

    peers: Sequence[Peer]
    messages: list[ShapedMessage] = field(default_factory=list)
    datagrams: list[Datagram] = field(default_factory=list)
    address: str = ADDRESSES[0]
    ecn: int = ECN_CAPABLE
    moment: int = 0
    peer: Peer = field(init=False)
    """Who is sending now."""

    def __post_init__(self) -> None:
        self.peer = self.peers[0]

    # Who sends.

    def turn_to(self, which: int) -> None:
        """Let another peer send."""
        self.peer = self.peers[which % len(self.peers)]

    def move(self, address: str, ecn: int) -> None:
        """Send from another address, or over another path."""
        self.address, self.ecn = address, ecn

    def go(self, by: int) -> None:
        """Leave packet numbers out, or use some again."""
        self.peer.number = max(self.peer.number + by, 0)

    def pause(self) -> None:
        """Send what follows later, so that it is read apart from what came before."""
        self.moment += 1

    # What.

    def message(self, total: int, fragment_bytes: int, stream: int) -> None:
        """Have another message to send."""
        number = 10_001 + 2 * len(self.messages)
        self.messages.append(
            message_of(total, fragment_bytes=fragment_bytes, stream=stream, number=number)
        )

    def run(self, which: int, first: int, count: int) -> None:
        """Send consecutive fragments, as a sender does."""
        message = self._message(which)
        first %= message.count
        self._run(message, first, min(first + count, message.count))

    def lie(self, which: int, first: int, count: int) -> None:
        """Send consecutive fragments of a message with another payload."""
        true = self._message(which)
        false = message_of(
            true.total,
            fragment_bytes=true.fragment_bytes,
            stream=true.stream,
            number=true.number,
            kind=true.kind,
            seed=1,
        )
        false.shape = true.shape
        first %= false.count
        self._run(false, first, min(first + count, false.count))

    def wrong_numbers(self, which: int, count: int) -> None:
        """Send fragments whose packet numbers go from 2^32 - 2 to 0, as no sender's do."""
        number = self.peer.number
        for n in range(count):
            self.peer.number = number & ~MASK | (n - 2) & MASK
            self.run(which, n, 1)

    def changed(
        self,
        which: int,
        first: int,
        count: int,
        change: tuple[str, int] = ("index", 0),
        behind: bytes = b"",
        flags: int = SINGLE,
    ) -> None:
        """Send consecutive fragments of which a field contradicts the others, or the format.

        Or there is something behind each of them in its packet, or they have other flags.
        """
        message = self._message(which)
        name, by = change
        by = max(by, 1 - message.total) if name == "total" else by
        for index in range(first, min(first + count, message.count)):
            data = fragment_of(message, index)
            changes = {name: getattr(data, name) + by}
            self.packet(pack_data(replace(data, **changes)) + behind, flags=flags)

    def padded(self, which: int, first: int, count: int) -> None:
        """Send consecutive fragments, the last one in a packet as large as those of the others."""
        message = self._message(which)
        for index in range(first, min(first + count, message.count)):
            self.like(which, pack_data(fragment_of(message, index)), SINGLE, TRANSPORT)

    def like(self, which: int, frames: bytes, flags: int, packet_type: int) -> None:
        """Send frames in a packet as large as those of a message."""
        size = self._message(which).stride - PACKET_HEADER_BYTES - TAG_BYTES
        self.packet(frames.ljust(size, b"\0"), flags, packet_type)

    def mixed(self, parts: Sequence[tuple[int, int]], frames: bytes) -> None:
        """Send a packet with several fragments, as far as they fit, and other frames."""
        for which, index in parts:
            message = self._message(which)
            data = pack_data(fragment_of(message, index % message.count))
            if len(frames) + len(data) < DATAGRAM_BYTES_MAX - 100:
                frames += data
        self.packet(frames)

    def packet(self, frames: bytes, flags: int = 0, packet_type: int = TRANSPORT) -> None:
        """Send frames; the higher byte of the flags goes into the field behind them."""
        peer = self.peer
        header = TRANSPORT_HEADER.pack(
            packet_type, flags & 0xFF, flags >> 8, peer.session_id, peer.number
        )
        self._send(bytes(peer.sealing.seal(bytearray(header + frames))))

    def recut(self, which: int, fragment_bytes: int, new_shape: bool) -> None:
        """Cut a message into smaller fragments, from now on."""
        which %= len(self.messages)
        new_shape &= self.messages[which].shape < SHAPES_MAX - 2
        self.messages[which] = self.messages[which].reshape(fragment_bytes, new_shape=new_shape)

    # What a network does to it.

    def repeat(self, back: int, count: int) -> None:
        """Let some of the last datagrams arrive once more."""
        self.datagrams += self.datagrams[-back:][:count]

    def overtake(self, by: int, count: int) -> None:
        """Let the last datagrams arrive earlier."""
        late = self.datagrams[-count - by : -count]
        self.datagrams[-count - by :] = self.datagrams[-count:] + late

    def reverse(self, count: int) -> None:
        """Let the last datagrams arrive in reverse."""
        self.datagrams[-count:] = self.datagrams[-count:][::-1]

    def damage(self, back: int, at: int, by: int) -> None:
        """Change a byte of a datagram."""
        self._edit(back, lambda data: _with(data, at % len(data), by))

    def cut_short(self, back: int, by: int) -> None:
        """Truncate a datagram."""
        self._edit(back, lambda data: data[: max(len(data) - by, 1)])

    def extend(self, back: int, by: int) -> None:
        """Append zeros to a datagram."""
        self._edit(back, lambda data: data + bytes(by))

    # Reading.

    def reads(self) -> list[list[Datagram]]:
        """Return the datagrams as a kernel joins them: those of one size, the last may be short."""
        reads: list[list[Datagram]] = []
        for datagram in self.datagrams:
            last = reads[-1] if reads else []
            if len(last) in range(1, TRAIN_PACKETS_MAX) and _joins(last, datagram):
                last.append(datagram)
            else:
                reads.append([datagram])
        return reads

    # Private.

    def _message(self, which: int) -> ShapedMessage:
        return self.messages[which % len(self.messages)]

    def _run(self, message: ShapedMessage, first: int, stop: int) -> None:
        peer = self.peer
        for datagram in packets_of(
            message,
            first,
            stop,
            session_id=peer.session_id,
            number=peer.number,
            sealing=peer.sealing,
        ):
            self._send(datagram)

    def _send(self, data: bytes) -> None:
        self.datagrams.append(Datagram(data, self.address, self.ecn, self.moment))
        self.peer.number += 1

    def _edit(self, back: int, change: Callable[[bytes], bytes]) -> None:
        if back <= len(self.datagrams):
            datagram = self.datagrams[-back]
            self.datagrams[-back] = replace(datagram, data=change(datagram.data))


Step = Callable[[Trace], None]
"""Something that happens in a trace."""


def _with(data: bytes, at: int, by: int) -> bytes:
    return data[:at] + bytes([data[at] + by & 0xFF]) + data[at + 1 :]


def _joins(read: Sequence[Datagram], datagram: Datagram) -> bool:
    first, last = read[0], read[-1]
    alike = replace(datagram, data=b"") == replace(first, data=b"")
    return alike and len(last.data) == len(first.data) >= len(datagram.data)
