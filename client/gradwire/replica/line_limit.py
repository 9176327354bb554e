"""`LineLimit`: how much less a worker sends where its line is slow for its steps.

Where an update takes a good part of a step to arrive, workers wait for each other's updates, or
train with late ones. Sparser updates cost less accuracy than that. How long one takes is measured
on the network's thread, from when it is posted until the master has acknowledged it; a round trip
that an empty line takes is no fault of its size.

Small updates are left alone: with them it is the scheduler of a busy machine, and no line, that
takes the time.
"""

import logging
from collections import deque
from collections.abc import Callable
from statistics import median_low
from typing import Final

from gradwire.replica.outbox import Outbox
from gradwire.replica.stats import Tally
from gradwire.worker.membership import Membership
from gradwire_protocol.limits import KIB

logger = logging.getLogger("gradwire.session")

STEP_SHARE: Final = 0.15
"""Part of a step's computing that an update may take to arrive. It takes as long again to the
others, which wait for it where updates come late."""

LEAST_BYTES: Final = 16 * KIB
"""Smaller updates are not made smaller."""

UPDATES: Final = 4
"""How many have to arrive between two changes: those on their way are of the size before."""

FALL_MAX: Final = 0.5
RISE_MAX: Final = 1.05
"""How far the size goes down or up in one change. A line with a deep buffer takes one update at
once and the next one late: what rises fast would fall as often."""

TOLD_TIMES: Final = 4.0
"""A change is logged again once it is so many times as large or small."""


class LineLimit:
    """A factor on the density of updates, 1 where the line is fast enough.

    Parameters
    ----------
    rtt : callable
        Returns the smoothed round-trip time in seconds; None before the first sample.
    """

    def __init__(
        self,
        membership: Membership,
        outbox: Outbox,
        tally: Tally,
        rtt: Callable[[], float | None],
    ) -> None:
        self._membership = membership
        self._outbox = outbox
        self._tally = tally
        self._rtt = rtt
        self._least_rtt = float("inf")
        self._arrived: deque[tuple[int, float]] = deque(maxlen=UPDATES)
        self._left = UPDATES
        """Updates that have to arrive before the next change."""
        self._told = 1.0
        self.factor = 1.0

    def look(self) -> float:
        """Take account of the updates that have arrived since; return the factor for the next."""
        rtt = self._rtt()
        if rtt is not None:
            self._least_rtt = min(self._least_rtt, rtt)
        for size, seconds in self._membership.take_arrivals():
            self._arrived.append((size, seconds))
            self._left -= 1
        step_seconds = self._outbox.pace / 1e6
        if self._left <= 0 and step_seconds:
            self._change(step_seconds)
        return self.factor

    def _change(self, step_seconds: float) -> None:
        size = median_low(each for each, _ in self._arrived)
        taken = median_low(seconds for _, seconds in self._arrived)
        latency = 0.0 if self._least_rtt == float("inf") else self._least_rtt
        transfer = max(taken - latency, 1e-6)
        times = STEP_SHARE * step_seconds / transfer
        if times < 1.0:
            # Not below `LEAST_BYTES`, and not at all where it is there already.
            least = min(LEAST_BYTES / max(size, 1), 1.0)
            self.factor *= max(times, FALL_MAX, least)
        elif self.factor < 1.0:
            self.factor = min(self.factor * min(times, RISE_MAX), 1.0)
        self._left = UPDATES
        self._tally.line_factor = self.factor
        if max(self.factor / self._told, self._told / self.factor) >= TOLD_TIMES:
            self._told = self.factor
            logger.info(
                "an update of %d bytes takes %.2g s to arrive, and a step %.2g s: updates change "
                "%.2g times as many parameters as they would on a faster line",
                size,
                taken,
                step_seconds,
                self.factor,
            )
