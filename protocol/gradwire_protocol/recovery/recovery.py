"""Loss recovery: which packets arrived, which are lost, and when to probe (RFC 9002).

A packet is lost when a later one was acknowledged and it is older by some numbers or some part of a
round trip (section 6.1). If nothing is acknowledged, a probe timeout asks for an acknowledgement;
it declares nothing lost (section 6.2).

The contents of a lost packet are sent again in a new packet, so a packet number never has two
meanings. If an ACK names a lost packet after all, the packet was only late. Both thresholds then
rise so that a packet this late is waited for (the idea of RACK, RFC 8985), and congestion control
takes the loss back.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.congestion import AckSample, CongestionController
from gradwire_protocol.errors import ViolationError
from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    BURST_PROBE_PACKETS_MAX,
    BURST_PROBE_PACKETS_MIN,
    BURST_PROBES,
    COLD_PROBE_PACKETS_MAX,
    GRANULARITY_SECONDS,
    LONG_SILENCE_PROBE_SECONDS,
    LONG_SILENCE_SECONDS,
    PACKET_THRESHOLD,
    PACKET_THRESHOLD_MAX,
    PERSISTENT_CONGESTION_TIMEOUTS,
    PROBE_BACKOFF,
    PROBE_PACKETS,
    RTT_DOUBTED_SECONDS,
    RTT_DOUBTED_TIMEOUTS,
    TIME_THRESHOLD,
    TIME_THRESHOLD_MAX,
)
from gradwire_protocol.recovery.rtt import RttEstimator
from gradwire_protocol.recovery.sent_packets import Fate, PacketContents, SentPackets, SentTrain
from gradwire_protocol.wire.frames import Ack

Fragments: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Of several packets: message key and fragment index. A negative key means no message."""


@dataclass(slots=True)
class Outcome:
    """The result of an ACK or a timer."""

    arrived: list[Fragments] = field(default_factory=list)
    """Fragments of packets acknowledged for the first time."""
    arrived_contents: list[PacketContents] = field(default_factory=list)
    lost: Fragments | None = None
    lost_contents: list[PacketContents] = field(default_factory=list)
    acked_bytes: int = 0
    largest_acked_bytes: int = 0
    """Size of the largest packet that arrived."""
    lost_packets: int = 0
    smallest_lost_bytes: int = 0
    """Size of the smallest packet lost."""
    spurious_losses: int = 0


