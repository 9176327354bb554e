"""`AutomaticLags`: a bound on staleness that is in force only if updates are late.

Most workers wait for no other, and nothing comes late. But if steps are short, a machine lacks
cores or the network is slow, updates queue up and come dozens of steps late: more than a lower
momentum makes up for (docs/decisions/staleness-bound.md says what that costs). So lateness is
measured. Once it is too much, workers go in lockstep, by the rule of `ClockLags` with a bound of 0:
no step begins before all others have made the last one. Nothing is late then.

The first steps are made in lockstep as well. Steps are largest then and agree most, so what comes
late costs most; and too few updates have come to measure how late they are. After that each may go
ahead, and either updates are late, or, if too few come to tell, a lead of a few steps over half of
the others is enough.

Two kinds of workers are not waited for. A worker that makes no step for `PATIENCE_STEPS` is set
aside until it makes one. A worker that is *much slower* than the rest is left out until it is not:
each worker tells with its updates how long its steps take, without waits. Updates of a slow worker
are some steps late whatever the others do, and the others would wait for it in every step.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from math import ceil
from typing import Final

from gradwire.features.clock_lags import ClockLags

logger = logging.getLogger("gradwire.session")

BOUND: Final = 0
"""With a lead of one step, updates come up to a step late. If momentum or the learning rate is
high, training then ends worse by a tenth."""

LATE_STEPS: Final = 0.75
"""The bound is in force once updates come this many steps later than in lockstep. Workers that
begin their steps at any time, and whose updates take no time, measure a quarter to a half of a
step."""

FIRST_STEPS: Final = 32
"""So many steps a worker makes in lockstep first."""

LEAD_STEPS: Final = 4
"""After them and before lateness is known, a worker that is so many steps ahead of half of the
others waits. With 8 workers on two cores, the first ones were 44 to 322 steps ahead before enough
updates had come to measure how late they were."""

WINDOW_STEPS: Final = 64
"""Another worker may be behind for another reason, because it stood still or is a little slower.
That is forgiven: the least of its lags in this many steps, less what late updates explain of it."""

SLOWER: Final = 2.0
"""A worker whose step takes this many times as long as the middle worker's is left out..."""

SLOWER_STILL: Final = 1.5
"""...until it takes no more than this many times as long."""

PATIENCE_STEPS: Final = 20.0
PATIENCE_SECONDS_MIN: Final = 0.25
"""A step is waited for this many times as long as the middle worker takes for one, and at least
this many seconds."""

FIRST_PATIENCE_SECONDS: Final = 1.0
"""How long a step is waited for before it is known how long steps take."""

PATIENCE_STEPS_MIN: Final = 3.0
"""However long steps are, a step is waited for this many times as long."""


