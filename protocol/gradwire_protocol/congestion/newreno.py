"""NewReno, as RFC 9002, section 7, and its appendix B, but without persistent congestion (7.6).

The window doubles per round trip until the first loss, then grows by one datagram per round
trip; a loss halves it, once per round trip. Simple and fair, and slow on paths that lose packets
for other reasons than congestion. After a blackout the window is halved, and not cut to its
minimum as section 7.6 has it.
"""

from typing import Final

WINDOW_PACKETS_INITIAL: Final = 32
WINDOW_PACKETS_MIN: Final = 4
LOSS_REDUCTION: Final = 0.5
PACING_GAIN: Final = 1.25
"""Faster than window over round trip, so that pacing alone never keeps the window from filling."""

FULL_SHARE: Final = 0.5
"""The window was in use where at least this part of it was in flight; only then may it grow."""


class NewReno:
    """Window-based control.

    Parameters
    ----------
    datagram_bytes : int
        Largest datagram sent.
    """

    __slots__ = ("_datagram_bytes", "_recovery_since", "_threshold", "_window")

    def __init__(self, datagram_bytes: int) -> None:
        self._datagram_bytes = datagram_bytes
        self._window = float(WINDOW_PACKETS_INITIAL * datagram_bytes)
        self._threshold = float("inf")
        self._recovery_since = float("-inf")

    @property
    def window_bytes(self) -> int:
        """Most bytes that may be in flight."""
        return int(self._window)

    def pacing_rate(self, smoothed_rtt: float) -> float:
        """Bytes per second at which packets should leave."""
        return PACING_GAIN * self._window / smoothed_rtt

    def on_sent(self, size: int, in_flight: int, now: float) -> None:
        """Take no notice."""

    def on_acked(self, size: int, sent_at: float, in_flight: int, now: float) -> None:
        """Grow the window, if it was in use and the packet is younger than the last loss."""
        if sent_at <= self._recovery_since or in_flight < FULL_SHARE * self._window:
            return
        if self._window < self._threshold:
            self._window += size
        else:
            self._window += self._datagram_bytes * size / self._window

    def on_lost(self, last_sent_at: float, now: float) -> None:
        """Halve the window, unless this loss belongs to a round trip that did so already."""
        if last_sent_at <= self._recovery_since:
            return
        self._recovery_since = now
        minimum = WINDOW_PACKETS_MIN * self._datagram_bytes
        self._window = max(self._window * LOSS_REDUCTION, minimum)
        self._threshold = self._window

    def on_path_changed(self) -> None:
        """Start anew: the peer is somewhere else now."""
        self.__init__(self._datagram_bytes)  # type: ignore[misc]
