"""What one tells an end of a flow, whichever protocol it is."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """Which end, where, and how."""

    receives: bool
    host: str
    port: int
    seconds: float
    """How long the receiver counts."""
    datagram_bytes: int
    congestion: str | None
    """Of TCP, where it is not the machine's usual one."""
    sealed: bool
    """Whether packets are encrypted and authenticated; ours only."""


def flow_options() -> FlowOptions:
    """Read them from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=["receive", "send"])
    parser.add_argument("--host", required=True, help="address of the receiver")
    parser.add_argument("--port", type=int, default=0, help="of the receiver")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--datagram-bytes", type=int, default=1400)
    parser.add_argument("--congestion")
    parser.add_argument("--sealed", action="store_true")
    given = parser.parse_args()
    return FlowOptions(given.end == "receive", given.host, given.port, given.seconds,
                       given.datagram_bytes, given.congestion, given.sealed)  # fmt: skip
