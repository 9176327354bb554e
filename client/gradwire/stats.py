"""`SessionStats`: what a session has done so far, as plain numbers."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gradwire_codecs import ResidualStatistics

RECENT: Final = 256
"""Updates over which staleness is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """One moment's numbers. Totals count from the beginning of the session."""

    steps: int
    """Calls of `Session.step` and `Session.push`."""
    steps_deferred: int
    """Of these, how many sent nothing because the network was behind; their change waits in the
    residual."""
    updates_sent: int
    """Own updates handed to the network."""
    updates_delivered: int
    """Own updates that the master has."""
    updates_stable: int
    """Own updates that every live worker has."""
    updates_clipped: int
    """Own updates that the master made smaller, because they were far larger than the others'."""
    updates_applied: int
    """Updates of peers that are in the parameters."""
    updates_conflated: int
    """Of these, how many had to be added up first, because the training was behind, or by the
    master, because the network was."""
    reconnections: int
    """How often the master was lost and reached again."""
    rebases: int
    """Of these, how often so much had been missed that blocks of the replica came anew."""
    repairs: int
    """How often the replica was found to be damaged, and was mended."""
    blocks_repaired: int
    """Blocks of the replica, of 2^18 parameters each, that were damaged and came anew."""
    elements_sent: int
    """Elements changed by own updates."""
    bytes_encoded: int
    """Length of own encoded updates."""
    transport: str
    """What carries the packets to the master: ``"udp"`` or ``"tcp"``."""
    bytes_sent: int
    """Payload of UDP or TCP sent: updates, acknowledgements, everything."""
    bytes_received: int
    """Payload of UDP or TCP received."""
    datagrams_sent: int
    """Over TCP, what would be datagrams otherwise."""
    datagrams_received: int
    density: float
    """Part of all elements that the last own update changed."""
    threshold: float
    """Threshold of the last own update, in units of the parameters."""
    residual: ResidualStatistics
    """How large what is not sent is, in thresholds: mean, maximum and percentiles of a sample of
    up to 65,536 elements, taken when the stats are asked for."""
    elements_clipped: int
    """How often an element of the residual was cut off by the setting `residual_clip`."""
    magnitude_clipped: float
    """Sum of the absolute values of what was cut off, and is lost, in units of the parameters."""
    staleness: float
    """Updates of others applied between reading parameters and applying the result, as a mean
    over the last updates of peers."""
    staleness_max: int
    """The largest one among these."""
    rtt_seconds: float | None
    """Smoothed round-trip time to the master."""
    encode_seconds: float
    """Time the training thread has spent on encoding."""
    apply_seconds: float
    """Time the training thread has spent on applying updates of peers."""


@dataclass(slots=True)
class Tally:
    """What the training thread counts as it goes."""

    steps: int = 0
    steps_deferred: int = 0
    updates_sent: int = 0
    updates_applied: int = 0
    updates_conflated: int = 0
    elements_sent: int = 0
    bytes_encoded: int = 0
    elements_clipped: int = 0
    magnitude_clipped: float = 0.0
    density: float = 0.0
    threshold: float = 0.0
    encode_seconds: float = 0.0
    apply_seconds: float = 0.0
    staleness: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
