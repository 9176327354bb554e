"""Flows through one bottleneck, packet by packet: what a congestion controller makes of a path.

::

    sender --train--> Channel: queue, link, loss --delay--> receiver --ACKs, delay--> sender

Every sender has a controller, sends trains at its rate and keeps to its window. Loss recovery and
acknowledgements are gradwire's own, the bottleneck is that of `support.link`. What is around them
is ideal: computing takes no time, and a packet is a number. What a lost one carried is sent again
under another number.

Time is virtual and all randomness comes from one seed: a second of 100 Mbit/s takes about 150 ms.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from math import inf
from random import Random
from typing import Any, Final

from gradwire_protocol.congestion import CongestionController
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.recovery.recovery import Outcome, Recovery
from gradwire_protocol.wire.frames import Ack
from support.link import Channel, Link

MBIT: Final = 125_000
"""Bytes per second in a Mbit/s."""

QUANTUM_SECONDS: Final = 0.001
QUANTUM_BYTES_MAX: Final = 63_000

ENDLESS: Final = 2**31 - 1
"""Packets of a flow that always has something to send."""


def bottleneck(mbit: float, queue_bytes: float = 2**40, **others: Any) -> Link:
    """Describe a link whose delay is a matter of the flows."""
    return Link(rate=1e6 * mbit, queue_bytes=int(queue_bytes), delay=0.0, **others)


class Bottleneck:
    """A link and the flows over it.

    Parameters
    ----------
    seed : int
        Determines everything.
    link : Link
        See `bottleneck`.
    """

    def __init__(self, seed: int, link: Link) -> None:
        self.random = Random(seed)
        self.channel = Channel(link)
        self.now = 0.0
        self.flows: list[Flow] = []
        self.ack_loss = 0.0
        """Probability for an ACK to be lost; the next one says what it said."""
        self.grain = 0.0
        """Receivers wake up at multiples of this: what came in between is read at once."""
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._tiebreak = count()

    @property
    def rate(self) -> float:
        """Bytes per second that the link carries."""
        assert self.channel.link.rate is not None
        return self.channel.link.rate / 8

    def alter(self, **changes: Any) -> None:
        """Change the link; what waits in its queue stays there."""
        self.channel.link = replace(self.channel.link, **changes)

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


@dataclass(slots=True)
class Message:
    """Consecutive packets of a flow's data, supplied at once."""

    supplied_at: float
    stop: int
    missing: int
    arrived_at: float = inf
    """When the last of them arrived."""

    @property
    def seconds(self) -> float:
        """From being supplied to having arrived."""
        return self.arrived_at - self.supplied_at


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
    endless : bool
        Whether it always has something to send; else what is supplied.
    datagram_bytes : int
    """

    def __init__(
        self,
        network: Bottleneck,
        controller: CongestionController,
        *,
        rtt: float,
        start: float = 0.0,
        endless: bool = True,
        datagram_bytes: int = 1400,
    ) -> None:
        self.network = network
        self.controller = controller
        self.rtt = rtt
        self.datagram_bytes = datagram_bytes
        self.recovery = Recovery(controller)
        self.in_flight_max = 0
        self.sent = self.lost = self.spurious = self.overflowed = 0
        """Packets sent, declared lost, declared so by mistake, and dropped by the queue."""
        self.messages: list[Message] = []
        self.history: list[tuple[float, int]] = [(0.0, 0)]
        """Times, and how many bytes of data had arrived then, copies not counted."""
        # Sender. Data is numbered by the packets that it fills.
        self._next = 0
        self._supplied = ENDLESS if endless else 0
        self._again: deque[int] = deque()
        self._next_send_at = start
        self._wake_at = inf
        self._timer_at = inf
        # Receiver.
        self._received = ReceivedPackets()
        self._data = bytearray()
        self._arrived = 0
        self._message = 0
        network.flows.append(self)
        network.at(start, self.send)

    def goodput(self, begin: float, end: float) -> float:
        """Return the bytes per second that arrived in a time."""
        return (self._arrived_by(end) - self._arrived_by(begin)) / (end - begin)

    def _arrived_by(self, when: float) -> int:
        return self.history[bisect_right(self.history, when, key=lambda entry: entry[0]) - 1][1]

    @property
    def waiting(self) -> int:
        """Packets that wait to be sent."""
        return self._supplied - self._next + len(self._again)

    def supply(self, size: int) -> Message:
        """Give it a message to send; return it."""
        packets = -(-size // self.datagram_bytes)
        self._supplied += packets
        self.messages.append(Message(self.network.now, self._supplied, packets))
        self.send()
        return self.messages[-1]

    # Sender.

    def send(self) -> None:
        """Send what window, rate and data allow."""
        network, controller, datagram = self.network, self.controller, self.datagram_bytes
        sent = self.recovery.sent
        now = network.now
        if now >= self._wake_at:
            self._wake_at = inf
        while True:
            if self.recovery.probes and not self.waiting:
                oldest = self.recovery.oldest_in_flight(self.recovery.probes)[0][1]
                self._again += dict.fromkeys(oldest.tolist())
            if not self.waiting:
                break
            window = (controller.window_bytes - sent.bytes_in_flight) // datagram
            if not sent.packets_in_flight:
                window = max(window, 1)
            room = min(max(window, self.recovery.probes), self.waiting)
            if room <= 0:
                break
            if now < self._next_send_at and not self.recovery.probes:
                if self._next_send_at < self._wake_at:
                    self._wake_at = self._next_send_at
                    network.at(self._wake_at, self.send)
                break
            rate = controller.pacing_rate
            quantum = min(max(rate * QUANTUM_SECONDS, 2 * datagram), QUANTUM_BYTES_MAX)
            packets = max(min(room, int(quantum // datagram)), 1)
            earliest = max(self._next_send_at, now - QUANTUM_SECONDS)
            self._next_send_at = earliest + packets * datagram / rate
            self._send_train(packets)
        self._arm()

    def _send_train(self, packets: int) -> None:
        network, size, rtt = self.network, self.datagram_bytes, self.rtt
        data = [self._again.popleft() for _ in range(min(packets, len(self._again)))]
        new = packets - len(data)
        data += range(self._next, self._next + new)
        self._next += new
        first = self.recovery.sent.next_number
        self.recovery.on_train(
            data, 0, size, size, app_limited=not self.waiting, now=network.now
        )  # fmt: skip
        overflows = network.channel.counts["overflow"]
        for number, index in enumerate(data, first):
            for arrival in network.channel.admit(size, network.now, network.random):
                at = arrival.at + rtt / 2
                if network.grain:
                    at = -(-at // network.grain) * network.grain
                network.at(at, self._arrive, number, index, arrival.marked)
        self.overflowed += network.channel.counts["overflow"] - overflows
        self.sent += packets
        self.in_flight_max = max(self.in_flight_max, self.recovery.sent.bytes_in_flight)

    def _on_ack(self, ack: Ack) -> None:
        network = self.network
        self._learn(self.recovery.on_ack(ack, network.now))
        known_at = network.now + self.rtt / 2
        network.at(known_at, self._received.on_ack_delivered, ack.ranges[0][1])
        self.send()

    def _learn(self, outcome: Outcome) -> None:
        self.lost += outcome.lost_packets
        self.spurious += outcome.spurious_losses
        if outcome.lost is not None:
            self._again += outcome.lost[1].tolist()

    def _arm(self) -> None:
        deadline = self.recovery.deadline
        if deadline is not None and deadline < self._timer_at:
            self._timer_at = deadline
            self.network.at(deadline, self._on_timer, deadline)

    def _on_timer(self, armed_for: float) -> None:
        if armed_for != self._timer_at:
            return
        self._timer_at = inf
        recovery = self.recovery
        outcome, probing = recovery.on_timeout(self.network.now)
        self._learn(outcome)
        if probing:
            recovery.begin_probe()
        self.send()

    # Receiver.

    def _arrive(self, number: int, index: int, marked: bool) -> None:
        now, received = self.network.now, self._received
        if not received.is_new(number, number + 1):
            return
        completing = self._store(index)
        received.record_packets(
            number, number + 1, eliciting=True, completing=completing, marked=marked, now=now
        )
        due = received.deadline
        if due is not None and due <= now:
            self._acknowledge()
        elif due is not None:
            self.network.at(due, self._answer, due)

    def _store(self, index: int) -> bool:
        """Store data; return whether it completes a message."""
        data, messages = self._data, self.messages
        if index >= len(data):
            data += bytes(index + 1 - len(data))
        if data[index]:
            return False
        data[index] = 1
        self._arrived += self.datagram_bytes
        while self._message < len(messages) and messages[self._message].arrived_at < inf:
            self._message += 1
        at = self._message
        while at < len(messages) and index >= messages[at].stop:
            at += 1
        if at == len(messages):
            return False
        messages[at].missing -= 1
        if messages[at].missing:
            return False
        messages[at].arrived_at = self.network.now
        return True

    def _answer(self, due: float) -> None:
        if due == self._received.deadline:
            self._acknowledge()

    def _acknowledge(self) -> None:
        network = self.network
        self.history.append((network.now, self._arrived))
        ack = self._received.make_ack(credit=0, now=network.now)
        if network.random.random() >= network.ack_loss:
            network.at(network.now + self.rtt / 2, self._on_ack, ack)


def fairness(rates: list[float]) -> float:
    """Return Jain's index: 1 where all are equal, 1/n where one has everything."""
    return sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))
