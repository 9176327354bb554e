"""Loss recovery: which sent packets arrived, which are lost, and when to ask (RFC 9002).

A packet is lost when a later one was acknowledged and it is `PACKET_THRESHOLD` numbers or
`TIME_THRESHOLD` round trips older (section 6.1). When nothing is acknowledged at all, a probe
timeout asks for an acknowledgement; it declares nothing lost (section 6.2).

What a lost packet carried is sent again in a new packet, so a packet number never has two
meanings. The record of a lost packet is kept for a while: if an ACK names it after all, it was
only late, and its fragments need not be sent again.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from gradwire_protocol.congestion import CongestionController
from gradwire_protocol.errors import ViolationError
from gradwire_protocol.frames import Ack, CloseCode
from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    ACK_RECORDS_MAX,
    GRANULARITY_SECONDS,
    PACKET_THRESHOLD,
    PROBE_PACKETS,
    PTO_BACKOFF_MAX,
    TIME_THRESHOLD,
)
from gradwire_protocol.outgoing import Fragment
from gradwire_protocol.rtt import RttEstimator


@dataclass(slots=True)
class SentPacket:
    """What has to be known of a packet until it is acknowledged or forgotten."""

    number: int
    sent_at: float
    size: int = 0
    eliciting: bool = False
    fragments: list[Fragment] = field(default_factory=list)
    ack_largest: int | None = None
    """Highest packet number that an ACK frame in it named."""
    credit: bool = False
    """Whether it carried a CREDIT frame."""


class Recovery:
    """Sent packets of one connection.

    Parameters
    ----------
    controller : CongestionController
        Told of every packet sent, acknowledged and lost.
    """

    def __init__(self, controller: CongestionController) -> None:
        self.rtt = RttEstimator()
        self.controller = controller
        self.next_number = 0
        self.bytes_in_flight = 0
        self.probes = 0
        """Packets that may be sent now whatever the congestion window says."""
        self.spurious_losses = 0
        self._sent: dict[int, SentPacket] = {}
        self._uneliciting: deque[int] = deque()
        self._lost: dict[int, SentPacket] = {}
        self._largest_acked = -1
        self._last_eliciting_at = 0.0
        self._pto_count = 0
        self._loss_deadline: float | None = None

    # Input.

    def on_sent(self, packet: SentPacket) -> None:
        """Note the packet with the number `next_number`, just handed to the network."""
        assert packet.number == self.next_number
        self.next_number += 1
        self._sent[packet.number] = packet
        if packet.eliciting:
            self.controller.on_sent(packet.size, self.bytes_in_flight, packet.sent_at)
            self.bytes_in_flight += packet.size
            self._last_eliciting_at = packet.sent_at
            self.probes = max(self.probes - 1, 0)
        else:
            self._uneliciting.append(packet.number)
            if len(self._uneliciting) > ACK_RECORDS_MAX:
                self._sent.pop(self._uneliciting.popleft(), None)

    def on_ack(self, ack: Ack, now: float) -> tuple[list[SentPacket], list[SentPacket]]:
        """Learn from an ACK.

        Returns
        -------
        acked : list of SentPacket
            Packets acknowledged for the first time, those taken for lost included.
        lost : list of SentPacket
            Packets that now count as lost.

        Raises
        ------
        ViolationError
            If it names a packet that was never sent.
        """
        largest = ack.ranges[0][1]
        if largest >= self.next_number:
            raise ViolationError(
                CloseCode.VIOLATION,
                f"acknowledgement of packet {largest}; {self.next_number} were sent",
            )
        in_flight = self.bytes_in_flight
        acked = self._take(ack.ranges)
        if not acked:
            return [], []
        newest = max(acked, key=lambda packet: packet.number)
        if newest.number == largest and any(packet.eliciting for packet in acked):
            delay = min(ack.delay_seconds, ACK_DELAY_SECONDS_MAX)
            self.rtt.update(max(now - newest.sent_at, 1e-6), delay)
        self._largest_acked = max(self._largest_acked, largest)
        for packet in acked:
            if packet.eliciting:
                self._pto_count = self.probes = 0
                self.controller.on_acked(packet.size, packet.sent_at, in_flight, now)
        return acked, self._detect_lost(now)

    def on_timeout(self, now: float) -> tuple[list[SentPacket], bool]:
        """Act on `deadline`.

        Returns
        -------
        lost : list of SentPacket
            Packets that now count as lost.
        probing : bool
            Whether it was a probe timeout; `probes` then says how many packets may leave.
        """
        if self._loss_deadline is not None and now >= self._loss_deadline:
            return self._detect_lost(now), False
        probe_deadline = self._probe_deadline()
        if probe_deadline is None or now < probe_deadline:
            return [], False
        self._pto_count += 1
        self.probes = PROBE_PACKETS
        return [], True

    # Output.

    @property
    def deadline(self) -> float | None:
        """When `on_timeout` has to be called; None while nothing is in flight."""
        if self._loss_deadline is not None:
            return self._loss_deadline
        return self._probe_deadline()

    @property
    def probe_timeout(self) -> float:
        """The probe timeout without backoff, in seconds."""
        return self.rtt.probe_timeout(ACK_DELAY_SECONDS_MAX)

    def in_flight(self) -> Iterable[SentPacket]:
        """Iterate over the packets in flight, oldest first."""
        return (packet for packet in self._sent.values() if packet.eliciting)

    # Private.

    def _probe_deadline(self) -> float | None:
        if not self.bytes_in_flight:
            return None
        backoff = 1 << min(self._pto_count, PTO_BACKOFF_MAX)
        return self._last_eliciting_at + self.probe_timeout * backoff

    def _take(self, runs: Sequence[tuple[int, int]]) -> list[SentPacket]:
        """Remove and return the packets in `runs` that were not acknowledged before."""
        acked = [self._sent.pop(number) for number in _named(self._sent, runs)]
        for packet in acked:
            if packet.eliciting:
                self.bytes_in_flight -= packet.size
        late = [self._lost.pop(number) for number in _named(self._lost, runs)]
        self.spurious_losses += len(late)
        return acked + late

    def _detect_lost(self, now: float) -> list[SentPacket]:
        self._loss_deadline = None
        delay = max(TIME_THRESHOLD * max(self.rtt.smoothed, self.rtt.latest), GRANULARITY_SECONDS)
        lost = []
        for packet in self._sent.values():
            if packet.number > self._largest_acked:
                break
            if (
                packet.number <= self._largest_acked - PACKET_THRESHOLD
                # Without the margin, rounding could arm the timer for `now` again and again.
                or packet.sent_at + delay <= now + 1e-7
            ):
                lost.append(packet)
            elif self._loss_deadline is None:
                self._loss_deadline = packet.sent_at + delay
        for packet in lost:
            del self._sent[packet.number]
            self._lost[packet.number] = packet
            if packet.eliciting:
                self.bytes_in_flight -= packet.size
        eliciting = [packet for packet in lost if packet.eliciting]
        if eliciting:
            self.controller.on_lost(eliciting[-1].sent_at, now)
        self._forget_lost(now)
        return lost

    def _forget_lost(self, now: float) -> None:
        """Forget lost packets that nobody will acknowledge any more."""
        old = now - 3 * self.probe_timeout
        for packet in list(takewhile(lambda packet: packet.sent_at <= old, self._lost.values())):
            del self._lost[packet.number]


def _named(packets: dict[int, SentPacket], runs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the numbers of `packets`, which ascend, that are in `runs`, which descend.

    A run may reach back behind everything that is remembered, and there may be many of them, so
    this looks at the numbers named or at the packets, whichever are fewer.
    """
    if not packets:
        return []
    lowest = next(iter(packets))
    runs = [(max(first, lowest), last) for first, last in reversed(runs) if last >= lowest]
    if sum(last - first + 1 for first, last in runs) <= len(packets):
        numbers = chain.from_iterable(range(first, last + 1) for first, last in runs)
        return [number for number in numbers if number in packets]
    firsts = [first for first, _ in runs]
    named = []
    for number in takewhile(lambda number: number <= runs[-1][1], packets):
        at = bisect_right(firsts, number)
        if at and number <= runs[at - 1][1]:
            named.append(number)
    return named
