"""`Receiver`: opens the packets of one connection and dispatches their contents.

Packets that arrive together are processed together if they hold consecutive fragments of one
message, as they do under load. The result is the same as processing them one by one.

Frames other than fragments are passed to the `Owner`.

`Liveness` knows when to ask a silent peer for a sign of life, and when to give it up.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from gradwire_protocol.connection.path_validation import PathValidation
from gradwire_protocol.connection.train import ECN_MARKED
from gradwire_protocol.counters import Counters, Drop
from gradwire_protocol.delivery.events import Address
from gradwire_protocol.delivery.incoming import IncomingMessage, Reassembly
from gradwire_protocol.delivery.packet_rows import PacketRows
from gradwire_protocol.errors import ViolationError
from gradwire_protocol.limits import VECTOR_PACKETS_MIN
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.security.protection import Opening
from gradwire_protocol.wire.frames import Ack, Challenge, Close, Data, Frame, parse_frames
from gradwire_protocol.wire.packets import SINGLE, TRANSPORT_HEADER

IDLE_PROBE_TIMEOUTS: Final = 3
"""Probe timeouts that the idle timeout has to cover (RFC 9000, section 10.1), so that a long path
is not mistaken for a dead one."""

IDLE_STRETCH_MAX: Final = 2
"""Most idle timeouts to which a long probe timeout can stretch the limit. A peer can lengthen the
probe timeout by withholding acknowledgements."""


class Liveness:
    """The time of a peer's last packet.

    Parameters
    ----------
    idle_timeout : float
        Seconds of silence after which the peer counts as dead.
    keepalive : float
        Seconds of silence after which the peer is asked. At most a third of `idle_timeout` counts,
        so a single lost datagram never ends a connection.
    """

    __slots__ = ("_idle_timeout", "_keepalive", "_last_asked", "last_heard")

    def __init__(self, idle_timeout: float, keepalive: float, now: float) -> None:
        self._idle_timeout = idle_timeout
        self._keepalive = min(keepalive, idle_timeout / 3)
        self._last_asked = float("-inf")
        self.last_heard = now

    def stretched_timeout(self, probe_timeout: float) -> float:
        """Return the seconds of silence after which the peer counts as dead."""
        stretched = IDLE_PROBE_TIMEOUTS * probe_timeout
        if stretched <= self._idle_timeout:
            return self._idle_timeout
        return min(stretched, IDLE_STRETCH_MAX * self._idle_timeout)

    def idle_deadline(self, probe_timeout: float) -> float:
        """Return when the peer counts as dead if it stays silent."""
        return self.last_heard + self.stretched_timeout(probe_timeout)

    def keepalive_deadline(self, last_sent: float) -> float:
        """Return when the peer has to be asked, if nothing else asks it."""
        return max(self.last_heard, self._last_asked, last_sent) + self._keepalive

    def on_asked(self, now: float) -> None:
        """Record that the peer is being asked."""
        self._last_asked = now


class Owner(Protocol):
    """The connection that receives the packets."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open; once it is not, only a CLOSE has an effect."""

    def on_message(self, message: IncomingMessage) -> None:
        """Handle a complete message."""

    def on_frame(self, frame: Frame, address: Address, now: float) -> None:
        """Handle an ACK, CREDIT, RESPONSE or CLOSE."""

    def on_violation(self, error: ViolationError, now: float) -> None:
        """Handle a broken rule of the protocol."""

    def on_too_many_forgeries(self, now: float) -> None:
        """Handle the limit of forged packets: no further packet may be trusted."""


