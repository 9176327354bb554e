"""`AutomaticLags`: a bound on staleness that is in force only where updates are late.

Most workers wait for nobody, and nothing comes late. But where steps are short, a machine is short
of cores or the network is slow, updates queue up, and come dozens of steps late: more than a lower
momentum makes up for (docs/decisions/staleness-bound.md has what that costs). So lateness is
measured, and once it is too much, workers go in lockstep, by the rule of `ClockLags` with a bound
of 0: no step begins before all others have made the last one. That takes no longer than with an
all-reduce, and nothing is late then.

Two kinds of workers are not waited for. One that makes no step for `PATIENCE_STEPS` is set aside
until it makes one. And one that is *much slower* than the rest counts no more until it is not: each
worker tells with its updates how long a step takes it, waits not included. That one's updates are
some steps late whatever the others do, and they would be held in every step.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from math import ceil
from typing import Final

from gradwire.features.clock_lags import ClockLags

logger = logging.getLogger("gradwire.session")

BOUND: Final = 0
"""With one step of lead, updates come up to a step late, and where momentum or the learning rate is
high, training ends worse by a tenth."""

LATE_STEPS: Final = 0.75
"""The bound is in force once updates come so many steps later than in lockstep. Workers that begin
their steps at any time, and whose updates take none, find a quarter to a half of one."""

WINDOW_STEPS: Final = 64
"""How far back it is looked by how many steps another one is behind anyway, because it joined late
or stood still, which is forgiven: the least of these lags, less what late updates explain of it."""

SLOWER: Final = 2.0
"""Who takes so many times as long for a step as the middle worker is left out..."""

SLOWER_STILL: Final = 1.5
"""...until it takes less than so many times as long."""

PATIENCE_STEPS: Final = 20.0
PATIENCE_SECONDS_MIN: Final = 0.25
"""A step is waited for so many times as long as one takes the middle worker, and this at least."""

PATIENCE_STEPS_MIN: Final = 3.0
"""However long steps are, they are waited for so many times as long."""


class AutomaticLags:
    """Decides when a worker's lead is bounded, and who counts; looks at it as `ClockLags` does.

    Parameters
    ----------
    lateness : callable
        Told ranks, returns by how many steps their last updates came later than in lockstep; None
        while too few have come.
    timeout_seconds : float
        How long one that makes no step is waited for at most.
    """

    def __init__(
        self,
        lateness: Callable[[Collection[int]], float | None],
        timeout_seconds: float,
    ) -> None:
        self._lateness = lateness
        self._timeout_max = timeout_seconds
        self._lags = ClockLags(BOUND, timeout_seconds)
        self._recent: dict[int, deque[int]] = {}
        """By rank: the lags of the last steps, while nobody is waited for."""
        self._slower: frozenset[int] = frozenset()
        self.is_in_force = False

    @property
    def bound(self) -> int | None:
        """Steps that the worker may be ahead; None while it waits for nobody."""
        return BOUND if self.is_in_force else None

    @property
    def timeout_seconds(self) -> float:
        """How long one that makes no step is waited for."""
        return self._lags.timeout_seconds

    @property
    def deadline(self) -> float | None:
        """When somebody is set aside that holds us up; None where nobody does."""
        return self._lags.deadline if self.is_in_force else None

    def note_step(
        self,
        clock: int,
        clocks: Mapping[int, int],
        ranks: Collection[int],
        paces: Mapping[int, int],
    ) -> None:
        """Take in a step of our own, and decide whether the next ones are bounded.

        Parameters
        ----------
        clock : int
            Our own.
        clocks : mapping
            By rank: the last one received.
        ranks : collection of int
            The others that train.
        paces : mapping
            By rank: how many microseconds a step takes, our own included, where that is known.
        """
        self._leave_out_slower(ranks, paces)
        if self.is_in_force:
            return
        self._recent = {
            rank: self._recent.get(rank, deque(maxlen=WINDOW_STEPS))
            for rank in ranks
            if rank in clocks
        }
        for rank, lags in self._recent.items():
            lags.append(clock - clocks[rank])
        late = self._lateness([rank for rank in self._recent if rank not in self._slower])
        if late is not None and late > LATE_STEPS:
            self._begin(late, clocks)

    def look(
        self, clock: int, clocks: Mapping[int, int], ranks: Collection[int], now: float
    ) -> Mapping[int, int]:
        """Do as `ClockLags.look`, but leave out who is much slower; nobody holds before it counts.

        Parameters
        ----------
        clock, clocks, ranks, now
            As there.
        """
        if not self.is_in_force:
            return {}
        return self._lags.look(clock, clocks, set(ranks) - self._slower, now)

    def set_late_aside(self, now: float) -> list[int]:
        """Wait no longer for those who made no step for too long; return their ranks."""
        return self._lags.set_late_aside(now)

    def set_all_aside(self) -> None:
        """Wait for nobody that makes no step from now on."""
        self._lags.set_all_aside()

    # Private.

    def _begin(self, late: float, clocks: Mapping[int, int]) -> None:
        """Put the bound in force: from here on, what is on its way is waited for."""
        self.is_in_force = True
        under_way = ceil(late) + 1
        for rank, lags in self._recent.items():
            self._lags.count_from(rank, clocks[rank], max(min(lags) - under_way, 0))
        self._recent = {}
        logger.info(
            "staleness_bound='auto': updates come %.1f steps late, which costs more than waiting: "
            "from now on no step begins before all workers have made the last one",
            late,
        )

    def _leave_out_slower(self, ranks: Collection[int], paces: Mapping[int, int]) -> None:
        """See who takes much longer for a step than the middle worker, and adapt the patience."""
        if not paces:
            return
        middle = sorted(paces.values())[(len(paces) - 1) // 2]
        slower = frozenset(
            rank
            for rank in ranks
            if paces.get(rank, 0) > (SLOWER_STILL if rank in self._slower else SLOWER) * middle
        )
        if self.is_in_force:
            for rank in slower - self._slower:
                logger.info(
                    "rank %d takes %.3g s for a step and others %.3g s: it is not waited for",
                    rank,
                    paces[rank] / 1e6,
                    middle / 1e6,
                )
        self._slower = slower
        seconds = middle / 1e6
        patience = min(PATIENCE_STEPS * seconds, self._timeout_max)
        self._lags.timeout_seconds = max(
            patience, PATIENCE_STEPS_MIN * seconds, PATIENCE_SECONDS_MIN
        )
