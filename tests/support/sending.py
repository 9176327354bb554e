"""A sender for tests, with what it looks at, and no connection around it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from gradwire_protocol import Counters, Priority
from gradwire_protocol.congestion import AckSample, CongestionController
from gradwire_protocol.connection.datagram_size import DatagramSizes
from gradwire_protocol.connection.sender import Packets, Sender
from gradwire_protocol.delivery.incoming import Reassembly
from gradwire_protocol.delivery.shaped_message import ShapedMessage, fragment_bytes_of
from gradwire_protocol.limits import ACK_RANGES_MAX, WINDOW_BYTES
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.wire.frames import Data, Frame
from gradwire_protocol.wire.ranges import RangeSet
from support.acks import ack
from support.pair import frames_of, kinds_of, packet_number

DATAGRAM_BYTES: Final = 1400
FRAGMENT_BYTES: Final = fragment_bytes_of(DATAGRAM_BYTES)
PLENTY: Final = 2**40
START: Final = 1000.0


class Diary(CongestionController):
    """A window and a rate that are what the test says, and all that the controller was told."""

    def __init__(self, *, window_bytes: int = PLENTY, pacing_rate: float = inf) -> None:
        self.window_bytes = window_bytes
        self.pacing_rate = pacing_rate
        self.datagram_bytes = DATAGRAM_BYTES
        self.sent: list[tuple[int, int, bool]] = []
        """Size of a train, what was in flight before it, and whether nothing else waited."""
        self.acks: list[AckSample] = []
        self.losses: list[tuple[int, float, int]] = []
        """Size, when the newest packet left, and what is in flight without them."""
        self.taken_back: list[int] = []
        self.collapses = 0
        self.paths = 1

    def on_sent(self, size: int, in_flight: int, *, app_limited: bool, now: float) -> object:
        """Write it down; what comes back with the ACK is the number of the train."""
        self.sent.append((size, in_flight, app_limited))
        return len(self.sent) - 1

    def on_ack(self, sample: AckSample) -> None:
        self.acks.append(sample)

    def on_lost(self, size: int, sent_at: float, in_flight: int, now: float) -> None:
        self.losses.append((size, sent_at, in_flight))

    def on_spurious_loss(self, size: int, now: float) -> None:
        self.taken_back.append(size)

    def on_persistent_congestion(self) -> None:
        self.collapses += 1

    def on_path_changed(self) -> None:
        self.paths += 1

    def set_datagram_bytes(self, datagram_bytes: int) -> None:
        self.datagram_bytes = datagram_bytes


@dataclass(slots=True)
class Rig:
    """A sender and what it looks at. The peer gave credit for everything.

    Unless the test says otherwise, the path is not searched for larger datagrams, nothing but
    acknowledgements is ever waited for, and no packet number is left out.
    """

    datagram_bytes: int = DATAGRAM_BYTES
    datagram_bytes_max: int = DATAGRAM_BYTES
    controller: Diary = field(default_factory=Diary)
    random: Callable[[], float] = lambda: 1 - 2**-48
    received: ReceivedPackets = field(default_factory=ReceivedPackets)
    reassembly: Reassembly = field(default_factory=lambda: Reassembly(WINDOW_BYTES))
    counters: Counters = field(default_factory=Counters)
    sender: Sender = field(init=False)
    messages: int = 0
    next_number: int = 0
    """The packet number behind all that were seen to leave."""

    def __post_init__(self) -> None:
        self.sender = Sender(
            peer_session_id=7,
            sizes=DatagramSizes(self.datagram_bytes, self.datagram_bytes_max),
            sealing=Checksum(b""),
            controller=self.controller,
            received=self.received,
            reassembly=self.reassembly,
            counters=self.counters,
            random=self.random,
        )
        self.sender.outcomes.on_credit(PLENTY)

    @property
    def in_flight(self) -> int:
        """Bytes of packets that are neither acknowledged nor taken for lost."""
        return self.sender.recovery.sent.bytes_in_flight

    def push(
        self, *sizes: int, priority: Priority = Priority.UPDATE, fragment_bytes: int | None = None
    ) -> None:
        for size in sizes:
            shape = fragment_bytes or self.sender.fragment_bytes
            payload = payload_of(self.messages, size)
            message = ShapedMessage.of(0, self.messages, 1, payload, shape)
            self.messages += 1
            self.sender.enqueue(message, priority)

    def receive(self, *numbers: int, now: float = START, completing: bool = True) -> None:
        """Receive packets that ask for an acknowledgement, by default at once."""
        for number in numbers:
            self.received.record_packets(
                number, number + 1, eliciting=True, completing=completing, now=now
            )

    def train(self, now: float = START) -> list[bytes]:
        """Send what leaves next: its datagrams, every one of which is authentic."""
        packets = self.sender.next_packets(now)
        return [] if packets is None else self._cut(packets)

    def trains(self, now: float = START) -> list[list[bytes]]:
        """Send all that may leave now, train by train."""
        trains = []
        while train := self.train(now):
            trains.append(train)
        return trains

    def datagrams(self, now: float = START) -> list[bytes]:
        """Send all that may leave now."""
        return [datagram for train in self.trains(now) for datagram in train]

    def packets(self, now: float = START) -> list[list[Frame]]:
        """Send all that may leave now; return the frames of each packet."""
        return [frames_of(datagram) for datagram in self.datagrams(now)]

    def kinds(self, now: float = START) -> list[list[str]]:
        """Send all that may leave now; return the names of the frames of each packet."""
        return [kinds_of(packet) for packet in self.packets(now)]

    def fragments(self, now: float = START) -> list[list[tuple[int, int]]]:
        """Send all that may leave now; return the fragments of each packet."""
        return [fragments_of(packet) for packet in self.packets(now)]

    def acknowledge(
        self, *ranges: tuple[int, int], now: float = START + 0.1, credit: int = 0
    ) -> list[int]:
        """Receive an acknowledgement; return the numbers of the messages that arrived."""
        acked = ack(*ranges, credit=credit)
        return [message.number for message in self.sender.outcomes.on_ack(acked, now)]

    def fire(self) -> float:
        """Serve the timer of loss recovery; return when that was."""
        deadline = self.sender.recovery.deadline
        assert deadline is not None
        self.sender.outcomes.handle_timer(deadline)
        return deadline

    def _cut(self, packets: Packets) -> list[bytes]:
        buffers, segment, size = packets
        joined = b"".join(buffers)
        assert len(joined) == size
        datagrams = [joined[at : at + segment] for at in range(0, size, segment)]
        for datagram in datagrams:
            assert Checksum(b"").open(memoryview(datagram)) is not None
            assert packet_number(datagram) >= self.next_number, "no number is used twice"
            self.next_number = packet_number(datagram) + 1
        return datagrams


def fragments_of(packet: Sequence[Frame]) -> list[tuple[int, int]]:
    """Return the fragments of a packet, as message and index."""
    return [(f.number, f.index) for f in packet if isinstance(f, Data)]


@dataclass(slots=True)
class FarEnd:
    """What the packets of a `Rig` come to: it acknowledges them a round trip after they left."""

    rig: Rig
    lets_pass: Callable[[bytes], bool] = lambda _: True
    """Whether a datagram gets through."""
    now: float = START
    messages: dict[int, bytes] = field(default_factory=dict)
    """What has arrived, by the number of the message."""
    sent: list[tuple[float, bytes]] = field(default_factory=list)
    """All that ever left, and when."""
    _came: RangeSet = field(default_factory=RangeSet)
    _reassembly: Reassembly = field(default_factory=lambda: Reassembly(PLENTY))

    def run(self, until: Callable[[], bool], *, rtt: float = 0.1) -> None:
        """Go on until something is true."""
        for _ in range(10_000):
            if until():
                return
            datagrams = self.rig.datagrams(self.now)
            self.sent += [(self.now, datagram) for datagram in datagrams]
            passed = [datagram for datagram in datagrams if self.lets_pass(datagram)]
            for datagram in passed:
                self._receive(datagram)
            deadlines = [at for at in self.rig.sender.deadlines if at is not None]
            if passed:
                self.now += rtt
                runs = [(first, stop - 1) for first, stop in self._came.descending()]
                self.rig.acknowledge(*runs[:ACK_RANGES_MAX], now=self.now)
            elif deadlines:
                self.now = max(self.now, min(deadlines))
            self.rig.sender.outcomes.handle_timer(self.now)
        raise AssertionError("it never came true")

    def deliver(self) -> None:
        """Go on until every message is known to have arrived."""
        self.run(lambda: not self.rig.sender.queue.bytes_queued)

    def _receive(self, datagram: bytes) -> None:
        number = packet_number(datagram)
        self._came.add_range(number, number + 1)
        for frame in frames_of(datagram):
            if isinstance(frame, Data):
                message = self._reassembly.receive(frame)
                if message is not None:
                    self.messages[frame.number] = bytes(message.shaped.payload)


def payload_of(number: int, size: int) -> bytes:
    """Return what is in a message of a `Rig`."""
    pattern = bytes(range(251)) * (size // 251 + 2)
    return pattern[number % 251 :][:size]
