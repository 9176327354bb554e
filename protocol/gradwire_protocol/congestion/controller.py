"""The interface between loss recovery and a congestion controller."""

from typing import Protocol


class CongestionController(Protocol):
    """Learns what happens to packets and answers with a window and a rate.

    Sizes are in bytes of UDP payload, times in seconds of the owner's clock.
    """

    @property
    def window_bytes(self) -> int:
        """Most bytes that may be in flight."""

    def pacing_rate(self, smoothed_rtt: float) -> float:
        """Bytes per second at which packets should leave."""

    def on_sent(self, size: int, in_flight: int, now: float) -> None:
        """Note a packet sent; `in_flight` does not include it yet."""

    def on_acked(self, size: int, sent_at: float, in_flight: int, now: float) -> None:
        """Note a packet acknowledged; `in_flight` was in flight when its ACK came."""

    def on_lost(self, last_sent_at: float, now: float) -> None:
        """Note a loss; the newest of the lost packets was sent at `last_sent_at`."""

    def on_path_changed(self) -> None:
        """Start anew: the peer is somewhere else now."""
