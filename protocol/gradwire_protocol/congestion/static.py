"""`StaticWindow`: a fixed window, for packets over TCP.

TCP measures the path, paces what it sends, and answers losses. The window bounds what waits in
front of TCP, and nothing else.
"""

from math import inf
from typing import Final

from gradwire_protocol.congestion.controller import CongestionController
from gradwire_protocol.limits import MIB

WINDOW_BYTES: Final = 4 * MIB
"""10 Gbit/s over 3 ms, or 1 Gbit/s over 30 ms."""


class StaticWindow(CongestionController):
    """A fixed window without pacing."""

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES
        self.pacing_rate = inf
