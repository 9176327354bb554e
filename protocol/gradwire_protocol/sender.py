"""`Sender`: what one connection puts into its packets, and when they may leave.

Every packet is assembled from what is due: an acknowledgement, credit, a PING, and as many
fragments as fit. Congestion window and pacing hold fragments back, and nothing else: the rest is
small, and holding it back would stop the peer.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from gradwire_protocol.congestion import CongestionController
from gradwire_protocol.counters import Counters
from gradwire_protocol.frames import (
    CREDIT_BYTES,
    Ack,
    pack_ack,
    pack_credit,
    pack_data_header,
    pack_ping,
)
from gradwire_protocol.incoming import Reassembly
from gradwire_protocol.limits import (
    ACK_EVERY,
    DATA_HEADER_BYTES,
    DATAGRAM_BYTES_MIN,
    PACKET_HEADER_BYTES,
    PROBE_PACKETS,
)
from gradwire_protocol.outgoing import Fragment, OutgoingMessage, SendQueue
from gradwire_protocol.pacer import Pacer
from gradwire_protocol.packets import TRANSPORT, TRANSPORT_HEADER
from gradwire_protocol.protection import Protection
from gradwire_protocol.received import ReceivedPackets
from gradwire_protocol.recovery import Recovery, SentPacket

Parts: TypeAlias = list[bytes | memoryview]


class Sender:
    """The sending half of an open connection.

    Parameters
    ----------
    peer_session_id : int
        What packets are addressed to.
    datagram_bytes : int
        Largest datagram to send.
    sealing : Protection
    controller : CongestionController
    received : ReceivedPackets
        What there is to acknowledge.
    reassembly : Reassembly
        What there is to give credit for.
    counters : Counters
    """

    def __init__(
        self,
        *,
        peer_session_id: int,
        datagram_bytes: int,
        sealing: Protection,
        controller: CongestionController,
        received: ReceivedPackets,
        reassembly: Reassembly,
        counters: Counters,
    ) -> None:
        self.queue = SendQueue()
        self.recovery = Recovery(controller)
        self.ping_due = False
        self.last_eliciting_at = float("-inf")
        """When a packet left that the peer has to acknowledge."""
        self._peer_session_id = peer_session_id
        self._datagram_bytes = datagram_bytes
        self._sealing = sealing
        self._pacer = Pacer(datagram_bytes)
        self._received = received
        self._reassembly = reassembly
        self._counters = counters
        self._acks_in_a_row = 0
        self._paced_until: float | None = None
        self._unanswered: SentPacket | None = None
        """The first packet with fragments since which none as large has arrived, nor what it held.

        Where packets of its size get through, its fragments will, sooner or later, however slow
        the path is and however much waits before them. Where only smaller ones do, never.
        """

    @property
    def fragment_bytes(self) -> int:
        """Payload of a packet that carries nothing but one fragment."""
        return self._room - DATA_HEADER_BYTES

    @property
    def deadlines(self) -> tuple[float | None, ...]:
        """When there may be something to do without any input."""
        return self._received.deadline, self.recovery.deadline, self._paced_until

    def stall(self, patience: float, now: float) -> str | None:
        """Say what is wrong, if nothing of a message arrived for `patience` seconds."""
        seconds = 0.0 if self._unanswered is None else now - self._unanswered.sent_at
        if seconds < patience:
            return None
        size = self._datagram_bytes
        advice = f": try datagram_bytes={DATAGRAM_BYTES_MIN}" if size > DATAGRAM_BYTES_MIN else ""
        return (
            f"nothing of a message arrived for {seconds:.0f} seconds; the path may not carry "
            f"datagrams of {size} bytes{advice}"
        )

    # Input.

    def on_ack(self, ack: Ack, now: float) -> list[OutgoingMessage]:
        """Learn from an ACK; return the messages that have now arrived as a whole."""
        acked, lost = self.recovery.on_ack(ack, now)
        complete = []
        for packet in acked:
            if packet.ack_largest is not None:
                self._received.known(packet.ack_largest)
            complete += [f.message for f in packet.fragments if self.queue.on_acked(f)]
        if self._unanswered is not None and _answered(self._unanswered, acked):
            self._unanswered = None
        self._counters.packets_spuriously_lost += self.recovery.spurious_losses
        self.recovery.spurious_losses = 0
        self._on_lost(lost)
        self.on_credit(ack.credit)
        return complete

    def on_credit(self, credit: int) -> None:
        """Learn how many message bytes the peer lets us declare in all."""
        self.queue.credit = max(self.queue.credit, credit)

    def handle_timer(self, now: float) -> None:
        """Act on losses and probe timeouts that are due."""
        deadline = self.recovery.deadline
        if deadline is None or now < deadline:
            return
        lost, probing = self.recovery.on_timeout(now)
        self._on_lost(lost)
        if probing:
            self._counters.probe_timeouts += 1
            self._probe()

    # Output.

    def next_datagram(self, now: float) -> bytes | None:
        """Return the next packet; None where nothing is due or may leave."""
        ack_deadline = self._received.deadline
        ack_due = ack_deadline is not None and ack_deadline <= now
        credit_due = self._reassembly.announcement_due
        fragment = self._sendable(now)
        if not (ack_due or credit_due or self.ping_due or fragment is not None):
            return None
        packet = SentPacket(self.recovery.next_number, now)
        parts: Parts = []
        room = self._room
        if ack_due or (ack_deadline is not None and fragment is None):
            room -= self._put_ack(packet, parts, now)
        if credit_due:
            room -= self._put_credit(packet, parts)
        if self.ping_due:
            self.ping_due = False
            parts.append(pack_ping())
            packet.eliciting = True
            room -= 1
        while fragment is not None and DATA_HEADER_BYTES + len(fragment.payload) <= room:
            room -= self._put_fragment(packet, parts, fragment)
            fragment = self.queue.peek()
        packet.eliciting |= bool(packet.fragments)
        return self._finish(packet, parts)

    def datagram_with(self, frame: bytes, now: float, *, eliciting: bool) -> bytes:
        """Return a packet with one given frame."""
        packet = SentPacket(self.recovery.next_number, now, eliciting=eliciting)
        return self._finish(packet, [frame])

    # Private.

    @property
    def _room(self) -> int:
        """Bytes for frames in one packet."""
        return self._datagram_bytes - PACKET_HEADER_BYTES - self._sealing.overhead

    def _sendable(self, now: float) -> Fragment | None:
        """Return the next fragment, if congestion control lets it go now."""
        self._paced_until = None
        fragment = self.queue.peek()
        if fragment is None or self.recovery.probes:
            return fragment
        controller = self.recovery.controller
        if self.recovery.bytes_in_flight + self._datagram_bytes > controller.window_bytes:
            return None
        rate = controller.pacing_rate(self.recovery.rtt.smoothed)
        ready_at = self._pacer.ready_at(self._datagram_bytes, rate, now)
        if ready_at > now:
            self._paced_until = ready_at
            return None
        return fragment

    def _put_ack(self, packet: SentPacket, parts: Parts, now: float) -> int:
        ack = self._received.ack(credit=self._reassembly.credit, marked=0, now=now)
        packed = pack_ack(ack)
        parts.append(packed)
        packet.ack_largest = ack.ranges[0][1]
        # ACKs alone are never acknowledged, so now and then one asks for it, unless something
        # is on its way that does: else the ranges would grow for ever.
        self._acks_in_a_row += 1
        if self._acks_in_a_row >= ACK_EVERY and not self.recovery.bytes_in_flight:
            self.ping_due = True
        return len(packed)

    def _put_credit(self, packet: SentPacket, parts: Parts) -> int:
        self._reassembly.announced = self._reassembly.credit
        parts.append(pack_credit(self._reassembly.credit))
        packet.credit = packet.eliciting = True
        return CREDIT_BYTES

    def _put_fragment(self, packet: SentPacket, parts: Parts, fragment: Fragment) -> int:
        message, payload = fragment.message, fragment.payload
        parts.append(
            pack_data_header(
                message.stream,
                message.number,
                message.kind,
                fragment.offset,
                len(message.payload),
                len(payload),
            )
        )
        parts.append(payload)
        packet.fragments.append(fragment)
        self._counters.fragments_sent += 1
        self._counters.fragments_retransmitted += self.queue.take(fragment)
        return DATA_HEADER_BYTES + len(payload)

    def _finish(self, packet: SentPacket, parts: Iterable[bytes | memoryview]) -> bytes:
        header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, self._peer_session_id, packet.number)
        datagram = self._sealing.seal(bytearray().join((header, *parts)))
        packet.size = len(datagram)
        if packet.fragments and self._unanswered is None:
            self._unanswered = packet
        self.recovery.on_sent(packet)
        if packet.eliciting:
            self._acks_in_a_row = 0
            self.last_eliciting_at = packet.sent_at
            self._pacer.on_sent(packet.size)
        return datagram

    def _on_lost(self, lost: Iterable[SentPacket]) -> None:
        for packet in lost:
            self._counters.packets_lost += packet.eliciting
            if packet.credit:
                self._reassembly.announced = 0  # say it again, with what is true by then
            for fragment in packet.fragments:
                self.queue.on_lost(fragment)

    def _probe(self) -> None:
        """Find something to ask for an acknowledgement with: new data, else old, else a PING."""
        if self.queue.peek() is not None:
            return
        for packet in list(self.recovery.in_flight())[:PROBE_PACKETS]:
            for fragment in packet.fragments:
                self.queue.on_lost(fragment)
        if self.queue.peek() is None:
            self.ping_due = True


def _answered(packet: SentPacket, acked: Sequence[SentPacket]) -> bool:
    """Return whether one as large has arrived, or what it held has in other packets."""
    return any(other.size >= packet.size for other in acked) or all(
        fragment.message.is_acked(fragment.index) for fragment in packet.fragments
    )
