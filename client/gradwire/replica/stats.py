"""`SessionStats`: what a session has done so far, as plain numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.optimizer.delays import Distribution
from gradwire_codecs import ResidualStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """One moment's numbers. Totals count from the beginning of the session."""

    steps: int
    """Calls of `Session.step` and `Session.push`."""
    steps_deferred: int
    """Of these, how many sent nothing because the network was behind; their change waits in the
    residual."""
    steps_untrained: int
    """Of these, how many sent nothing because the optimizer that `join` was given had made no step:
    gradients were accumulated, or a GradScaler skipped it."""
    steps_waited: int
    """Of these, how many waited for a slower worker, by the setting `staleness_bound`."""
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
    buffers_averaged: int
    """How often the buffers of the module were set to the mean of all workers'."""
    buffers_refused: int
    """How often what the buffers of another worker held could not be averaged: they are other ones,
    or not all of their values were finite."""
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
    """The largest one among the last 256."""
    staleness_by_rank: Mapping[int, float]
    """The same mean for each origin that takes part."""
    staleness_distribution: Distribution
    """How the staleness of all peers' updates is distributed."""
    own_staleness: float
    """Updates of others that came between reading parameters and the master's having the result,
    as a mean over this worker's last updates."""
    own_staleness_distribution: Distribution
    """How that of all own updates is distributed."""
    residual_age_steps: float
    """How many steps a change waits in the residual before it is sent, on average: how much is
    there over how much is sent per step, in the last steps."""
    residual_age_distribution: Distribution
    """How that is distributed over the steps."""
    delay_steps: float
    """How many steps late changes are because of both delays, beyond synchronous training: by so
    much `momentum="auto"` lowers the mean lag of the optimizer's momentum."""
    momentum: float | None
    """What the optimizer's last step was made with instead of its own momentum or first beta, of
    its first group of parameters; None without an optimizer, or one without momentum."""
    scale: float
    """What this worker's last change was multiplied by."""
    rtt_seconds: float | None
    """Smoothed round-trip time to the master."""
    encode_seconds: float
    """Time the training thread has spent on encoding."""
    apply_seconds: float
    """Time the training thread has spent on applying updates of peers."""
    wait_seconds: float
    """Time the training thread has waited for slower workers."""


@dataclass(slots=True)
class Tally:
    """What the training thread counts as it goes."""

    steps: int = 0
    steps_deferred: int = 0
    steps_untrained: int = 0
    steps_waited: int = 0
    updates_sent: int = 0
    updates_applied: int = 0
    updates_conflated: int = 0
    buffers_averaged: int = 0
    elements_sent: int = 0
    bytes_encoded: int = 0
    elements_clipped: int = 0
    magnitude_clipped: float = 0.0
    density: float = 0.0
    threshold: float = 0.0
    encode_seconds: float = 0.0
    apply_seconds: float = 0.0
    momentum: float | None = None
    scale: float = 1.0
    wait_seconds: float = 0.0
