"""Congestion control: how much may be in flight, and how fast it leaves.

`CongestionController` is the interface. `BbrLite` models the path and ignores random losses;
`StaticWindow` leaves it to TCP, where packets travel over TCP.
"""

from gradwire_protocol.congestion.bbr import BbrLite
from gradwire_protocol.congestion.controller import AckSample, CongestionController, StaticWindow

__all__ = ["AckSample", "BbrLite", "CongestionController", "StaticWindow"]
