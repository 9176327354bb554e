"""`FirstWindow`: what is sent over a path of which little is known, and how fast.

Dozens of flows may start in one moment, as the workers of a round do. If each sends its first
window at once, the last ones lose all of theirs. So in the beginning the window is spread over a
round trip, at a pace that differs a little from flow to flow: at one pace all would lose to the
first of them. Its first packets leave faster, so that a short message does not wait.
"""

from collections.abc import Callable
from typing import Final

from gradwire_protocol.congestion.controller import UNKNOWN_RTT_SECONDS, WINDOW_PACKETS_MIN

SPREAD: Final = 0.1
"""The window takes a round trip, longer or shorter by up to this share."""

FIRST_GAIN: Final = 2.3
"""The gain of STARTUP in the beginning: with 2.77, dozens of flows exceed the path by far before
any of them hears of it."""

BURST_PACKETS: Final = 6
"""As long as fewer are in flight, packets leave with that gain."""

LONG_RTT_SECONDS: Final = 0.01
PACKETS_MIN: Final = 10
"""On paths shorter than this the window has fewer packets, down to these, because it grows there in
no time."""

BEGINNING_PACKETS: Final = 256
"""The beginning is over when so many packets have arrived."""


class FirstWindow:
    """The least window and the least pacing rate of STARTUP.

    Parameters
    ----------
    packets : int
        Most packets of the window.
    datagram_bytes : int
    random : callable
        Returns numbers in [0, 1).
    """

    __slots__ = (
        "_burst_bytes",
        "_burst_rate",
        "_datagram_bytes",
        "_left",
        "_spread_gain",
        "_spread_rate",
        "most_bytes",
    )

    def __init__(self, packets: int, datagram_bytes: int, random: Callable[[], float]) -> None:
        self.most_bytes = packets * datagram_bytes
        """The window on a long path."""
        self._datagram_bytes = datagram_bytes
        self._burst_bytes = BURST_PACKETS * datagram_bytes
        self._left = BEGINNING_PACKETS * datagram_bytes
        self._spread_gain = 1.0 + SPREAD * (2 * random() - 1)
        self._burst_rate = self._spread_rate = self.most_bytes / UNKNOWN_RTT_SECONDS

    def set_datagram_bytes(self, datagram_bytes: int) -> None:
        """Let it have as many packets of another size."""
        self.most_bytes = self.most_bytes // self._datagram_bytes * datagram_bytes
        self._burst_bytes = BURST_PACKETS * datagram_bytes
        self._datagram_bytes = datagram_bytes

    def lasts_after(self, acked: int) -> bool:
        """Record that so many bytes have arrived; return whether this is still the beginning."""
        self._left -= acked
        return self._left > 0

    def bytes(self, rtt: float) -> int:
        """Return how many bytes may be in flight on a path with this round trip."""
        share = min(rtt / LONG_RTT_SECONDS, 1.0)
        least = min(PACKETS_MIN * self._datagram_bytes, self.most_bytes)
        return max(int(share * self.most_bytes), least)

    def halve(self) -> bool:
        """Halve it, after a round that lost too much; return whether that was possible."""
        before = self.most_bytes
        self.most_bytes = max(before // 2, WINDOW_PACKETS_MIN * self._datagram_bytes)
        return self.most_bytes < before

    def set_rates(self, window_bytes: float, rtt: float, rate: float) -> None:
        """Set the rates for a window, to at least `rate`."""
        self._burst_rate = max(rate, FIRST_GAIN * window_bytes / rtt)
        self._spread_rate = max(rate, self._spread_gain * window_bytes / rtt)

    def rate(self, in_flight: int) -> float:
        """Return the pacing rate, in bytes per second, with these bytes in flight."""
        return self._burst_rate if in_flight < self._burst_bytes else self._spread_rate
