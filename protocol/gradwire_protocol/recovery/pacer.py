"""Pacer: a token bucket that spreads packets over the round trip (RFC 9002, section 7.7)."""

from typing import Final

from gradwire_protocol.limits import TRAIN_BYTES_MAX

BURST_SECONDS: Final = 0.002
"""A burst is what the rate allows in this time. A longer burst would fill queues on the path; a
shorter one would need more exact timers than operating systems have."""

LATE_SECONDS_MAX: Final = 0.01
"""Longest lateness of a timer that the pacer makes up for. Without this, a busy machine would send
below its rate, the path would seem slower than it is, and the rate would fall."""

WAIT_SECONDS_MIN: Final = 0.0002
"""Shortest wait worth a timer; the allowance accumulates meanwhile."""


class Pacer:
    """Decides when the next packets may leave.

    Parameters
    ----------
    least_bytes : int
        Bytes that may always leave at once after a pause.
    """

    __slots__ = ("_at", "_tokens", "_waits", "least_bytes")

    def __init__(self, least_bytes: int) -> None:
        self.least_bytes = least_bytes
        self._tokens = float(least_bytes)
        self._at = 0.0
        self._waits = False

    def allowance(self, rate: float, now: float) -> int:
        """Return how many bytes may leave now.

        Parameters
        ----------
        rate : float
            Bytes per second; may be infinite.
        now : float
            Not earlier than in the previous call.
        """
        elapsed = now - self._at
        self._at = now
        seconds = LATE_SECONDS_MAX if self._waits else BURST_SECONDS
        burst = max(self.least_bytes, rate * seconds)
        self._waits = False
        if rate == float("inf"):
            self._tokens = TRAIN_BYTES_MAX
        elif elapsed > 0.0:
            self._tokens = min(self._tokens + elapsed * rate, burst)
        # Rounded, so that a caller at `ready_at` is not refused for a fraction of a byte.
        return round(self._tokens)

    def ready_at(self, size: int, rate: float, now: float) -> float:
        """Return when `size` bytes may leave, or as many as are worth a timer."""
        self._waits = True
        wait = max((size - self._tokens) / rate, WAIT_SECONDS_MIN)
        return now + wait

    def on_sent(self, size: int) -> None:
        """Record that `size` bytes left."""
        self._tokens -= size
