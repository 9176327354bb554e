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

BURST_PACKETS: Final = 6
"""As long as fewer are in flight, packets leave faster."""

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
        "_beginning_bytes",
        "_burst_rate",
        "_packets",
        "_spread_gain",
        "_spread_rate",
        "acked",
    )

    def __init__(self, packets: int, datagram_bytes: int, random: Callable[[], float]) -> None:
        self.acked = 0
        """Bytes that have arrived, counted by the owner."""
        self._beginning_bytes = BEGINNING_PACKETS * datagram_bytes
        self._packets = packets
        self._spread_gain = 1.0 + SPREAD * (2 * random() - 1)
        self._burst_rate = self._spread_rate = packets * datagram_bytes / UNKNOWN_RTT_SECONDS

    @property
    def lasts(self) -> bool:
        """Whether this is still the beginning."""
        return self.acked < self._beginning_bytes

    def packets(self, rtt: float) -> int:
        """Return how many packets may be in flight on a path with this round trip."""
        if not self.lasts:
            return self._packets
        share = min(rtt / LONG_RTT_SECONDS, 1.0)
        return min(max(int(share * self._packets), PACKETS_MIN), self._packets)

    def halve(self) -> bool:
        """Halve it, after a round that lost too much; return whether that was possible."""
        before = self._packets
        self._packets = max(before // 2, WINDOW_PACKETS_MIN)
        return self._packets < before

    def set_rates(self, window_bytes: float, rtt: float, gain: float, rate: float) -> None:
        """Set the rates for a window, to at least `rate`.

        `gain` is how many times faster than in a round trip it leaves, or only its first packets
        in the beginning.
        """
        self._burst_rate = self._spread_rate = max(rate, gain * window_bytes / rtt)
        if self.lasts:
            self._spread_rate = max(rate, self._spread_gain * window_bytes / rtt)

    def rate(self, in_flight: int, datagram_bytes: int) -> float:
        """Return the pacing rate, in bytes per second, with these bytes in flight."""
        few = in_flight < BURST_PACKETS * datagram_bytes
        return self._burst_rate if few else self._spread_rate
