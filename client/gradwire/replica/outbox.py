"""`Outbox`: own updates on their way from the training half of a worker to the network half.

Each update gets its number, goes into the log that both halves share, and is posted. With a bound
on staleness, the last update of a step carries the clock: how many steps this worker has made.
`LineLimit` watches how long they take to arrive.
"""

import logging
from collections import deque
from collections.abc import Callable
from statistics import median_low
from typing import Final

from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.worker.membership import Membership
from gradwire.worker.update_log import OwnUpdate
from gradwire.worker.worker import Worker
from gradwire_codecs import NOTHING, encoded_hits
from gradwire_protocol.limits import KIB, MIB
from gradwire_protocol.messages.fields import count_updates

logger = logging.getLogger("gradwire.session")

OUTBOX_BYTES_MAX: Final = 8 * MIB
OUTBOX_UPDATES_MAX: Final = 64
"""Limits of own updates that the master does not have yet. Beyond either, a step sends nothing: its
change stays in the residual, where it costs no memory, and goes out with a later step."""


STEP_SHARE: Final = 0.15
"""Part of a step's computing that an update may take to arrive. It takes as long again to the
others, which wait for it where updates come late."""

LEAST_BYTES: Final = 16 * KIB
"""Smaller updates are not made smaller."""

UPDATES_BETWEEN: Final = 4
"""How many have to arrive between two changes of the size: those on their way are of the one
before."""

FALL_MAX: Final = 0.5
RISE_MAX: Final = 1.05
"""How far the size goes down or up in one change. A line with a deep buffer takes one update at
once and the next one late: what rises fast would fall as often."""

TOLD_TIMES: Final = 4.0
"""A change is logged again once it is so many times as large or small."""


class Outbox:
    """Numbers, logs and posts encoded updates."""

    def __init__(
        self,
        shared: SharedParameters,
        membership: Membership,
        worker: Worker,
        tally: Tally,
    ) -> None:
        self._shared = shared
        self._membership = membership
        self._worker = worker
        self._tally = tally
        self.clock = 0
        """Steps of this worker by the clock that is told with updates; 0 if none is told."""
        self._clock_told = 0
        self.pace = 0
        """Microseconds that a step takes without waits; told beside the clock."""

    def hand_over(
        self, bodies: list[bytes], *, is_contribution: bool = False, based_on: int | None = None
    ) -> int:
        """Post encoded updates to the network half; return how many elements they change.

        Without any, an empty update tells the clock, if the others do not know it yet. The caller
        holds `SharedParameters.changing`, in a block of `Membership.sending`. A contribution to a
        round ends with the last one. They are based on so many updates of others as this worker
        has, unless it is said.
        """
        if not bodies:
            if self._clock_told == self.clock:
                return 0
            bodies = [NOTHING]
        self._clock_told = self.clock
        shared, membership, tally = self._shared, self._membership, self._tally
        if based_on is None:
            based_on = count_updates(shared.versions, without=shared.rank)
        elements = sum(map(encoded_hits, bodies))
        updates = []
        for number, body in enumerate(bodies, 1):
            shared.versions[shared.rank] += 1
            clock = self.clock if number == len(bodies) else 0
            sequence, pace = shared.versions[shared.rank], self.pace if clock else 0
            is_last = is_contribution and number == len(bodies)
            updates.append(OwnUpdate(sequence, based_on, body, clock, pace, is_last))
            self._worker.own_updates.append(updates[-1])
        tally.updates_sent += len(bodies)
        tally.elements_sent += elements
        tally.bytes_encoded += sum(map(len, bodies))
        membership.own_staleness.on_sent(len(bodies), shared.read_at)
        # Last: this wakes the network thread, which takes the GIL as soon as it is released.
        membership.post(self._worker.push, updates)
        return elements

    def is_behind(self) -> bool:
        """Return whether the connection is lost, or the outbox is over one of its limits."""
        tally, membership = self._tally, self._membership
        return (
            membership.lost is not None
            or tally.bytes_encoded - membership.bytes_delivered > OUTBOX_BYTES_MAX
            or tally.updates_sent - membership.updates_delivered > OUTBOX_UPDATES_MAX
        )

    # The clock.

    def begin_clock(self, clock: int) -> None:
        """Count steps from this one on; the first step tells the clock."""
        self.clock = self._clock_told = clock

    def announce_clock(self) -> None:
        """Tell the clock at once, with an update that changes nothing."""
        self._clock_told = 0
        with self._membership.sending() as may_send, self._shared.changing:
            if may_send and not self.is_behind():
                self.hand_over([])

    @property
    def may_tell_clock(self) -> bool:
        """Whether the others do not know all steps, and the network could tell them."""
        return self._clock_told != self.clock and not self.is_behind()


class LineLimit:
    """A factor on the density of updates, 1 where the line is fast enough for the steps.

    Where an update takes a good part of a step to arrive, workers wait for each other's updates, or
    train with late ones. Sparser updates cost less accuracy than that. How long one takes is
    measured on the network's thread, from when it is posted until the master has acknowledged it; a
    round trip that an empty line takes is no fault of its size.

    Small updates are left alone: with them it is the scheduler of a busy machine, and no line, that
    takes the time.

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
        self._arrived: deque[tuple[int, float]] = deque(maxlen=UPDATES_BETWEEN)
        """Sizes and seconds of the last updates since the last change."""
        self._told = 1.0
        self.factor = 1.0

    def look(self) -> float:
        """Take account of the updates that have arrived since; return the factor for the next."""
        rtt = self._rtt()
        if rtt is not None:
            self._least_rtt = min(self._least_rtt, rtt)
        self._arrived.extend(self._membership.take_arrivals())
        step_seconds = self._outbox.pace / 1e6
        if len(self._arrived) == UPDATES_BETWEEN and step_seconds:
            self._change(step_seconds)
            self._arrived.clear()
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