class Recovery:
    """Sent packets of one connection."""

    def __init__(self, controller: CongestionController) -> None:
        self.rtt = RttEstimator()
        self.controller = controller
        self.sent = SentPackets()
        self.probes = 0
        """Packets that may be sent now regardless of the congestion window."""
        self.timeouts = 0
        """Probe timeouts since the last new acknowledgement."""
        self.probing = True
        """Whether probe timeouts are active; they are needed where packets can get lost."""
        self._largest_acked = -1
        self._sampled_at = float("inf")
        """Time of the first round-trip sample."""
        self._doubted_at: float | None = None
        """When a sample was doubted; None from the next ordinary one on."""
        self._heard_at = float("inf")
        """When the peer was last heard of; infinite before the first time."""
        self._probe_from = 0.0
        """When the probe timeout began: with the first packet in flight, the last acknowledgement
        or the last timeout. What is sent meanwhile does not put it off, so that small messages in
        quick succession are probed for as well."""
        self._loss_deadline: float | None = None
        self._packet_threshold = PACKET_THRESHOLD
        self._time_threshold = TIME_THRESHOLD
        self._marked = 0
        self._named: list[tuple[int, int]] = []
        """The runs of the last ACK. The next one repeats most of them, where packets get lost."""

    # Input.

    def on_train(
        self,
        fragments: Sequence[int] | NDArray[np.uint32],
        message: int,
        size: int,
        last_size: int,
        *,
        app_limited: bool,
        now: float,
    ) -> None:
        """Record a train just sent, with one fragment of a message in each packet.

        Parameters
        ----------
        message : int
            Key of the message.
        size, last_size : int
            Bytes of every packet except the last, and of the last.
        app_limited : bool
            Whether nothing more was left to send.
        """
        count = len(fragments)
        train = self._begin_train(size * (count - 1) + last_size, app_limited=app_limited, now=now)
        self.sent.record_train(fragments, message, size, last_size, train)
        self.probes = max(self.probes - count, 0)

    def on_packet(
        self, size: int, contents: PacketContents | None, *, eliciting: bool, now: float
    ) -> None:
        """Record any other packet."""
        if not eliciting:
            self.sent.record_packet(size, SentTrain(now, None), contents, eliciting=False)
            return
        train = self._begin_train(size, app_limited=True, now=now)
        self.sent.record_packet(size, train, contents, eliciting=True)
        self.probes = max(self.probes - 1, 0)

    def on_ack(self, ack: Ack, now: float) -> Outcome:
        """Process an ACK.

        Raises
        ------
        ViolationError
            If the ACK names a packet that was never sent.
        """
        sent = self.sent
        largest = ack.ranges[0][1]
        if largest >= sent.next_number:
            raise ViolationError(
                f"acknowledgement of packet {largest}; only {sent.next_number} were sent"
            )
        outcome = Outcome()
        newest = self._record_acked(ack.ranges, outcome, now)
        for number in _named_numbers(sent.contents, ack.ranges):
            outcome.arrived_contents.append(sent.contents.pop(number))
        self._largest_acked = max(self._largest_acked, largest)
        if newest < 0:
            return outcome
        train = sent.train_of(newest)
        rtt = None
        ack_delay = min(ack.delay_seconds, ACK_DELAY_SECONDS_MAX)
        if newest == largest:
            rtt = self._credible(max(now - train.sent_at, 1e-6), train.sent_at, now)
        if rtt is not None:
            self.rtt.update(rtt, ack_delay)
            self._sampled_at = min(self._sampled_at, now)
        self._heard_at = self._probe_from = now
        self.timeouts = self.probes = 0
        self._detect_lost(outcome, now)
        marked, self._marked = ack.marked - self._marked, max(ack.marked, self._marked)
        self.controller.on_ack(
            AckSample(
                now=now,
                acked_bytes=outcome.acked_bytes,
                in_flight=sent.bytes_in_flight,
                departure=train.departure,
                sent_at=train.sent_at,
                number=newest,
                next_number=sent.next_number,
                ack_delay=ack_delay,
                rtt=rtt,
                smoothed_rtt=self.rtt.smoothed,
                marked=max(marked, 0),
            )
        )
        sent.advance(now - 3 * self.probe_timeout)
        return outcome

    def on_heard(self, now: float) -> None:
        """Record a sign of life, which ends a long silence: what is in flight is probed for."""
        self._heard_at = now

    def on_timeout(self, now: float) -> tuple[Outcome, bool]:
        """Act on `deadline`.

        Returns
        -------
        outcome : Outcome
            Packets that count as lost now.
        probing : bool
            Whether it was a probe timeout, after which the caller has to call `begin_probe`.
        """
        outcome = Outcome()
        if self._loss_deadline is not None and now >= self._loss_deadline:
            self._detect_lost(outcome, now)
            return outcome, False
        probe_deadline = self._probe_deadline()
        if probe_deadline is None or now < probe_deadline:
            return outcome, False
        self.timeouts += 1
        self._probe_from = now
        return outcome, True

    def begin_probe(self) -> None:
        """Set `probes`, after a probe timeout.

        The caller sends new data as probes, or what `oldest_in_flight` returns if there is none.
        """
        self.probes = PROBE_PACKETS
        if self.timeouts <= BURST_PROBES:
            packets, size = self.sent.packets_in_flight, self.sent.bytes_in_flight
            most = min(BURST_PROBE_PACKETS_MAX, int(self.controller.product_bytes * packets / size))
            if not self.rtt.latest:
                most = COLD_PROBE_PACKETS_MAX
            wanted = max(packets, BURST_PROBE_PACKETS_MIN << self.timeouts - 1)
            self.probes = max(min(wanted, most), PROBE_PACKETS)

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

    def oldest_in_flight(self, count: int) -> tuple[Fragments, list[PacketContents]]:
        """Return the contents of the oldest packets in flight."""
        sent = self.sent
        waiting = np.flatnonzero(sent.fates(sent.oldest, sent.next_number) == Fate.IN_FLIGHT)
        numbers = waiting[:count] + sent.oldest
        return sent.fragments(numbers), self._contents_of(numbers)

    # Private.

    def _begin_train(self, size: int, *, app_limited: bool, now: float) -> SentTrain:
        in_flight = self.sent.bytes_in_flight
        if not in_flight:
            self._probe_from = now
        departure = self.controller.on_sent(size, in_flight, app_limited=app_limited, now=now)
        return SentTrain(now, departure)

    def _probe_deadline(self) -> float | None:
        if not self.sent.packets_in_flight or not self.probing:
            return None
        wait = self.probe_timeout
        if self.timeouts:
            wait *= PROBE_BACKOFF
            if self._probe_from - self._heard_at >= LONG_SILENCE_SECONDS:
                wait = max(wait, LONG_SILENCE_PROBE_SECONDS)
        return self._probe_from + wait

    def _credible(self, rtt: float, sent_at: float, now: float) -> float | None:
        """Return a sample; None if a pause explains it better than the path."""
        patience = max(RTT_DOUBTED_TIMEOUTS * self.probe_timeout, RTT_DOUBTED_SECONDS)
        if rtt <= patience or not self.rtt.latest:
            self._doubted_at = None
        elif self._doubted_at is not None:
            return rtt if sent_at > self._doubted_at else None
        elif now - self._heard_at >= rtt / 2:
            self._doubted_at = now
            return None
        return rtt

    def _record_acked(self, ranges: Sequence[tuple[int, int]], outcome: Outcome, now: float) -> int:
        """Record acknowledged packets; return the highest newly acknowledged number, or -1."""
        sent = self.sent
        newest = -1
        named, self._named = set(self._named), list(ranges)
        for run in ranges:
            first, last = run
            if last < sent.oldest:
                break
            if run in named:
                continue
            first, stop = max(first, sent.oldest), last + 1
            fates = sent.fates(first, stop)
            count = sent.count(Fate.IN_FLIGHT, first, stop)
            numbers: slice | NDArray[np.int64] = slice(first, stop)
            if count < stop - first:
                if sent.count(Fate.SKIPPED, first, stop):
                    raise ViolationError(
                        f"acknowledgement of a skipped packet number from {first} to {last}"
                    )
                self._record_late(first, fates, outcome, now)
                fates[fates == Fate.UNASKED] = Fate.ACKED
                if not count:
                    continue
                new = np.flatnonzero(fates == Fate.IN_FLIGHT)
                fates[new] = Fate.ACKED
                numbers = new + first
                newest = max(newest, int(numbers[-1]))
            else:
                fates[:] = Fate.ACKED
                newest = max(newest, last)
            sizes = sent.sizes(numbers).tolist()
            size = sum(sizes)
            outcome.acked_bytes += size
            outcome.largest_acked_bytes = max(outcome.largest_acked_bytes, *sizes)
            sent.bytes_in_flight -= size
            sent.packets_in_flight -= count
            outcome.arrived.append(sent.fragments(numbers))
        return newest

    def _record_late(
        self, first: int, fates: NDArray[np.uint8], outcome: Outcome, now: float
    ) -> None:
        """Take back losses that were only late, and wait longer from now on."""
        late = np.flatnonzero(fates == Fate.LOST)
        if not len(late):
            return
        fates[late] = Fate.ACKED
        self.sent.lost_packets -= len(late)
        numbers = late + first
        oldest = int(numbers[0])
        behind = self._largest_acked - oldest + 1
        self._packet_threshold = min(max(self._packet_threshold, behind), PACKET_THRESHOLD_MAX)
        smoothed = self.rtt.smoothed
        lateness = now - self.sent.sent_at(oldest) - smoothed
        wanted = min(1 + 1.25 * lateness / smoothed, TIME_THRESHOLD_MAX)
        self._time_threshold = max(self._time_threshold, wanted)
        sizes = self.sent.sizes(numbers)
        probes = _probe_sizes(self._contents_of(numbers))
        if len(probes) < len(late):
            self.controller.on_spurious_loss(int(sizes.sum()) - sum(probes), now)
        outcome.largest_acked_bytes = max(outcome.largest_acked_bytes, int(sizes.max()))
        outcome.spurious_losses += len(late)
        outcome.arrived.append(self.sent.fragments(numbers))

    def _detect_lost(self, outcome: Outcome, now: float) -> None:
        self._loss_deadline = None
        sent = self.sent
        low, stop = sent.oldest, self._largest_acked + 1
        if stop <= low or not sent.has_in_flight(low, stop):
            return
        fates = sent.fates(low, stop)
        waiting = np.flatnonzero(fates == Fate.IN_FLIGHT)
        patience = self._time_threshold * max(self.rtt.smoothed, self.rtt.latest)
        delay = max(patience, GRANULARITY_SECONDS)
        times = sent.sent_times(low, low + len(fates))[waiting]
        overtaken = self._largest_acked - self._packet_threshold
        # Numbers and times ascend, so the lost packets come first. Without the margin, rounding
        # could set the timer to `now` again and again.
        count = max(
            int(np.searchsorted(times, now - delay + 1e-7, "right")),
            int(np.searchsorted(waiting, overtaken - low, "right")),
        )
        if count < len(waiting):
            self._loss_deadline = float(times[count]) + delay
        if not count:
            return
        lost = waiting[:count]
        fates[lost] = Fate.LOST
        numbers = lost + low
        sizes = sent.sizes(numbers)
        size = int(sizes.sum())
        sent.bytes_in_flight -= size
        sent.packets_in_flight -= count
        sent.lost_packets += count
        outcome.lost = sent.fragments(numbers)
        outcome.lost_contents = self._contents_of(numbers)
        probes = _probe_sizes(outcome.lost_contents)
        outcome.lost_packets = count - len(probes)
        outcome.smallest_lost_bytes = int(sizes.min())
        if len(probes) < count:  # the loss of a size probe says nothing about congestion
            size -= sum(probes)
            self.controller.on_lost(size, float(times[count - 1]), sent.bytes_in_flight, now)
            self._notice_persistent_congestion(fates, lost, times)

    def _notice_persistent_congestion(
        self, fates: NDArray[np.uint8], lost: NDArray[np.int64], times: NDArray[np.float64]
    ) -> None:
        # Only an unbroken period of losses counts: no packet in it was acknowledged. It also begins
        # after the first sample, because before that the timeout was a guess.
        arrived = np.flatnonzero(fates[lost[0] : lost[-1]] == Fate.ACKED)
        first = int(np.searchsorted(lost, lost[0] + arrived[-1])) if len(arrived) else 0
        sampled = int(np.searchsorted(times[: len(lost)], self._sampled_at, "right"))
        period = times[max(first, sampled) : len(lost)]
        if not len(period):
            return
        lasted = float(period[-1]) - float(period[0])
        if lasted > PERSISTENT_CONGESTION_TIMEOUTS * self.probe_timeout:
            self.controller.on_persistent_congestion()

    def _contents_of(self, numbers: NDArray[np.int64]) -> list[PacketContents]:
        contents = self.sent.contents
        if not contents:
            return []
        return [contents[n] for n in numbers.tolist() if n in contents]


