"""Delivery rate: how fast bytes arrive, measured from train to acknowledgement.

A sample is the bytes acknowledged between sending a train and receiving its acknowledgement,
divided by that time (draft-ietf-ccwg-bbr, "Delivery Rate Samples"). Acknowledgements that were held
back can come faster than the data was delivered. Data is never delivered faster than it was sent,
so the longer of the sending time and the acknowledging time counts.
"""

from collections import deque
from typing import TypeAlias

Departure: TypeAlias = tuple[int, int, float, float, bool, int]
"""The state when a train left: number of restarts; bytes delivered, and when that was recorded;
when the last acknowledged train left; whether the application limits the rate; bytes in flight."""


class WindowedMax:
    """The largest value of the last `rounds` rounds."""

    __slots__ = ("_candidates", "_rounds", "value")

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._candidates: deque[tuple[int, float]] = deque()
        self.value = 0.0
        """0 before the first update."""

    def update(self, at: int, value: float) -> None:
        """Record a value of the round `at`; old values expire only here."""
        candidates = self._candidates
        # A value can be dropped when a later one is at least as large.
        while candidates and candidates[-1][1] <= value:
            candidates.pop()
        if not candidates or candidates[-1][0] != at:
            candidates.append((at, value))
        while candidates[0][0] <= at - self._rounds:
            candidates.popleft()
        self.value = candidates[0][1]


class DeliveryRate:
    """Measures the delivery rate of one connection."""

    __slots__ = (
        "_app_limited_until",
        "_delivered",
        "_delivered_at",
        "_first_sent_at",
        "_restarts",
    )

    def __init__(self) -> None:
        self._restarts = 0
        self._delivered = 0
        self._delivered_at = 0.0
        self._first_sent_at = 0.0
        self._app_limited_until = -1

    def on_sent(self, size: int, in_flight: int, app_limited: bool, now: float) -> Departure:
        """Record a train; return the state that `sample` needs later."""
        delivered = self._delivered
        if not in_flight:
            self._first_sent_at = self._delivered_at = now
        if app_limited:
            self._app_limited_until = delivered + in_flight + size
        return (
            self._restarts,
            delivered,
            self._delivered_at,
            self._first_sent_at,
            # After a pause the path is unproven for a round trip, until this is passed.
            delivered <= self._app_limited_until,
            in_flight,
        )

    def sample(
        self, acked: int, departure: Departure, sent_at: float, now: float, shortest: float
    ) -> float:
        """Record an ACK; return the rate that it shows.

        Parameters
        ----------
        acked : int
            Bytes newly acknowledged.
        departure : Departure
            State when the train of the newest packet among them left.
        sent_at : float
            When that train left.
        shortest : float
            Shortest plausible interval, in seconds: the round trip.

        Returns
        -------
        float
            Bytes per second; 0 if the ACK shows none.
        """
        self._delivered += acked
        self._delivered_at = now
        restarts, delivered, delivered_at, first_sent_at, _, _ = departure
        self._first_sent_at = sent_at
        if restarts != self._restarts:
            return 0.0
        interval = max(sent_at - first_sent_at, now - delivered_at)
        return (self._delivered - delivered) / interval if interval >= shortest else 0.0

    def is_current(self, departure: Departure) -> bool:
        """Return whether a train left after the last restart."""
        return departure[0] == self._restarts

    def restart(self) -> None:
        """Ignore trains under way, which were sent under other conditions."""
        self._restarts += 1
        self._app_limited_until = -1


class AckAggregation:
    """Bytes acknowledged at once beyond what the bandwidth explains.

    Acknowledgements come in lumps: of 32 packets, of a whole train, or of all that a busy peer
    found waiting. The bytes of a lump stay in flight until it arrives, and a window without room
    for them stops the sender meanwhile. The largest lump of the last `rounds` rounds counts.
    """

    __slots__ = ("_bytes", "_largest", "_since")

    def __init__(self, rounds: int) -> None:
        self._largest = WindowedMax(rounds)
        self._since = 0.0
        self._bytes = 0

    @property
    def extra_bytes(self) -> float:
        """Size of the largest lump."""
        return self._largest.value

    def on_ack(self, acked: int, bandwidth: float, at_round: int, now: float) -> None:
        """Record an ACK of `acked` bytes."""
        expected = bandwidth * (now - self._since)
        if self._bytes <= expected:
            # The bandwidth has caught up with the lump; the next one begins here.
            self._since = now
            self._bytes = 0
            expected = 0.0
        self._bytes += acked
        self._largest.update(at_round, self._bytes - expected)
