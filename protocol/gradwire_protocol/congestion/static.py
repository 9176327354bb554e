"""`StaticWindow`: a fixed window and rate, set by the operator.

For known links that are not shared: nothing is measured, and losses change nothing. On other links
it leaves the path idle or floods it.
"""

from collections.abc import Callable
from math import inf
from typing import ClassVar, Final

from gradwire_protocol.congestion.controller import CongestionController
from gradwire_protocol.limits import MIB

WINDOW_BYTES: Final = 4 * MIB
"""10 Gbit/s over 3 ms, or 1 Gbit/s over 30 ms."""


class StaticWindow(CongestionController):
    """A fixed window and rate.

    Parameters
    ----------
    window_bytes : int
        Most bytes in flight: rate times round trip of the link.
    pacing_rate : float
        Bytes per second; infinite for no pacing.
    """

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
