"""`Sender`: the contents of one connection's packets, and when they may leave.

Fragments leave in trains: consecutive rows of a `ShapedMessage`, sent by one system call. Only
fragments wait for the congestion window and the pacer. Acknowledgements, credit and other control
frames are small and have packets of their own; if they waited, the peer would stop. Small messages
share such a packet with each other and with the control frames that are due.

`outcomes.Outcomes` processes acknowledgements and losses.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from gradwire_protocol.congestion import CongestionController
from gradwire_protocol.connection.datagram_size import DatagramSizes
from gradwire_protocol.connection.outcomes import Outcomes
from gradwire_protocol.counters import Counters
from gradwire_protocol.delivery.incoming import Reassembly
from gradwire_protocol.delivery.outgoing import OutgoingMessage, Priority, SendQueue
from gradwire_protocol.delivery.shaped_message import COUNTING, ShapedMessage, fragment_bytes_of
from gradwire_protocol.limits import (
    ACKS_UNASKED_MAX,
    DATA_HEADER_BYTES,
    DATAGRAM_BYTES_MIN,
    PACKET_HEADER_BYTES,
    SKIP_PACKETS_MEAN,
    TAG_BYTES,
    TRAIN_BYTES_MAX,
    TRAIN_PACKETS_MAX,
)
from gradwire_protocol.recovery.pacer import Pacer
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.recovery.recovery import Recovery
from gradwire_protocol.recovery.sent_packets import PacketContents
from gradwire_protocol.security.protection import Sealing
from gradwire_protocol.wire.frames import (
    CREDIT_BYTES,
    TOKEN_BYTES,
    pack_ack,
    pack_credit,
    pack_data,
    pack_ping,
)
from gradwire_protocol.wire.packets import TRANSPORT, TRANSPORT_HEADER

Packets: TypeAlias = tuple[list[memoryview], int, int]
"""Buffers, bytes of every packet but the last, and bytes of all."""

QUANTUM_SECONDS: Final = 0.001
"""A train leaves when the pacer allows at least the bytes that the pacing rate sends in this time;
`Sender._room_for` has the exceptions."""


class Sender:
    """The sending half of an open connection.

    Parameters
    ----------
    received : ReceivedPackets
        Makes the ACKs.
    reassembly : Reassembly
        Has the credit to report to the peer.
    random : callable
        Returns unpredictable numbers in [0, 1).
    """

    def __init__(
        self,
        *,
        peer_session_id: int,
        sizes: DatagramSizes,
        sealing: Sealing,
        controller: CongestionController,
        received: ReceivedPackets,
        reassembly: Reassembly,
        counters: Counters,
        random: Callable[[], float],
    ) -> None:
        self.queue = queue = SendQueue()
        self.recovery = recovery = Recovery(controller)
        self.sizes = sizes
        self.last_eliciting_at = float("-inf")
        """When the last packet left that asks for an acknowledgement."""
        self.message_bytes = 0
        """Bytes of messages in all packets that have left, those sent again included."""
        self.peer_session_id = peer_session_id
        self._sealing = sealing
        self._pacer = pacer = Pacer(2 * sizes.current)
        self.outcomes = Outcomes(
            queue=queue,
            recovery=recovery,
            sizes=sizes,
            pacer=pacer,
            received=received,
            reassembly=reassembly,
            counters=counters,
        )
        self._received = received
        self._reassembly = reassembly
        self._counters = counters
        self._random = random
        self._acks_unasked = 0
        self._paced_until: float | None = None
        self._skip_in = self._draw_skip()

    @property
    def fragment_bytes(self) -> int:
        """Payload bytes of a fragment of a new message."""
        return fragment_bytes_of(self.sizes.current)

    @property
    def deadlines(self) -> tuple[float | None, ...]:
        """When `next_packets` or a timer may have something to do."""
        return (
            self._received.deadline,
            self.recovery.deadline,
            self._paced_until,
            self.sizes.next_timer,
        )

    # Input.

    def enqueue(self, shaped: ShapedMessage, priority: Priority) -> None:
        """Queue a message."""
        if min(shaped.fragment_bytes, shaped.total) > self.fragment_bytes:
            shaped = shaped.reshape(self.fragment_bytes, new_shape=False)
        self.queue.enqueue(shaped, priority)

    # Output.

    def next_packets(self, now: float) -> Packets | None:
        """Return the next packets, of one size; None if nothing is due or may leave now."""
        ack_deadline = self._received.deadline
        if (
            self.outcomes.ping_due
            or self._reassembly.announcement_due
            or (ack_deadline is not None and ack_deadline <= now)
        ):
            return self._shared_packet(now)
        size = self.sizes.probe_to_send(now)
        if size:
            return self._size_probe(size, now)
        message = self.queue.next_message()
        self._paced_until = None
        if message is None and self.recovery.probes:
            self.outcomes.send_oldest_again()
            message = self.queue.next_message()
        if message is None:
            return None
        shaped = message.shaped
        room = self._room_for(message.bytes_left, shaped.stride, now)
        if not room:
            return None
        if shaped.count == 1 and 2 * shaped.stride <= self.sizes.current:
            return self._shared_packet(now)
        return self._train(message, room, now)

    def packet_with(self, frame: bytes, now: float, *, eliciting: bool) -> Packets:
        """Return a packet with one frame."""
        return self._seal_packet(bytearray(frame), None, eliciting=eliciting, now=now)

    # Private: trains.

    def _room_for(self, wanted: int, stride: int, now: float) -> int:
        """Return how many bytes of fragments may leave now: at least a whole packet, or 0."""
        recovery = self.recovery
        if recovery.probes:
            return recovery.probes * stride
        controller = recovery.controller
        room = controller.window_bytes - recovery.sent.bytes_in_flight
        if not recovery.sent.packets_in_flight:
            room = max(room, stride)  # one packet may always be in flight
        if room < stride or not recovery.sent.has_room:
            return 0
        rate = controller.pacing_rate
        allowance = self._pacer.allowance(rate, now)
        wanted = min(wanted, room, TRAIN_BYTES_MAX)
        quantum = int(min(wanted, max(rate * QUANTUM_SECONDS, self._pacer.least_bytes)))
        if allowance < quantum:
            self._paced_until = self._pacer.ready_at(quantum, rate, now)
            return 0
        return max(min(room, allowance), stride)

    def _train(self, message: OutgoingMessage, room: int, now: float) -> Packets:
        shaped = message.shaped
        stride = shaped.stride
        most = min(room // stride, TRAIN_BYTES_MAX // stride, TRAIN_PACKETS_MAX)
        session = self.peer_session_id
        if message.has_lost:
            indexes = message.lost_fragments(most)
            number = self._next_number(len(indexes))
            buffers = self._sealing.seal_rows(shaped, indexes, session, number)
            message.on_sent_again(indexes)
            last_bytes = shaped.size_of(indexes[-1])
            self._record_train(message, indexes, last_bytes, now)
            self._counters.fragments_retransmitted += len(indexes)
            size = stride * (len(indexes) - 1) + last_bytes
            return buffers, min(stride, size), size
        first = message.next_fragment
        stop = min(first + most, shaped.count)
        number = self._next_number(stop - first)
        run = self._sealing.seal_run(shaped, first, stop, session, number)
        message.on_sent(first, stop)
        last_bytes = shaped.size_of(stop - 1)
        self._record_train(message, COUNTING[first:stop], last_bytes, now)
        return [run], min(stride, len(run)), len(run)

    def _record_train(
        self, message: OutgoingMessage, fragments: Sequence[int] | np.ndarray, last_bytes: int,
        now: float
    ) -> None:  # fmt: skip
        """Record fragments being sent."""
        count = len(fragments)
        stride = message.shaped.stride
        queue = self.queue
        queue.on_sent(message)
        self.recovery.on_train(
            fragments,
            message.key,
            stride,
            last_bytes,
            app_limited=queue.next_message() is None,
            now=now,
        )
        self._counters.fragments_sent += count
        size = stride * (count - 1) + last_bytes
        self.message_bytes += size
        self._pacer.on_sent(size)
        self._record_eliciting(now)
        if self.outcomes.unanswered is None:
            self.outcomes.unanswered = (now, min(stride, last_bytes) if count == 1 else stride)

    # Private: other packets.

    @property
    def _room(self) -> int:
        """Bytes for frames in one packet."""
        return self.sizes.current - PACKET_HEADER_BYTES - TAG_BYTES

    def _shared_packet(self, now: float) -> Packets:
        """Return a packet with all due control frames and the small messages that fit."""
        frames = bytearray()
        contents = PacketContents()
        room = self._room
        eliciting = False
        if self._received.deadline is not None:
            frames += self._ack_frame(contents, now)
        if self._reassembly.announcement_due:
            self._reassembly.announced = self._reassembly.credit
            frames += pack_credit(self._reassembly.credit)
            contents.credit = eliciting = True
        if self.outcomes.ping_due:
            # It has to fit a path that no longer carries larger datagrams.
            room += min(DATAGRAM_BYTES_MIN - self.sizes.current, 0)
            self.outcomes.ping_due = False
            frames += pack_ping()
            eliciting = True
        while len(frames) + CREDIT_BYTES < room:
            message = self.queue.next_message()
            if message is None or message.shaped.count > 1:
                break
            shaped = message.shaped
            if DATA_HEADER_BYTES + shaped.total > room - len(frames):
                break
            if not self._room_for(shaped.stride, shaped.stride, now):
                break
            frames += self._message_frame(message, contents)
            eliciting = True
        known = contents.ack_largest is not None or contents.credit or contents.fragments
        return self._seal_packet(frames, contents if known else None, eliciting=eliciting, now=now)

    def _message_frame(self, message: OutgoingMessage, contents: PacketContents) -> bytes:
        """Return the only fragment of a message as a frame, and record that it is being sent."""
        shaped = message.shaped
        contents.fragments.append((message.key, 0))
        self._counters.fragments_sent += 1
        self.message_bytes += shaped.total
        if message.has_lost:
            message.on_sent_again([0])
            self._counters.fragments_retransmitted += 1
        else:
            message.on_sent(0, 1)
        self.queue.on_sent(message)
        return pack_data(shaped.fragment(0, memoryview(shaped.payload)))

    def _ack_frame(self, contents: PacketContents, now: float) -> bytes:
        ack = self._received.make_ack(credit=self._reassembly.credit, now=now)
        contents.ack_largest = ack.ranges[0][1]
        # ACKs alone are never acknowledged, and the received ranges would grow without end. So
        # now and then an ACK comes with a PING, unless packets in flight already ask.
        self._acks_unasked += 1
        if self._acks_unasked >= ACKS_UNASKED_MAX and not self.recovery.sent.packets_in_flight:
            self.outcomes.ping_due = True
        return pack_ack(ack)

    def _size_probe(self, size: int, now: float) -> Packets:
        frames = bytearray(pack_ping())
        frames += bytes(size - self.sizes.current + self._room - len(frames))
        contents = PacketContents(probe_bytes=size)
        return self._seal_packet(frames, contents, eliciting=True, now=now)

    def _seal_packet(
        self, frames: bytearray, contents: PacketContents | None, *, eliciting: bool, now: float
    ) -> Packets:
        number = self._next_number(1)
        header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, self.peer_session_id, number)
        # At least as long as a challenge: if our address has changed, the peer may send no more
        # bytes to the new one than came from there.
        frames += bytes(max(TOKEN_BYTES - len(frames), 0))
        packet = self._sealing.seal(bytearray(header) + frames)
        size = len(packet)
        self.recovery.on_packet(size, contents, eliciting=eliciting, now=now)
        if eliciting:
            self._record_eliciting(now)
            self._pacer.on_sent(size)
            if contents is not None and contents.fragments and self.outcomes.unanswered is None:
                self.outcomes.unanswered = (now, size)
        return [packet], size, size

    def _record_eliciting(self, now: float) -> None:
        self._acks_unasked = 0
        self.last_eliciting_at = now

    def _next_number(self, count: int) -> int:
        """Return the number of the next packet; now and then, skip one before it."""
        sent = self.recovery.sent
        self._skip_in -= count
        if self._skip_in < 0:
            self._skip_in = self._draw_skip()
            sent.skip_number()
        return sent.next_number

    def _draw_skip(self) -> int:
        return int(2 * SKIP_PACKETS_MEAN * self._random())