@dataclass(kw_only=True, eq=False)
class Receiver:
    """The receiving half of an open connection; `Sender` is the other half."""

    owner: Owner
    opening: Opening
    received: ReceivedPackets
    reassembly: Reassembly
    path: PathValidation
    liveness: Liveness
    counters: Counters
    probe_timeout: Callable[[], float]
    """Returns how long an answer may take, in seconds."""
    deadline: float | None = None
    """When `handle_timer` has to be called."""

    def receive(self, datagram: memoryview, address: Address, ecn: int, now: float) -> bool:
        """Process a TRANSPORT packet; return whether it was authentic and new."""
        epoch = self.opening.epoch
        frames = self.opening.open(datagram)
        if frames is None:
            self.counters.count_drop(Drop.NOT_AUTHENTIC)
            if self.opening.too_many_forgeries:
                self.owner.on_too_many_forgeries(now)
            return False
        if self.opening.epoch != epoch:
            self._epoch_began(now)
        return self._receive_opened(datagram, frames, address, ecn, now)

    def receive_train(self, packets: PacketRows, address: Address, ecn: int, now: float) -> bool:
        """Process several TRANSPORT packets of one size, while the connection is open.

        Returns
        -------
        bool
            Whether any of them was authentic and new.
        """
        epoch = self.opening.epoch
        opened = self.opening.open_rows(packets)
        if opened is None:
            return self._receive_sealed_singly(packets, address, ecn, now)
        if self.opening.epoch != epoch:
            self._epoch_began(now)
        accepted = False
        for first, stop in opened.runs():
            # An earlier run may have ended the connection.
            if stop - first < VECTOR_PACKETS_MIN or not self.owner.is_open:
                accepted |= self._receive_opened_singly(opened, first, stop, address, ecn, now)
            else:
                accepted |= self._receive_run(opened, first, stop, address, ecn, now)
        return accepted

    def handle_timer(self, now: float) -> None:
        """Erase the key of the previous epoch when its time is over."""
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.opening.forget_previous_key()

    # Private.

    def _epoch_began(self, now: float) -> None:
        """Keep the key of the previous epoch for packets still under way."""
        self.counters.epochs_begun += 1
        self.deadline = now + 3 * self.probe_timeout()

    def _receive_sealed_singly(
        self, packets: PacketRows, address: Address, ecn: int, now: float
    ) -> bool:
        accepted = False
        for row in range(packets.count):
            accepted |= self.receive(packets.datagram(row), address, ecn, now)
        return accepted

    def _receive_opened_singly(
        self, packets: PacketRows, first: int, stop: int, address: Address, ecn: int, now: float
    ) -> bool:
        accepted = False
        for row in range(first, stop):
            accepted |= self._receive_opened(
                packets.datagram(row), packets.frames(row), address, ecn, now
            )
        return accepted

    def _receive_opened(
        self, packet: memoryview, frames: memoryview, address: Address, ecn: int, now: float
    ) -> bool:
        """Process the header and the frames of an authentic packet."""
        _, flags, reserved, _, number = TRANSPORT_HEADER.unpack_from(packet)
        if not self.received.is_new(number, number + 1):
            self.counters.count_drop(Drop.DUPLICATE)
            return False
        self._record_accepted(number, 1, len(packet), address, ecn, now)
        try:
            if flags & ~SINGLE or reserved:
                _refuse_flags(flags, reserved)
            self._receive_frames(number, parse_frames(frames), address, ecn, now)
        except ViolationError as error:
            self.owner.on_violation(error, now)
        return True

    def _receive_run(
        self, packets: PacketRows, first: int, stop: int, address: Address, ecn: int, now: float
    ) -> bool:
        """Process packets with consecutive numbers and consecutive fragments of one message."""
        number = packets.number(first)
        message = None
        try:
            data = packets.data(first)
            count = min(packets.whole_fragments(data) - data.index, stop - first)
            placeable = (
                count >= VECTOR_PACKETS_MIN
                and self.received.can_record_run(number, number + count)
                and self.reassembly.can_receive_run(data)
            )
            if placeable:
                rows = packets.rows[first : first + count]
                message = self.reassembly.receive_run(data, rows)
        except ViolationError:
            placeable = False  # nothing has changed; processing singly finds the packet at fault
        if not placeable:
            return self._receive_opened_singly(packets, first, stop, address, ecn, now)
        self._record_accepted(number, count, packets.size, address, ecn, now)
        if message is not None:
            self.owner.on_message(message)
        self.received.record_packets(
            number,
            number + count,
            eliciting=True,
            completing=message is not None,
            marked=ecn == ECN_MARKED,
            now=now,
        )
        self._receive_opened_singly(packets, first + count, stop, address, ecn, now)
        return True

    def _record_accepted(
        self, number: int, count: int, size: int, address: Address, ecn: int, now: float
    ) -> None:
        """Record packets with consecutive numbers that are authentic and new."""
        self.counters.packets_accepted += count
        if ecn == ECN_MARKED:
            self.counters.packets_marked += count
        self.liveness.last_heard = now
        if number > self.received.largest:
            self.path.on_packet(address, count * size, now)

    def _receive_frames(
        self, number: int, frames: Iterable[Frame], address: Address, ecn: int, now: float
    ) -> None:
        eliciting = completing = False
        challenge: Challenge | None = None
        for frame in frames:
            if isinstance(frame, Data):
                if self.owner.is_open:
                    eliciting = True
                    completing |= self._receive_data(frame)
                continue
            eliciting |= self.owner.is_open and not isinstance(frame, Ack | Close)
            if isinstance(frame, Challenge):
                challenge = frame if self.owner.is_open else challenge
            else:
                self.owner.on_frame(frame, address, now)
        if challenge is not None:
            # One response per packet, however many challenges it has: see `path_validation`.
            self.path.on_challenge(challenge.data, address)
        self.received.record_packets(
            number,
            number + 1,
            eliciting=eliciting,
            completing=completing,
            marked=ecn == ECN_MARKED,
            now=now,
        )

    def _receive_data(self, data: Data) -> bool:
        """Store a fragment; return whether its message is now complete."""
        message = self.reassembly.receive(data)
        if message is None:
            return False
        self.owner.on_message(message)
        return True


def _refuse_flags(flags: int, reserved: int) -> None:
    raise ViolationError(f"packet has unknown flags ({flags}) or a reserved field of {reserved}")
