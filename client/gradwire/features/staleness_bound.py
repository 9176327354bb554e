"""`StalenessBound`: a worker that is too far ahead of the slowest one waits for it.

`clock_lags` has the rule, and says why no worker waits for ever. The worker waits for updates, so
it applies those that arrive meanwhile.

`AutomaticBound` makes workers go in lockstep in their first steps, and where updates come so late
that a lower momentum does not make up for it. docs/decisions/staleness-bound.md has the reasons,
and the measurements from which the numbers here are.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from math import ceil
from statistics import median_high, median_low
from typing import Final

from gradwire.features.clock_lags import ClockLags
from gradwire.optimizer.delays import LATE_STEPS
from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure, Wait
from gradwire_protocol.messages.fields import PACE_MAX

logger = logging.getLogger("gradwire.session")

PACE_STEPS: Final = 15
"""A worker tells the median pace of this many steps: a step in which a script evaluates, or writes
a checkpoint, says nothing about the others."""

LOCKSTEP: Final = 0
"""The bound with which nothing is late: no step begins before all others have made the last one."""

FIRST_STEPS: Final = 32
"""So many steps a worker makes in lockstep first."""

LEAD_STEPS: Final = 4
"""After them, and while too few updates have come to tell whether they are late, a worker begins
lockstep once it is so many steps ahead of half of the others."""

WINDOW_STEPS: Final = 64
"""Another worker may be behind for another reason, because it stood still or is a little slower.
That is forgiven: the least of its lags in this many steps, less what late updates explain of it."""

SLOWER: Final = 2.0
SLOWER_STILL: Final = 1.5
"""A worker whose step takes `SLOWER` times as long as the middle worker's is left out, until it
takes no more than `SLOWER_STILL` times as long: its updates are late whatever the others do."""

PATIENCE_STEPS: Final = 20.0
PATIENCE_STEPS_MIN: Final = 3.0
PATIENCE_SECONDS_MIN: Final = 0.25
"""A step is waited for as long as the middle worker takes for `PATIENCE_STEPS`, but no longer than
the timeout; and at least for so many steps, and for so many seconds."""

REPORT_SECONDS: Final = 1.0
"""How often a long wait is reported."""

FIRST_PATIENCE_SECONDS: Final = 1.0
"""How long a step is waited for before it is known how long steps take."""


class StalenessBound(Feature):
    """Makes the steps of a worker wait.

    The clock of `participant` begins here; from now on every step sends an update.

    Parameters
    ----------
    bound, timeout_seconds
        Those of `ClockLags`.
    report : callable
        Called now and then in a wait, so that those who watch the run hear of it.
    """

    def __init__(
        self,
        participant: Participant,
        bound: int,
        timeout_seconds: float,
        report: Callable[[], None] = lambda: None,
    ) -> None:
        self.lags = ClockLags(bound, timeout_seconds)
        self.held_by: Mapping[int, int] = {}
        """By rank: how many steps each worker was too far behind, at the last look."""
        self._participant = participant
        self._report = report
        self._membership = participant.membership
        self._outbox = participant.outbox
        self._clocks = clocks = participant.membership.clocks
        self._clock = participant.clock
        self._reconnections = participant.membership.reconnections
        self._is_over = False
        self._began: float | None = None
        """When the current step began; None before the first."""
        self._seconds: deque[float] = deque(maxlen=PACE_STEPS)
        """How long the last steps took, without waits."""
        self._slower: frozenset[int] = frozenset()
        """The ranks that are not waited for."""
        self._told: set[object] = set()
        """What was logged once, and is logged a level lower when it happens again."""
        self._outbox.begin_clock(max(1, clocks.first, *clocks.latest.values()))

    def after_step(self) -> None:
        """Note how long the step took."""
        if self._began is not None:
            self._seconds.append(self._clock() - self._began)
            self._outbox.pace = min(max(round(1e6 * median_low(self._seconds)), 1), PACE_MAX)
        self._set_clock()

    def wait(self) -> Procedure[None]:
        """Wait until the slowest worker is near enough, or is not waited for any more."""
        tally, began = self._participant.tally, self._clock()
        tally.staleness_bound = self.lags.bound
        if self._look():
            tally.steps_waited += 1
            while self.held_by:
                before = self._state()  # whatever changes from here on is seen below, or is news
                self._participant.applying.pull()
                self._participant.sending.tell_clock()
                if self._look():
                    self._set_late_aside()
                if held_by := self._look():
                    tally.waited_for = max(held_by, key=held_by.__getitem__)
                    deadline = min(self.lags.deadline, self._clock() + REPORT_SECONDS)
                    yield Wait(lambda: self._state() != before, deadline, self._purpose)  # noqa: B023
                now = self._clock()
                tally.wait_seconds, began = tally.wait_seconds + now - began, now
                self._report()
        self._began = self._clock()

    def on_leave(self) -> None:
        """End a wait that a signal handler has interrupted to close the session."""
        self._is_over = True

    # Private.

    def _purpose(self) -> str:
        names = self._membership.names
        behind = (
            f"rank {rank} ({names.get(rank, 'gone')}), {steps} steps behind"
            for rank, steps in sorted(self.held_by.items())
        )
        return "slower workers: " + ", ".join(behind)

    def _look(self) -> Mapping[int, int]:
        """Return which workers hold us up now, and by how many steps."""
        membership = self._membership
        if membership.reconnections != self._reconnections or membership.lost is not None:
            self._reconnections = membership.reconnections
            self.lags.set_all_aside()
        self._set_clock()
        if self._is_over or membership.closed or membership.stopping is not None:
            self.held_by = {}
        else:
            clock, clocks = self._outbox.clock, self._clocks.latest
            ranks = self._trainers() - self._slower
            self.held_by = self.lags.look(clock, clocks, ranks, self._clock())
        return self.held_by

    def _set_clock(self) -> None:
        """Let our clock begin no earlier than at the first one that we have heard of."""
        self._outbox.clock = max(self._outbox.clock, self._clocks.first)

    def _trainers(self) -> set[int]:
        """Return the ranks of the others that train."""
        return {peer.rank for peer in self._membership.others}

    def _set_late_aside(self) -> None:
        for rank in self.lags.set_late_aside(self._clock()):
            self._tell(
                logging.WARNING,
                rank,
                "rank %d (%s) is %d steps behind and has made no step for %.3g s: it is not waited "
                "for until it makes one",
                rank,
                self._membership.names.get(rank, "gone"),
                self.held_by[rank],
                self.lags.timeout_seconds,
            )

    def _tell(self, level: int, what: object, message: str, *values: object) -> None:
        """Log something; where it was logged before, a level lower."""
        logger.log(level - 10 if what in self._told else level, message, *values)
        self._told.add(what)

    def _state(self) -> tuple[object, ...]:
        """Return what changes when there is something to do."""
        return self._membership.news, self._is_over, self._outbox.may_tell_clock


class AutomaticBound(StalenessBound):
    """Lockstep in the first steps, and where updates come late.

    Parameters
    ----------
    timeout_seconds : float
        Longest time to wait for a worker that makes no step, unless steps take so long themselves.
    report : callable
        See `StalenessBound`.
    """

    def __init__(
        self,
        participant: Participant,
        timeout_seconds: float,
        report: Callable[[], None] = lambda: None,
    ) -> None:
        patience = min(timeout_seconds, FIRST_PATIENCE_SECONDS)
        super().__init__(participant, LOCKSTEP, patience, report)
        self.lags.counts_unheard = True
        self._timeout_max = timeout_seconds
        self._first_steps = FIRST_STEPS
        """How many of them are left."""
        self._recent: dict[int, deque[int]] = {}
        """By rank: the lags of the last steps; used until the bound is in force."""

    def after_step(self) -> None:
        """Note how long the step took, and whether the next one is bounded."""
        super().after_step()
        self._leave_out_slower()
        if self._first_steps:
            self._first_steps -= 1
            if not self._first_steps:
                self.lags.bound, self.lags.counts_unheard = None, False
                self._participant.delays.forget_lateness()
        elif self.lags.bound is None:
            self._look_for_lateness()

    # Private.

    def _look_for_lateness(self) -> None:
        trainers, clock, clocks = self._trainers(), self._outbox.clock, self._clocks.latest
        self._recent = {
            rank: self._recent.get(rank, deque(maxlen=WINDOW_STEPS))
            for rank in trainers & clocks.keys()
        }
        for rank, lags in self._recent.items():
            lags.append(clock - clocks[rank])
        equals = trainers - self._slower
        late = self._participant.delays.lateness(equals, len(self._membership.peers))
        if late is None:
            leads = [self._recent[rank][-1] for rank in equals & self._recent.keys()]
            lead = median_high(leads or [0])
            if lead >= LEAD_STEPS:
                self._begin(lead, f"it is {lead} steps ahead of half of the other workers")
        elif late > LATE_STEPS:
            self._begin(ceil(late), f"updates come {late:.1f} steps late")

    def _begin(self, late: int, why: str) -> None:
        """Put the bound in force: from here on, updates on their way are waited for."""
        self.lags.bound = LOCKSTEP
        under_way = late + 1
        for rank, lags in self._recent.items():
            forgiven = max(min(lags) - under_way, 0)
            self.lags.count_from(rank, self._outbox.clock - lags[-1], forgiven)
        self._recent = {}
        logger.info(
            "staleness_bound='auto': %s, so from now on no step begins before all workers have "
            "made the last one%s",
            why,
            f", but for those of rank {sorted(self._slower)}" if self._slower else "",
        )

    def _leave_out_slower(self) -> None:
        """Find the workers that are much slower than the middle one, and set the patience."""
        told = self._clocks.paces
        paces = {rank: told[rank] for rank in self._trainers() if rank in told}
        known = [pace for pace in (*paces.values(), self._outbox.pace) if pace]
        if not known:
            return
        middle = median_low(known)
        slower = frozenset(
            rank
            for rank, pace in paces.items()
            if pace > (SLOWER_STILL if rank in self._slower else SLOWER) * middle
        )
        seconds = middle / 1e6
        if self.lags.bound is not None and not self._first_steps:
            for rank in sorted((slower ^ self._slower) & paces.keys()):
                self._tell(
                    logging.INFO,
                    (rank, rank in slower),  # where steps are short, it is slow and quick in turn
                    "rank %d takes %.3g s for a step, and the middle worker %.3g s: it is %s",
                    rank,
                    paces[rank] / 1e6,
                    seconds,
                    "not waited for" if rank in slower else "waited for again",
                )
        self._slower = slower
        longest = max(self._timeout_max, PATIENCE_STEPS_MIN * seconds)
        patience = min(PATIENCE_STEPS * seconds, longest)
        self.lags.timeout_seconds = max(patience, PATIENCE_SECONDS_MIN)
