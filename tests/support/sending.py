"""A sender for tests, with what it looks at, and no connection around it."""

from dataclasses import dataclass, field

from gradwire_protocol import Counters, Priority
from gradwire_protocol.congestion import NewReno
from gradwire_protocol.frames import Ack, Data, Frame
from gradwire_protocol.incoming import Reassembly
from gradwire_protocol.limits import DATA_HEADER_BYTES, PACKET_HEADER_BYTES, WINDOW_BYTES
from gradwire_protocol.outgoing import OutgoingMessage
from gradwire_protocol.protection import CHECKSUM_BYTES, Checksum
from gradwire_protocol.received import ReceivedPackets
from gradwire_protocol.sender import Sender
from support.pair import frames_of

DATAGRAM_BYTES = 1400
FRAGMENT_BYTES = DATAGRAM_BYTES - PACKET_HEADER_BYTES - DATA_HEADER_BYTES - CHECKSUM_BYTES
START = 1000.0


@dataclass(slots=True)
class Rig:
    """A sender and what it looks at. The peer gave credit for everything."""

    received: ReceivedPackets = field(default_factory=ReceivedPackets)
    reassembly: Reassembly = field(default_factory=lambda: Reassembly(WINDOW_BYTES))
    counters: Counters = field(default_factory=Counters)
    sender: Sender = field(init=False)
    messages: int = 0

    def __post_init__(self) -> None:
        self.sender = Sender(
            peer_session_id=7,
            datagram_bytes=DATAGRAM_BYTES,
            sealing=Checksum(b""),
            controller=NewReno(DATAGRAM_BYTES),
            received=self.received,
            reassembly=self.reassembly,
            counters=self.counters,
        )
        self.sender.on_credit(2**40)

    def push(self, *sizes: int) -> None:
        """Queue messages of these sizes."""
        for size in sizes:
            message = OutgoingMessage(0, self.messages, 1, bytes(size), self.sender.fragment_bytes)
            self.messages += 1
            self.sender.queue.push(message, Priority.UPDATE)

    def receive(self, *numbers: int, now: float = START, completing: bool = True) -> None:
        """Receive packets that ask for an acknowledgement, by default at once."""
        for number in numbers:
            self.received.add(number, eliciting=True, completing=completing, now=now)

    def datagrams(self, now: float = START) -> list[bytes]:
        """Send all that may leave now."""
        datagrams = []
        while (datagram := self.sender.next_datagram(now)) is not None:
            datagrams.append(datagram)
        return datagrams

    def packets(self, now: float = START) -> list[list[Frame]]:
        """Send all that may leave now; return the frames of each packet."""
        return [frames_of(datagram) for datagram in self.datagrams(now)]

    def acknowledge(
        self, *ranges: tuple[int, int], now: float = START + 0.1, credit: int = 0
    ) -> list[int]:
        """Receive an acknowledgement; return the numbers of the messages that arrived."""
        ack = Ack(ranges, 0.0, credit, marked=0)
        return [message.number for message in self.sender.on_ack(ack, now)]

    def fill_the_window(self) -> float:
        """Send more than the congestion window allows, at its pace; return when it is full."""
        self.push(100 * FRAGMENT_BYTES)
        now = START
        while self.packets(now):
            now = self.sender.deadlines[2] or now
        return now

    def fire(self) -> float:
        """Serve the timer of loss recovery; return when that was."""
        deadline = self.sender.recovery.deadline
        assert deadline is not None
        self.sender.handle_timer(deadline)
        return deadline


def offsets(packet: list[Frame]) -> list[tuple[int, int]]:
    """Return the fragments of a packet, as message and offset."""
    return [(frame.number, frame.offset) for frame in packet if isinstance(frame, Data)]