class AutomaticLags(ClockLags):
    """A worker's lead over each of the others, which counts at first and where updates come late.

    Parameters
    ----------
    lateness : callable
        Takes ranks; returns how many steps later than in lockstep their last updates came, or None
        while too few have come.
    forget_lateness : callable
        Makes only later updates count for that.
    timeout_seconds : float
        Longest time to wait for a worker that makes no step, unless steps take so long themselves.
    """

    is_announced = False
    """An update before the first step would say that the run has begun."""

    def __init__(
        self,
        lateness: Callable[[Collection[int]], float | None],
        forget_lateness: Callable[[], None],
        timeout_seconds: float,
    ) -> None:
        super().__init__(BOUND, min(timeout_seconds, FIRST_PATIENCE_SECONDS))
        self._lateness = lateness
        self._forget_lateness = forget_lateness
        self._timeout_max = timeout_seconds
        self._first_steps = FIRST_STEPS
        """How many of them are left."""
        self._recent: dict[int, deque[int]] = {}
        """By rank: the lags of the last steps; used until the bound is in force."""
        self._slower: frozenset[int] = frozenset()
        self._said: set[tuple[int, bool]] = set()
        """By rank and whether it is left out: what was said once. Where steps take milliseconds,
        workers are slower and quicker in turn."""

    def note_step(
        self,
        clock: int,
        clocks: Mapping[int, int],
        ranks: Collection[int],
        paces: Mapping[int, int],
    ) -> None:
        """Decide whether the next steps are bounded, and which workers are left out."""
        self._leave_out_slower(ranks, paces)
        if self._first_steps:
            self._first_steps -= 1
            if not self._first_steps:
                self.is_in_force = False
                self._forget_lateness()
            return
        if self.is_in_force:
            return
        self._recent = {
            rank: self._recent.get(rank, deque(maxlen=WINDOW_STEPS))
            for rank in ranks
            if rank in clocks
        }
        for rank, lags in self._recent.items():
            lags.append(clock - clocks[rank])
        equals = [rank for rank in ranks if rank not in self._slower]
        late = self._lateness(equals)
        if late is None:
            lead = _lead(clock, clocks, equals)
            if lead >= LEAD_STEPS:
                self._begin(lead, clocks, f"it is {lead} steps ahead of half of the other workers")
        elif late > LATE_STEPS:
            self._begin(ceil(late), clocks, f"updates come {late:.1f} steps late")

    def look(
        self, clock: int, clocks: Mapping[int, int], ranks: Collection[int], now: float
    ) -> dict[int, int]:
        """Return which workers are too far behind: none while the bound is not in force."""
        if not self.is_in_force:
            return {}
        if self._first_steps:
            self._expect(set(ranks) - clocks.keys(), clock)
        return super().look(clock, clocks, set(ranks) - self._slower, now)

    # Private.

    def _expect(self, unheard: set[int], clock: int) -> None:
        """Wait for the first step of workers that were there before ours."""
        for rank in unheard - self._others.keys():
            self.count_from(rank, clock - 1, 0)

    def _begin(self, late: int, clocks: Mapping[int, int], why: str) -> None:
        """Put the bound in force: from here on, updates on their way are waited for."""
        self.is_in_force = True
        under_way = late + 1
        for rank, lags in self._recent.items():
            self.count_from(rank, clocks[rank], max(min(lags) - under_way, 0))
        self._recent = {}
        logger.info(
            "staleness_bound='auto': %s, so from now on no step begins before all workers have "
            "made the last one%s",
            why,
            f", but for those of rank {sorted(self._slower)}" if self._slower else "",
        )

    def _leave_out_slower(self, ranks: Collection[int], paces: Mapping[int, int]) -> None:
        """Find the workers that are much slower than the middle one, and set the patience."""
        if not paces:
            return
        middle = sorted(paces.values())[(len(paces) - 1) // 2]
        slower = frozenset(
            rank
            for rank in ranks
            if paces.get(rank, 0) > (SLOWER_STILL if rank in self._slower else SLOWER) * middle
        )
        seconds = middle / 1e6
        if self.is_in_force and not self._first_steps:
            for rank in sorted(slower ^ self._slower):
                change = rank, rank in slower
                logger.log(
                    logging.DEBUG if change in self._said else logging.INFO,
                    "rank %d takes %.3g s for a step, and the middle worker %.3g s: it is %s",
                    rank,
                    paces.get(rank, 0) / 1e6,
                    seconds,
                    "not waited for" if rank in slower else "waited for again",
                )
                self._said.add(change)
        self._slower = slower
        patience = min(PATIENCE_STEPS * seconds, self._timeout_max)
        self.timeout_seconds = max(patience, PATIENCE_STEPS_MIN * seconds, PATIENCE_SECONDS_MIN)


def _lead(clock: int, clocks: Mapping[int, int], ranks: Collection[int]) -> int:
    """Return how many steps a worker is ahead of half of the others that have been heard."""
    leads = sorted(clock - clocks[rank] for rank in ranks if rank in clocks)
    return leads[len(leads) // 2] if leads else 0
