"""Congestion control: how much may be in flight, and how fast it leaves.

`CongestionController` is the interface. Every controller has a module of its own, and `CONTROLLERS`
names them all:

- ``bbr``: `BbrLite` models the path and ignores random losses.
- ``cubic``: `Cubic` shares a link fairly with TCP, and like TCP treats every loss as congestion.
- ``static``: `StaticWindow` for known links that are not shared.
"""

from typing import Final

from gradwire_protocol.congestion.bbr import BbrLite
from gradwire_protocol.congestion.controller import (
    AckSample,
    CongestionController,
    ControllerFactory,
)
from gradwire_protocol.congestion.cubic import Cubic
from gradwire_protocol.congestion.static import StaticWindow

CONTROLLERS: Final[dict[str, ControllerFactory]] = {
    BbrLite.name: BbrLite,
    Cubic.name: Cubic,
    StaticWindow.name: StaticWindow,
}

__all__ = [
    "CONTROLLERS",
    "AckSample",
    "BbrLite",
    "CongestionController",
    "ControllerFactory",
    "Cubic",
    "StaticWindow",
]
