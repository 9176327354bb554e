"""How fast bytes arrive: delivery rates measured from train to acknowledgement.

What was acknowledged between sending a train and the acknowledgement of it, over the time that
took, is a sample of the rate the path delivers (draft-ietf-ccwg-bbr, "Delivery Rate Samples").
Acknowledgements can come faster than the data was delivered, when something holds them back and
lets them go together; nothing is delivered faster than it was sent, so the longer of the time
taken to send and the time taken to acknowledge counts.
"""

from collections import deque
from typing import TypeAlias

Snapshot: TypeAlias = tuple[int, int, float, float, bool, int]
"""The state in which a train left: restarts and bytes delivered so far, when the latter was
noted, when the train left whose acknowledgement was the last, whether the application set the
pace, and the bytes in flight."""


class WindowedMax:
    """The largest value of the last few rounds.

    Parameters
    ----------
    rounds : int
        How many.
    """

    __slots__ = ("_kept", "_rounds", "value")

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._kept: deque[tuple[int, float]] = deque()
        self.value = 0.0
        """0 before the first update."""

    def update(self, at: int, value: float) -> None:
        """Learn a value of the round `at`; only then are old ones forgotten."""
        kept = self._kept
        # A value counts until there is one as large that will be kept for longer.
        while kept and kept[-1][1] <= value:
            kept.pop()
        if not kept or kept[-1][0] != at:
            kept.append((at, value))
        while kept[0][0] <= at - self._rounds:
            kept.popleft()
        self.value = kept[0][1]


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

    def on_sent(self, size: int, in_flight: int, app_limited: bool, now: float) -> Snapshot:
        """Note a train, and return what `sample` needs to know of this moment."""
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
            # The same until it is passed: after a pause, the path is unproven for a round trip.
            delivered <= self._app_limited_until,
            in_flight,
        )

    def sample(
        self, acked: int, snapshot: Snapshot, sent_at: float, now: float, shortest: float
    ) -> float:
        """Note an ACK, and return the rate it shows.

        Parameters
        ----------
        acked : int
            Bytes newly acknowledged.
        snapshot : Snapshot
            Of the train of the newest packet among them.
        sent_at : float
            When that train left.
        now : float
        shortest : float
            A time that cannot be shorter, in seconds: the round trip.

        Returns
        -------
        float
            Bytes per second; 0 if nothing can be said.
        """
        self._delivered += acked
        self._delivered_at = now
        restarts, delivered, delivered_at, first_sent_at, _, _ = snapshot
        self._first_sent_at = sent_at
        if restarts != self._restarts:
            return 0.0
        interval = max(sent_at - first_sent_at, now - delivered_at)
        return (self._delivered - delivered) / interval if interval >= shortest else 0.0

    def is_current(self, snapshot: Snapshot) -> bool:
        """Whether a train left since the last restart."""
        return snapshot[0] == self._restarts

    def restart(self) -> None:
        """Let trains that are under way give no samples: they were sent in another world."""
        self._restarts += 1
        self._app_limited_until = -1


class AckAggregation:
    """How many bytes more than the bandwidth explains are acknowledged at once.

    Acknowledgements come in lumps: of 32 packets, of a whole train, of what a busy peer found
    waiting. Until a lump comes its bytes are in flight, and a window that leaves no room for them
    stops the sender in between.

    Parameters
    ----------
    rounds : int
        Over how many rounds the largest lump is remembered.
    """

    __slots__ = ("_bytes", "_largest", "_since")

    def __init__(self, rounds: int) -> None:
        self._largest = WindowedMax(rounds)
        self._since = 0.0
        self._bytes = 0

    @property
    def extra_bytes(self) -> float:
        """Return the size of the largest lump."""
        return self._largest.value

    def on_ack(self, acked: int, bandwidth: float, at_round: int, now: float) -> None:
        """Note an ACK of `acked` bytes."""
        expected = bandwidth * (now - self._since)
        if self._bytes <= expected:
            # The bandwidth has caught up with the lump; the next one begins here.
            self._since = now
            self._bytes = 0
            expected = 0.0
        self._bytes += acked
        self._largest.update(at_round, self._bytes - expected)
