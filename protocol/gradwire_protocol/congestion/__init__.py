"""Congestion control: how much may be in flight, and how fast it leaves.

`CongestionController` is the interface; every controller has a module of its own.
"""

from gradwire_protocol.congestion.controller import CongestionController
from gradwire_protocol.congestion.newreno import NewReno

__all__ = ["CongestionController", "NewReno"]
