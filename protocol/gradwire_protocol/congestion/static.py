"""StaticWindow: a fixed window and rate, set by the operator.

For known links that are not shared: nothing is measured, and losses change nothing. On other links
it leaves the path idle or floods it.
"""

from collections.abc import Callable
from math import inf
from typing import ClassVar, Final

from gradwire_protocol.congestion.controller import AckSample
from gradwire_protocol.limits import MIB

WINDOW_BYTES: Final = 4 * MIB
"""10 Gbit/s over 3 ms, or 1 Gbit/s over 30 ms."""


class StaticWindow:
    """A fixed window and rate.

    Parameters
    ----------
    datagram_bytes : int
        Not used.
    random : callable
        Not used.
    window_bytes : int
        Most bytes in flight: rate times round trip of the link.
    pacing_rate : float
        Bytes per second; infinite for no pacing.
    """

    __slots__ = ("pacing_rate", "window_bytes")

    name: ClassVar[str] = "static"

    def __init__(
        self,
        datagram_bytes: int,
        random: Callable[[], float],
        *,
        window_bytes: int = WINDOW_BYTES,
        pacing_rate: float = inf,
    ) -> None:
        self.window_bytes = window_bytes
        self.pacing_rate = pacing_rate

    def on_sent(self, size: int, in_flight: int, *, app_limited: bool, now: float) -> None:
        """Take no notice."""

    def on_ack(self, sample: AckSample) -> None:
        """Take no notice."""

    def on_lost(self, size: int, sent_at: float, in_flight: int, now: float) -> None:
        """Take no notice."""

    def on_spurious_loss(self, size: int, now: float) -> None:
        """Take no notice."""

    def on_persistent_congestion(self) -> None:
        """Take no notice."""

    def on_path_changed(self) -> None:
        """Take no notice."""

    def set_datagram_bytes(self, datagram_bytes: int) -> None:
        """Take no notice."""
