"""Pacer: a token bucket that spreads packets over the round trip (RFC 9002, section 7.7)."""

from typing import Final

BURST_SECONDS: Final = 0.002
"""What may leave at once is what the rate allows in this time: two ticks of an event loop's
timer, so that coarse timers do not slow a connection down."""

BURST_PACKETS_MIN: Final = 10
"""Nor is less than this held back: RFC 9002 permits an initial window of ten at once."""


class Pacer:
    """Decides when the next packet may leave.

    Parameters
    ----------
    datagram_bytes : int
        Largest datagram sent.
    """

    __slots__ = ("_at", "_burst_min", "_tokens")

    def __init__(self, datagram_bytes: int) -> None:
        self._burst_min = float(BURST_PACKETS_MIN * datagram_bytes)
        self._tokens = self._burst_min
        self._at = 0.0

    def ready_at(self, size: int, rate: float, now: float) -> float:
        """Return when a packet of `size` bytes may leave: `now` or later.

        Parameters
        ----------
        size : int
            Bytes of the packet.
        rate : float
            Bytes per second.
        now : float
            Never less than in an earlier call.
        """
        burst = max(self._burst_min, rate * BURST_SECONDS)
        self._tokens = min(self._tokens + max(now - self._at, 0.0) * rate, burst)
        self._at = now
        if self._tokens >= min(size, burst):
            return now
        return now + (size - self._tokens) / rate

    def on_sent(self, size: int) -> None:
        """Note that a packet of `size` bytes left."""
        self._tokens -= size
