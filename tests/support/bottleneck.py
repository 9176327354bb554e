"""Flows through one bottleneck, packet by packet: what a congestion controller makes of a path.

::

    sender --train--> queue | link --loss, delay, jitter--> receiver --ACKs, delay--> sender

Every sender has a controller, sends trains at its rate and keeps to its window. What is around
the controllers is ideal: computing takes no time, and loss recovery is RFC 9002 with thresholds
that widen when a packet declared lost arrives after all. A packet is a number here; what a lost
one carried is sent again under another number.

Time is virtual and all randomness comes from one seed: a second of 100 Mbit/s takes about 30 ms.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random
from typing import Final

from gradwire_protocol.congestion import AckSample, CongestionController
from gradwire_protocol.recovery.rtt import RttEstimator

MBIT: Final = 125_000
"""Bytes per second in a Mbit/s."""

ACK_EVERY: Final = 32
ACK_DELAY: Final = 0.005
"""The receiver answers so many packets at once, or after this time, or when a packet is missing."""

QUANTUM_SECONDS: Final = 0.001
QUANTUM_BYTES_MAX: Final = 63_000

IN_FLIGHT, ACKED, LOST = range(3)


@dataclass(slots=True, kw_only=True)
class Link:
    """The bottleneck. May be changed while a simulation runs."""

    rate: float = 100 * MBIT
    """Bytes per second."""
    queue_bytes: float = inf
    """What finds more than this waiting is dropped."""
    loss: float = 0.0
    """Probability to be lost behind the queue: the packet has used the link in vain."""
    ack_loss: float = 0.0
    """Probability for an ACK to be lost; the next one says what it said."""
    jitter: float = 0.0
    """Up to this is added to the delay of each packet: packets overtake each other."""
    mark_bytes: float = inf
    """What finds more than this waiting is marked."""
    grain: float = 0.0
    """The receiver wakes up at multiples of this: what came in between is read at once."""


class Bottleneck:
    """A link and the flows over it.

    Parameters
    ----------
    seed : int
        Determines everything.
    link : Link
    """

    def __init__(self, seed: int, link: Link) -> None:
        self.random = Random(seed)
        self.link = link
        self.now = 0.0
        self.flows: list[Flow] = []
        self._free_at = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._tiebreak = count()

    def at(self, when: float, action: Callable[..., None], *arguments: object) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (when, next(self._tiebreak), action, arguments))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        events, end = self._events, self.now + seconds
        while events and events[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(events)
            action(*arguments)
        self.now = end

    def enqueue(self, size: int) -> tuple[float, bool] | None:
        """Put a packet into the queue; return when it has left the link and whether it is marked.

        Returns None if there was no room.
        """
        link = self.link
        start = max(self._free_at, self.now)
        waiting = (start - self.now) * link.rate
        if waiting + size > link.queue_bytes:
            return None
        self._free_at = start + size / link.rate
        return self._free_at, waiting > link.mark_bytes


class Flow:
    """One sender, and its receiver.

    Parameters
    ----------
    network : Bottleneck
    controller : CongestionController
    rtt : float
        Round trip without a queue, in seconds.
    start : float
        When it begins to send.
    backlog : float
        Bytes to send; without end unless given.
    datagram_bytes : int
    """

    def __init__(
        self,
        network: Bottleneck,
        controller: CongestionController,
        *,
        rtt: float,
        start: float = 0.0,
        backlog: float = inf,
        datagram_bytes: int = 1400,
    ) -> None:
        self.network = network
        self.controller = controller
        self.rtt = rtt
        self.backlog = backlog
        self.datagram_bytes = datagram_bytes
        self.estimator = RttEstimator()
        self.in_flight = 0
        self.in_flight_max = 0
        self.sent = self.lost = self.spurious = self.overflowed = 0
        """Packets sent, declared lost, declared so by mistake, and dropped by the queue."""
        self.restarts = 0
        """How often the controller was told of persistent congestion."""
        self.finished_at = inf
        """When the last byte of the backlog was acknowledged."""
        self.history: list[tuple[float, int]] = [(0.0, 0)]
        """Times, and how many bytes had arrived then."""
        # Sender, by packet number.
        self._trains: list[tuple[float, object]] = []
        self._state = bytearray()
        self._lowest = 0
        self._largest = -1
        self._packet_threshold = 3
        self._time_threshold = 9 / 8
        self._next_send_at = start
        self._wake_at = inf
        self._timer_at = inf
        self._probes = 0
        self._pto_count = 0
        self._last_sent_at = 0.0
        self._lost_run: tuple[float, int] = (0.0, -1)
        # Receiver.
        self._expected = 0
        self._unreported: list[int] = []
        self._unanswered = 0
        self._marked = 0
        self._ack_at = inf
        self._arrived = 0
        network.flows.append(self)
        network.at(start, self.send)

    def goodput(self, begin: float, end: float) -> float:
        """Return the bytes per second that arrived in a time."""
        return (self._arrived_by(end) - self._arrived_by(begin)) / (end - begin)

    def _arrived_by(self, when: float) -> int:
        return self.history[bisect_right(self.history, when, key=lambda entry: entry[0]) - 1][1]

    def supply(self, size: int) -> None:
        """Give it something to send."""
        self.backlog += size
        self.finished_at = inf
        self.send()

    # Sender.

    def send(self) -> None:
        """Send what window, rate and backlog allow."""
        now, controller, datagram = self.network.now, self.controller, self.datagram_bytes
        if now >= self._wake_at:
            self._wake_at = inf
        while True:
            window = controller.window_bytes - self.in_flight
            room = min(max(window, self._probes * datagram), self.backlog)
            if not room or room < min(datagram, self.backlog):
                return
            if now < self._next_send_at:
                if self._next_send_at < self._wake_at:
                    self._wake_at = self._next_send_at
                    self.network.at(self._wake_at, self.send)
                return
            rate = controller.pacing_rate
            quantum = min(max(rate * QUANTUM_SECONDS, 2 * datagram), QUANTUM_BYTES_MAX)
            packets = max(int(min(room, quantum) // datagram), 1)
            self._probes = max(self._probes - packets, 0)
            self.backlog = max(self.backlog - packets * datagram, 0)
            earliest = max(self._next_send_at, now - QUANTUM_SECONDS)
            self._next_send_at = earliest + packets * datagram / rate
            self._send_train(packets)

    def _send_train(self, packets: int) -> None:
        network, size = self.network, self.datagram_bytes
        now, link, random = network.now, network.link, network.random.random
        departure = self.controller.on_sent(
            packets * size, self.in_flight, app_limited=not self.backlog, now=now
        )
        delay = self.rtt / 2
        for number in range(self.sent, self.sent + packets):
            if (left := network.enqueue(size)) is None:
                self.overflowed += 1
                continue
            if random() < link.loss:
                continue
            arrives = left[0] + delay + link.jitter * random()
            if link.grain:
                arrives = -(-arrives // link.grain) * link.grain
            network.at(arrives, self._arrive, number, left[1])
        self._trains += [(now, departure)] * packets
        self._state += bytes(packets)
        self.sent += packets
        self.in_flight += packets * size
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        self._last_sent_at = now
        self._arm()

    def _on_ack(self, numbers: list[int], marked: int) -> None:
        now, state, trains = self.network.now, self._state, self._trains
        newest, acked = -1, 0
        for number in numbers:
            if state[number] == LOST:
                self._on_late(number)
            else:
                acked += 1
                newest = max(newest, number)
            state[number] = ACKED
        if not acked:
            return
        acked *= self.datagram_bytes
        self.in_flight -= acked
        self._pto_count = self._probes = 0
        sent_at, departure = trains[newest]
        rtt = None
        if newest > self._largest:
            self._largest = newest
            rtt = now - sent_at
            self.estimator.update(rtt, 0.0)
        self._detect_lost()
        self.controller.on_ack(
            AckSample(
                now=now,
                acked_bytes=acked,
                in_flight=self.in_flight,
                departure=departure,
                sent_at=sent_at,
                number=newest,
                next_number=self.sent,
                rtt=rtt,
                smoothed_rtt=self.estimator.smoothed,
                marked=marked,
            )
        )
        if not self.in_flight and not self.backlog:
            self.finished_at = now
        self._arm()
        self.send()

    def _on_late(self, number: int) -> None:
        """Be more patient, as RACK (RFC 8985) is: a packet taken for lost was only late."""
        now, smoothed = self.network.now, self.estimator.smoothed
        self._packet_threshold = max(self._packet_threshold, self._largest - number + 1)
        late = now - self._trains[number][0] - smoothed
        self._time_threshold = min(max(self._time_threshold, 1 + 1.25 * late / smoothed), 2.0)
        self.spurious += 1
        self.controller.on_spurious_loss(self.datagram_bytes, now)

    def _detect_lost(self) -> None:
        now, state, trains = self.network.now, self._state, self._trains
        patience = self._patience()
        lost, sent_at, persistent = 0, 0.0, False
        while self._lowest < self._largest:
            number = self._lowest
            if state[number] == IN_FLIGHT:
                if (
                    number > self._largest - self._packet_threshold
                    and trains[number][0] > now - patience + 1e-7
                ):
                    break
                state[number] = LOST
                lost += 1
                sent_at = trains[number][0]
                begin, last = self._lost_run
                self._lost_run = (begin if last == number - 1 else sent_at, number)
                persistent |= sent_at - self._lost_run[0] > 3 * self._probe_timeout()
            self._lowest += 1
        if not lost:
            return
        size = lost * self.datagram_bytes
        self.lost += lost
        self.in_flight -= size
        self.backlog += size
        self.controller.on_lost(size, sent_at, self.in_flight, now)
        if persistent:
            self.restarts += 1
            self.controller.on_persistent_congestion()

    def _patience(self) -> float:
        rtt = self.estimator
        return max(self._time_threshold * max(rtt.smoothed, rtt.latest), 0.001)

    def _probe_timeout(self) -> float:
        return self.estimator.probe_timeout(ACK_DELAY)

    def _deadline(self) -> float:
        """Return when a packet is lost if nothing comes, or else when to ask."""
        if not self.in_flight:
            return inf
        while self._lowest < self._largest and self._state[self._lowest] != IN_FLIGHT:
            self._lowest += 1
        if self._lowest < self._largest:
            return self._trains[self._lowest][0] + self._patience()
        return self._last_sent_at + self._probe_timeout() * (1 << min(self._pto_count, 6))

    def _arm(self) -> None:
        deadline = self._deadline()
        if deadline < self._timer_at:
            self._timer_at = deadline
            self.network.at(deadline, self._on_timer, deadline)

    def _on_timer(self, armed_for: float) -> None:
        if armed_for != self._timer_at:
            return
        self._timer_at = inf
        if self.network.now >= self._deadline():
            if self._lowest < self._largest:
                self._detect_lost()
            else:
                self._pto_count += 1
                self._probes = 2
                # A probe carries the oldest data again if there is nothing else to be sent.
                self.backlog = max(self.backlog, self._probes * self.datagram_bytes)
        self._arm()
        self.send()

    # Receiver.

    def _arrive(self, number: int, marked: bool) -> None:
        now = self.network.now
        self._arrived += self.datagram_bytes
        self._unreported.append(number)
        self._unanswered += 1
        self._marked += marked
        missing = number != self._expected
        self._expected = max(self._expected, number + 1)
        if self._unanswered >= ACK_EVERY or missing or marked:
            self._acknowledge()
        elif self._unanswered == 1:
            self._ack_at = now + ACK_DELAY
            self.network.at(self._ack_at, self._answer, self._ack_at)

    def _answer(self, due: float) -> None:
        if due == self._ack_at:
            self._acknowledge()

    def _acknowledge(self) -> None:
        network = self.network
        self.history.append((network.now, self._arrived))
        self._unanswered = 0
        self._ack_at = inf
        if network.random.random() < network.link.ack_loss:
            return
        network.at(network.now + self.rtt / 2, self._on_ack, self._unreported, self._marked)
        self._unreported = []
        self._marked = 0


def fairness(rates: list[float]) -> float:
    """Return Jain's index: 1 where all are equal, 1/n where one has everything."""
    return sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))
