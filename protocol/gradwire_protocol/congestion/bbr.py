"""BbrLite: sends at the rate the path was seen to deliver, with just enough in flight.

Two numbers describe a path: the bandwidth, which is the largest delivery rate of the last rounds,
and the round trip without a queue. Their product is the bytes in flight when the path is busy and
its queue empty. This is version 1 of BBR [1]_ with the constants of version 3 [2]_. `LossCap`
handles losses: a loss by itself does not lower the rate, so this controller fills paths that TCP's
Cubic cannot.

::

    STARTUP --- full ---> DRAIN --- queue empty ---> PROBE_BANDWIDTH
       |                    |                           |       ^
       `--------------------+----- round trip old ------'       |
                            |                                   |
                        PROBE_RTT ---------- measured ----------'

STARTUP doubles the rate every round until the bandwidth stops growing. In the beginning it only
keeps the rate while a queue fills, as HyStart++ does (RFC 9406): others may have started in the
same moment. PROBE_BANDWIDTH looks for
more bandwidth: in one round of eight it sends a quarter more than the path delivers, and in the
next as much less. PROBE_RTT keeps little in flight, so that the round trip is measured without our
own queue. An application that pauses makes PROBE_RTT unnecessary.

References
----------
.. [1] draft-cardwell-iccrg-bbr-congestion-control-00
.. [2] draft-ietf-ccwg-bbr
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from gradwire_protocol.congestion.controller import (
    WINDOW_PACKETS_INITIAL,
    WINDOW_PACKETS_MIN,
    AckSample,
    CongestionController,
)
from gradwire_protocol.congestion.delivery_rate import (
    AckAggregation,
    DeliveryRate,
    Departure,
    WindowedMax,
)
from gradwire_protocol.congestion.first_window import FIRST_GAIN, FirstWindow
from gradwire_protocol.congestion.loss_cap import LossCap
from gradwire_protocol.congestion.round_trip import RoundTrip

STARTUP_GAIN: Final = 2.77
DRAIN_GAIN: Final = 0.5
PROBE_GAINS: Final = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
"""Pacing gains of PROBE_BANDWIDTH, a round each."""

WINDOW_GAIN: Final = 2.0
"""Window as a multiple of bandwidth times round trip, because acknowledgements come late."""

WINDOW_GAIN_FILLING: Final = 1.25
"""The same in the beginning, while a queue fills."""

PACING_MARGIN: Final = 0.99
"""Share of the bandwidth at which packets are paced, so that queues drain in the long run."""

BANDWIDTH_ROUNDS: Final = 10
SAMPLE_RTT_SHARE_MIN: Final = 0.9
"""Shortest time for a delivery rate sample, as a share of the round trip."""

FULL_GROWTH: Final = 1.25
FULL_ROUNDS: Final = 3
"""The path is full when the bandwidth has not grown by this factor in this many rounds."""

STARTUP_LOST_PACKETS: Final = 8
STARTUP_LOSS_MAX: Final = 0.10
"""The path is also full after a round without growth that loses more than the first limit and shows
a queue, or after two such rounds that exceed both limits."""

REPEAT_GROWTH: Final = 1.1
"""If a probe raises the bandwidth by this factor, it is repeated at once. A path that has become
free is then filled in a few rounds instead of dozens."""

PROBE_RTT_SECONDS: Final = 0.2
PROBE_RTT_SHARE: Final = 0.5
"""Share of the pipe that stays in flight while the round trip is measured."""

QUANTUM_SECONDS: Final = 0.001
QUANTUM_PACKETS_MIN: Final = 2
QUANTUM_BYTES_MAX: Final = 64_000
"""Paced trains cover this time, within these bounds."""

WINDOW_QUANTA: Final = 3
"""Trains in flight beyond what the path holds: one leaving, one arriving, one being
acknowledged."""


class Phase(Enum):
    """The phase of a connection; the diagram above shows when it changes."""

    STARTUP = auto()
    DRAIN = auto()
    PROBE_BANDWIDTH = auto()
    PROBE_RTT = auto()


class BbrLite(CongestionController):
    """Model-based control.

    Parameters
    ----------
    random : callable
        Returns numbers in [0, 1), so that flows on one path do not probe in step.
    """

    __slots__ = (
        "_aggregation",
        "_bandwidth",
        "_bandwidth_before",
        "_begins",
        "_cap",
        "_cycle",
        "_cycle_at",
        "_datagram_bytes",
        "_delivery",
        "_first",
        "_full",
        "_full_rounds",
        "_gain",
        "_lossy_rounds",
        "_lost",
        "_marked",
        "_measured_round",
        "_measured_until",
        "_pauses",
        "_pipe",
        "_proven",
        "_quiet_bytes",
        "_random",
        "_round",
        "_round_end",
        "_round_trip",
        "pacing_rate",
        "phase",
        "window_bytes",
    )

    phase: Phase
    _bandwidth_before: float
    """Bandwidth when it last grew in STARTUP, or when the last probe began."""
    _begins: bool
    """Whether the first window still lasts."""
    _full: bool
    """Whether STARTUP is over."""
    _lost: int
    """Bytes lost since the last round trip was measured, which shows whether the queue is full."""
    _measured_until: float | None
    """Earliest end of PROBE_RTT; None until the bytes in flight have fallen to its window."""
    _pauses: bool
    """Whether nothing waited to be sent after the last train."""
    _pipe: float
    """Bytes in flight that keep the path busy."""
    _proven: bool
    """Whether the bandwidth is known from a time when the application did not limit it."""
    _quiet_bytes: float
    """With at most this many bytes in flight, a queue is not ours."""

    def __init__(self, datagram_bytes: int, random: Callable[[], float]) -> None:
        self._datagram_bytes = datagram_bytes
        self._random = random
        self._delivery = DeliveryRate()
        self._round = 0
        self._round_end = 0
        self._restart(WINDOW_PACKETS_INITIAL)

    @property
    def product_bytes(self) -> float:
        """Bandwidth times round trip; 0 while nothing is known."""
        return self._bandwidth.value and self._bandwidth.value * self._round_trip.minimum

    # Input.

    def on_sent(self, size: int, in_flight: int, *, app_limited: bool, now: float) -> Departure:
        """Record a train; return the state in which it left."""
        self._pauses = app_limited
        if self._begins and self.phase is Phase.STARTUP:
            self.pacing_rate = self._first.rate(in_flight + size)
        return self._delivery.on_sent(size, in_flight, app_limited, now)

    def on_ack(self, sample: AckSample) -> None:
        """Learn from an ACK."""
        departure = sample.departure
        assert isinstance(departure, tuple)
        _, _, _, _, app_limited, in_flight_then = departure
        now, acked, rtt = sample.now, sample.acked_bytes, sample.rtt
        bandwidth, round_trip, cap = self._bandwidth, self._round_trip, self._cap
        if rtt is not None and self._delivery.is_current(departure):
            quiet = in_flight_then <= self._quiet_bytes
            round_trip.on_sample(rtt, sample.ack_delay, quiet, self._round, now)
            if self._lost and round_trip.shows_full_queue(rtt):
                cap.overflowed += self._lost
            self._lost = 0
        shortest = SAMPLE_RTT_SHARE_MIN * round_trip.minimum
        rate = self._delivery.sample(acked, departure, sample.sent_at, now, shortest)
        # A sample limited by the application shows what it sent, not what the path carries.
        if rate > bandwidth.value or (rate and not app_limited):
            bandwidth.update(self._round, rate)
            self._proven |= not app_limited
        self._aggregation.on_ack(acked, bandwidth.value, self._round, now)
        cap.acked += acked
        if self._begins:
            self._begins = self._first.lasts_after(acked)
        self._marked += sample.marked
        if sample.number >= self._round_end:
            self._round += 1
            self._round_end = sample.next_number
            self._end_round(sample.in_flight, app_limited, now)
        self._change_phase(sample.in_flight, now)
        self._set_rate_and_window(sample.in_flight, sample.smoothed_rtt)

    def on_lost(self, size: int, sent_at: float, in_flight: int, now: float) -> None:
        """Count the loss; the end of the round decides about consequences."""
        self._cap.lost += size
        self._lost += size

    def on_spurious_loss(self, size: int, now: float) -> None:
        """Remove it from the count."""
        self._cap.lost = max(self._cap.lost - size, 0)

    def on_persistent_congestion(self) -> None:
        """Restart with the smallest window."""
        self._restart(WINDOW_PACKETS_MIN)

    def on_path_changed(self) -> None:
        """Restart with the initial window."""
        self._restart(WINDOW_PACKETS_INITIAL)

    def set_datagram_bytes(self, datagram_bytes: int) -> None:
        """Use another size from the next ACK on."""
        self._first.set_datagram_bytes(datagram_bytes)
        self._datagram_bytes = datagram_bytes

    # Private.

    def _restart(self, packets: int) -> None:
        """Forget the model; until there is a new one, `packets` may be in flight."""
        self._delivery.restart()
        self._bandwidth = WindowedMax(BANDWIDTH_ROUNDS)
        self._aggregation = AckAggregation(BANDWIDTH_ROUNDS)
        self._round_trip = RoundTrip()
        self._cap = LossCap()
        self._lost = 0
        self._marked = 0
        self._full = False
        self._pauses = False
        self._proven = False
        self._full_rounds = 0
        self._lossy_rounds = 0
        self._bandwidth_before = 0.0
        self._cycle = 0
        self._cycle_at = 0.0
        self._measured_until = None
        self._measured_round = 0
        self._pipe = 0.0
        self._quiet_bytes = 0.0
        self._enter(Phase.STARTUP, STARTUP_GAIN)
        self._first = FirstWindow(packets, self._datagram_bytes, self._random)
        self._begins = True
        self.window_bytes = packets * self._datagram_bytes
        self.pacing_rate = self._first.rate(0)

    def _end_round(self, in_flight: int, app_limited: bool, now: float) -> None:
        marked = self._marked > 0
        if self.phase is Phase.STARTUP:
            self._check_pipe_full(marked or self._round_trip.queued, app_limited)
        else:
            self._cap.end_round(
                gain=self._gain,
                marked=marked,
                unqueued=self._has_room(marked=marked),
                in_flight=in_flight,
                pipe=self._pipe,
                datagram_bytes=self._datagram_bytes,
            )
            if self.phase is Phase.PROBE_BANDWIDTH:
                self._next_probe(now)
        self._marked = 0
        self._round_trip.end_round()

    def _check_pipe_full(self, queued: bool, app_limited: bool) -> None:
        """Leave STARTUP when the path is full."""
        cap = self._cap
        if self._bandwidth.value >= FULL_GROWTH * self._bandwidth_before:
            self._bandwidth_before = self._bandwidth.value
            self._full_rounds = self._lossy_rounds = 0
            if self._round_trip.unqueued and not queued:
                # The path has room and no queue, so its losses are its normal ones.
                cap.learn_floor()
        else:
            self._full_rounds += not (app_limited or self._keeps_rate)
            lossy = cap.lost > STARTUP_LOST_PACKETS * self._datagram_bytes and cap.is_lossy(
                1.0, self._datagram_bytes
            )
            self._lossy_rounds += lossy and cap.loss > STARTUP_LOSS_MAX
            overflowing = (lossy and queued) or self._lossy_rounds > 1
            if overflowing and not self._proven and self._first.halve():
                # To leave with what the application happened to send would take seconds to mend.
                self._lossy_rounds = 0
            elif overflowing or self._full_rounds >= FULL_ROUNDS:
                self._full = True
                self._enter(Phase.DRAIN, DRAIN_GAIN)
        cap.reset_counts()

    def _next_probe(self, now: float) -> None:
        """Move to the next gain when this one has lasted a round trip."""
        if now < self._cycle_at + self._round_trip.minimum:
            return
        cycle = (self._cycle + 1) % len(PROBE_GAINS)
        # The result of a probe is known a round later, at the end of the second gain.
        if cycle == 2 and self._bandwidth.value > REPEAT_GROWTH * self._bandwidth_before:
            cycle = 0
        self._begin_probe(cycle, now)

    def _begin_probe(self, cycle: int, now: float) -> None:
        if cycle == 0:
            self._bandwidth_before = self._bandwidth.value
        self._cycle = cycle
        self._cycle_at = now
        self._enter(Phase.PROBE_BANDWIDTH, PROBE_GAINS[cycle])

    def _start_probing(self, now: float) -> None:
        """Begin at a random gain, except the one that compensates for a probe."""
        cycle = int(self._random() * (len(PROBE_GAINS) - 1))
        self._bandwidth_before = self._bandwidth.value
        self._begin_probe(cycle + 1 if cycle else 0, now)

    def _change_phase(self, in_flight: int, now: float) -> None:
        if self.phase is Phase.PROBE_RTT:
            self._measure_round_trip(in_flight, now)
        elif self._round_trip.is_outdated(now):
            self._measured_until = None
            self._enter(Phase.PROBE_RTT, 1.0)
        elif self.phase is Phase.DRAIN and in_flight <= self._pipe:
            self._start_probing(now)

    def _measure_round_trip(self, in_flight: int, now: float) -> None:
        """Wait until little is in flight, then for a fixed time and a whole round."""
        if self._measured_until is None:
            if in_flight <= self.window_bytes:
                self._measured_until = now + PROBE_RTT_SECONDS
                self._measured_round = self._round + 1
        elif now >= self._measured_until and self._round > self._measured_round:
            self._round_trip.renew(now)
            if self._full:
                self._start_probing(now)
            else:
                self._enter(Phase.STARTUP, STARTUP_GAIN)

    def _enter(self, phase: Phase, gain: float) -> None:
        self.phase = phase
        self._gain = gain

    def _has_room(self, *, marked: bool) -> bool:
        """Return whether no packet of this round met a queue, although much was in flight."""
        probing = self.phase is Phase.PROBE_BANDWIDTH
        return probing and self._round_trip.unqueued and not marked

    @property
    def _keeps_rate(self) -> bool:
        """Whether a queue fills in the beginning."""
        return self._begins and self._round_trip.shows_filling_queue

    def _set_rate_and_window(self, in_flight: int, smoothed_rtt: float) -> None:
        bandwidth, datagram_bytes, first = self._bandwidth.value, self._datagram_bytes, self._first
        if not bandwidth:
            first.set_rates(self.window_bytes, smoothed_rtt, 0.0)
            self.pacing_rate = first.rate(in_flight)
            return
        gain, phase = self._gain, self.phase
        window_gain = WINDOW_GAIN
        extra = self._aggregation.extra_bytes
        least = WINDOW_PACKETS_MIN * datagram_bytes
        if phase is Phase.STARTUP:
            gain = FIRST_GAIN if self._begins else gain
            if self._keeps_rate and (in_flight or not self._pauses):
                # After a pause the queue is empty.
                gain, window_gain = 1.0, WINDOW_GAIN_FILLING
            else:
                # A short first message says little about the path.
                least = first.bytes(self._round_trip.minimum) if self._begins else first.most_bytes
                # If acknowledgements come in lumps, the lump has to double.
                extra *= WINDOW_GAIN
        rate = PACING_MARGIN * gain * bandwidth
        quantum = QUANTUM_SECONDS * rate
        quantum = min(max(quantum, QUANTUM_PACKETS_MIN * datagram_bytes), QUANTUM_BYTES_MAX)
        if phase is not Phase.STARTUP:
            self.pacing_rate = rate
        elif self._begins:
            first.set_rates(least, smoothed_rtt, rate)
            self.pacing_rate = first.rate(in_flight)
        else:
            self.pacing_rate = max(rate, STARTUP_GAIN * least / smoothed_rtt)
        product = self.product_bytes
        trains = WINDOW_QUANTA * quantum
        self._pipe = product + trains
        self._quiet_bytes = max(PROBE_RTT_SHARE * product, least)
        window = window_gain * product + trains + extra
        if phase is Phase.PROBE_RTT:
            window = self._quiet_bytes
        self.window_bytes = int(max(min(window, self._cap.window(gain)), least))
