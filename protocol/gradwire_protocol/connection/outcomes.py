"""`Outcomes`: what became of the packets that a connection has sent, and what follows from it.

Acknowledgements and losses say which messages have arrived, which fragments have to leave again,
how large a datagram the path carries, and whether anything of a message gets through at all.
"""

import numpy as np

from gradwire_protocol.connection.datagram_size import DatagramSizes
from gradwire_protocol.counters import Counters
from gradwire_protocol.delivery.incoming import Reassembly
from gradwire_protocol.delivery.outgoing import SendQueue
from gradwire_protocol.delivery.shaped_message import ShapedMessage, fragment_bytes_of
from gradwire_protocol.limits import PROBE_PACKETS, TAIL_PROBE_PACKETS_MAX
from gradwire_protocol.recovery.loss_rate import LossRate
from gradwire_protocol.recovery.pacer import Pacer
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.recovery.recovery import Fragments, Outcome, Recovery, by_message
from gradwire_protocol.recovery.sent_packets import PacketContents
from gradwire_protocol.wire.frames import Ack


class Outcomes:
    """What the `Sender` of a connection learns of what it has sent.

    Parameters
    ----------
    queue : SendQueue
        Is told what has arrived and what has to leave again.
    recovery : Recovery
    sizes : DatagramSizes
    pacer : Pacer
    loss : LossRate
        Of the path.
    received : ReceivedPackets
        Is told which acknowledgements the peer has.
    reassembly : Reassembly
        Is told which credit the peer may not have heard of.
    counters : Counters
    """

    def __init__(
        self,
        *,
        queue: SendQueue,
        recovery: Recovery,
        sizes: DatagramSizes,
        pacer: Pacer,
        loss: LossRate,
        received: ReceivedPackets,
        reassembly: Reassembly,
        counters: Counters,
    ) -> None:
        self.ping_due = False
        """Whether the next packet has to ask for an acknowledgement."""
        self.unanswered: tuple[float, int] | None = None
        """When the first packet with fragments left since which none as large has arrived, and its
        size. Where packets of its size get through, its fragments will, sooner or later, however
        slow the path is. Where only smaller ones do, never."""
        self._queue = queue
        self._recovery = recovery
        self._sizes = sizes
        self._pacer = pacer
        self._loss = loss
        self._received = received
        self._reassembly = reassembly
        self._counters = counters

    def stall(self, patience: float, now: float) -> str | None:
        """Say what is wrong, if nothing of a message arrived for `patience` seconds."""
        if self.unanswered is None or now - self.unanswered[0] < patience:
            return None
        return (
            f"nothing of a message arrived for {now - self.unanswered[0]:.0f} seconds; the path "
            f"carries small datagrams, but none of {self.unanswered[1]} bytes"
        )

    # Input.

    def on_ack(self, ack: Ack, now: float) -> list[ShapedMessage]:
        """Learn from an ACK; return the messages that have now arrived as a whole."""
        outcome = self._recovery.on_ack(ack, now)
        self.on_credit(ack.credit)
        complete = []
        for arrived in outcome.arrived:
            complete += self._arrived(arrived)
        for contents in outcome.arrived_contents:
            if contents.ack_largest is not None:
                self._received.on_ack_delivered(contents.ack_largest)
            for key, index in contents.fragments:
                message = self._queue.on_acked(key, [index])
                if message is not None:
                    complete.append(message)
            if contents.probe_bytes and self._sizes.on_probe_acked(contents.probe_bytes):
                self._size_changed()
        if outcome.largest_acked_bytes:
            self._sizes.on_acked(outcome.largest_acked_bytes)
            if self.unanswered and outcome.largest_acked_bytes >= self.unanswered[1]:
                self.unanswered = None
        if not self._queue.bytes_queued:
            self.unanswered = None
        self._counters.packets_spuriously_lost += outcome.spurious_losses
        self._loss.record(outcome.lost_packets, outcome.acked_packets)
        self._on_lost(outcome, now)
        return complete

    def on_credit(self, credit: int) -> None:
        """Learn how many message bytes the peer lets us declare in all."""
        self._queue.credit = max(self._queue.credit, credit)

    def on_path_changed(self) -> None:
        """Begin anew with what is known of the path."""
        self._recovery.controller.on_path_changed()
        self._sizes.on_path_changed()
        self._size_changed()
        self._queue.reshape(fragment_bytes_of(self._sizes.current))

    def handle_timer(self, now: float) -> None:
        """Act on losses and probe timeouts that are due."""
        deadline = self._recovery.deadline
        if deadline is None or now < deadline:
            return
        outcome, probing = self._recovery.on_timeout(now)
        self._on_lost(outcome, now)
        if probing:
            self._counters.probe_timeouts += 1
            self._probe()

    # Private.

    def _arrived(self, fragments: Fragments) -> list[ShapedMessage]:
        complete = []
        for key, indexes in by_message(fragments):
            message = self._queue.on_acked(key, indexes)
            if message is not None:
                complete.append(message)
        return complete

    def _on_lost(self, outcome: Outcome, now: float) -> None:
        self._counters.packets_lost += outcome.lost_packets
        for contents in outcome.lost_contents:
            self._on_lost_contents(contents, now)
        if outcome.lost is None:
            return
        for key, indexes in by_message(outcome.lost):
            self._queue.on_lost(key, indexes)
        rtt = self._recovery.rtt.smoothed
        if outcome.lost_packets and self._sizes.on_lost(outcome.smallest_lost_bytes, rtt, now):
            self._counters.black_holes += 1
            self._size_changed()
            self._queue.reshape(fragment_bytes_of(self._sizes.current))

    def _on_lost_contents(self, contents: PacketContents, now: float) -> None:
        if contents.credit:
            self._reassembly.announced = 0  # say it again, with what is true by then
        self._send_again(contents)
        if contents.probe_bytes:
            self._sizes.on_probe_lost(now)

    def _send_again(self, contents: PacketContents) -> None:
        for key, index in contents.fragments:
            self._queue.on_lost(key, np.array([index], np.int32))

    def _probe(self) -> None:
        """Find something to ask for an acknowledgement with: new data, else old, else a PING."""
        recovery = self._recovery
        recovery.probes = PROBE_PACKETS
        if self._queue.next_message() is None:
            if recovery.sent.packets_in_flight <= TAIL_PROBE_PACKETS_MAX:
                recovery.probes = TAIL_PROBE_PACKETS_MAX
            fragments, contents = recovery.oldest_in_flight(recovery.probes)
            for key, indexes in by_message(fragments):
                self._queue.on_lost(key, indexes)
            for held in contents:
                self._send_again(held)
        # A small packet too: where it arrives and the large ones do not, they are too large.
        self.ping_due = self._queue.next_message() is None or recovery.timeouts > 1

    def _size_changed(self) -> None:
        if self.unanswered is not None:
            since, size = self.unanswered
            self.unanswered = since, min(size, self._sizes.current)
        self._recovery.controller.set_datagram_bytes(self._sizes.current)
        self._pacer.least_bytes = 2 * self._sizes.current