def _probe_sizes(contents: list[PacketContents]) -> list[int]:
    return [each.probe_bytes for each in contents if each.probe_bytes]


def _named_numbers(known: dict[int, PacketContents], runs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the numbers in `known`, which ascend, that are in `runs`, which descend.

    A run may reach far behind the remembered packets, and there may be many runs. So this iterates
    over the named or the known numbers, whichever are fewer.
    """
    if not known:
        return []
    lowest = next(iter(known))
    runs = [(max(first, lowest), last) for first, last in reversed(runs) if last >= lowest]
    if sum(last - first + 1 for first, last in runs) <= len(known):
        numbers = chain.from_iterable(range(first, last + 1) for first, last in runs)
        return [number for number in numbers if number in known]
    firsts = [first for first, _ in runs]
    named = []
    for number in takewhile(lambda number: number <= runs[-1][1], known):
        at = bisect_right(firsts, number)
        if at and number <= runs[at - 1][1]:
            named.append(number)
    return named


def by_message(fragments: Fragments) -> list[tuple[int, list[int]]]:
    """Split the fragments of several packets by message; packets without one are left out."""
    keys, indexes = fragments[0].tolist(), fragments[1].tolist()
    if not keys:
        return []
    if keys.count(keys[0]) == len(keys):
        return [(keys[0], indexes)] if keys[0] >= 0 else []
    cuts = [at for at in range(1, len(keys)) if keys[at] != keys[at - 1]]
    return [
        (keys[start], indexes[start:stop])
        for start, stop in zip([0, *cuts], [*cuts, len(keys)], strict=True)
        if keys[start] >= 0
    ]
