"""`Outcomes`: processes the acknowledgements and losses of the packets that a connection sent.

They show which messages have arrived, which fragments have to be sent again, how large a datagram
the path carries, and whether any fragments arrive at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire_protocol.connection.datagram_size import DatagramSizes
from gradwire_protocol.counters import Counters
from gradwire_protocol.delivery.incoming import Reassembly
from gradwire_protocol.delivery.outgoing import SendQueue
from gradwire_protocol.delivery.shaped_message import ShapedMessage, fragment_bytes_of
from gradwire_protocol.recovery.pacer import Pacer
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.recovery.recovery import Outcome, Recovery, by_message
from gradwire_protocol.recovery.sent_packets import PacketContents
from gradwire_protocol.wire.frames import Ack


@dataclass(kw_only=True, eq=False)
class Outcomes:
    """Passes the fate of sent packets on to the parts of a `Sender`."""

    queue: SendQueue
    recovery: Recovery
    sizes: DatagramSizes
    pacer: Pacer
    received: ReceivedPackets
    """Learns which of our ACKs have arrived."""
    reassembly: Reassembly
    """Learns that a CREDIT frame was lost."""
    counters: Counters
    ping_due: bool = False
    """Whether the next packet has to ask for an acknowledgement."""
    unanswered: tuple[float, int] | None = None
    """Time and size of the first packet with fragments sent since a packet at least as large
    arrived; None if there is none. If packets of this size arrive, the fragments arrive sooner or
    later, however slow the path is. If only smaller packets arrive, they never do."""

    def stall(self, patience: float, now: float) -> str | None:
        """Return a description of the stall, if no fragment arrived for `patience` seconds."""
        if self.unanswered is None or now - self.unanswered[0] < patience:
            return None
        return (
            f"nothing of a message arrived for {now - self.unanswered[0]:.0f} seconds; the path "
            f"carries small datagrams, but none of {self.unanswered[1]} bytes"
        )

    # Input.

    def on_ack(self, ack: Ack, now: float) -> list[ShapedMessage]:
        """Process an ACK; return the messages that have now arrived as a whole."""
        outcome = self.recovery.on_ack(ack, now)
        self.on_credit(ack.credit)
        complete = []
        for arrived in outcome.arrived:
            complete += self._record_arrived(by_message(arrived))
        for contents in outcome.arrived_contents:
            if contents.ack_largest is not None:
                self.received.on_ack_delivered(contents.ack_largest)
            complete += self._record_arrived((key, [index]) for key, index in contents.fragments)
            if contents.probe_bytes and self.sizes.on_probe_acked(contents.probe_bytes):
                self._size_changed()
        if outcome.largest_acked_bytes:
            self.sizes.on_acked(outcome.largest_acked_bytes)
            if self.unanswered and outcome.largest_acked_bytes >= self.unanswered[1]:
                self.unanswered = None
        if not self.queue.bytes_queued:
            self.unanswered = None
        self.counters.packets_spuriously_lost += outcome.spurious_losses
        self._on_lost(outcome, now)
        return complete

    def on_credit(self, credit: int) -> None:
        """Record the total message bytes that the peer lets us declare."""
        self.queue.credit = max(self.queue.credit, credit)

    def on_path_changed(self) -> None:
        """Forget what was learned of the former path."""
        self.recovery.controller.on_path_changed()
        self.sizes.on_path_changed()
        self._size_changed()
        self.queue.reshape(fragment_bytes_of(self.sizes.current))

    def handle_timer(self, now: float) -> None:
        """Act on losses and probe timeouts that are due."""
        deadline = self.recovery.deadline
        if deadline is None or now < deadline:
            return
        outcome, probing = self.recovery.on_timeout(now)
        self._on_lost(outcome, now)
        if probing:
            self.counters.probe_timeouts += 1
            self._probe()

    def send_oldest_again(self) -> None:
        """Queue the oldest packets in flight, as many as may be sent as probes."""
        fragments, contents = self.recovery.oldest_in_flight(self.recovery.probes)
        for key, indexes in by_message(fragments):
            self.queue.on_lost(key, indexes)
        for each in contents:
            self._send_again(each)

    # Private.

    def _record_arrived(self, fragments: Iterable[tuple[int, list[int]]]) -> list[ShapedMessage]:
        messages = (self.queue.on_acked(key, indexes) for key, indexes in fragments)
        return [message for message in messages if message is not None]

    def _on_lost(self, outcome: Outcome, now: float) -> None:
        self.counters.packets_lost += outcome.lost_packets
        for contents in outcome.lost_contents:
            self._on_lost_contents(contents, now)
        if outcome.lost is None:
            return
        for key, indexes in by_message(outcome.lost):
            self.queue.on_lost(key, indexes)
        rtt = self.recovery.rtt.smoothed
        if outcome.lost_packets and self.sizes.on_lost(outcome.smallest_lost_bytes, rtt, now):
            self.counters.black_holes += 1
            self._size_changed()
            self.queue.reshape(fragment_bytes_of(self.sizes.current))

    def _on_lost_contents(self, contents: PacketContents, now: float) -> None:
        if contents.credit:
            self.reassembly.announced = 0  # so that the current credit is sent again
        self._send_again(contents)
        if contents.probe_bytes:
            self.sizes.on_probe_lost(now)

    def _send_again(self, contents: PacketContents) -> None:
        for key, index in contents.fragments:
            self.queue.on_lost(key, [index])

    def _probe(self) -> None:
        """Choose what asks for an acknowledgement: new data, else old data, else a PING."""
        recovery = self.recovery
        recovery.begin_probe()
        if self.queue.next_message() is None:
            self.send_oldest_again()
        # From the second timeout on also a PING: if it arrives and large packets do not, those are
        # too large for the path.
        self.ping_due = self.queue.next_message() is None or recovery.timeouts > 1

    def _size_changed(self) -> None:
        if self.unanswered is not None:
            since, size = self.unanswered
            self.unanswered = since, min(size, self.sizes.current)
        self.recovery.controller.set_datagram_bytes(self.sizes.current)
        self.pacer.least_bytes = 2 * self.sizes.current
