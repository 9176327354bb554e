"""`StalenessBound`: a worker that is too far ahead of the slowest one waits for it.

`clock_lags` has the rule, and says why no worker waits for ever; `automatic_lags` decides whether
the bound is in force. The worker waits for updates, so it applies those that arrive meanwhile.
"""

import logging
from collections import deque
from collections.abc import Collection, Mapping
from functools import partial
from statistics import median_low
from typing import Final

from gradwire.features.clock_lags import ClockLags
from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure, Wait
from gradwire_protocol.messages.fields import PACE_MAX

logger = logging.getLogger("gradwire.session")

PACE_STEPS: Final = 15
"""A worker tells the median pace of this many steps: a step in which a script evaluates, or writes
a checkpoint, says nothing about the others."""


class StalenessBound(Feature):
    """Makes the steps of a worker wait.

    The clock of `participant` begins here; from now on every step sends an update.
    """

    def __init__(self, lags: ClockLags, participant: Participant) -> None:
        self._outbox = participant.outbox
        self._sending = participant.sending
        self._applying = participant.applying
        self._tally = participant.tally
        self._rank = participant.welcome.rank
        self._clock = participant.clock
        self.lags = lags
        self.held_by: Mapping[int, int] = {}
        """By rank: how many steps each worker was too far behind, at the last look."""
        self._membership = membership = participant.membership
        self._heard = membership.clocks.first is not None
        self._reconnections = membership.reconnections
        self._is_over = False
        self._began: float | None = None
        """When the current step began; None before the first."""
        self._seconds: deque[float] = deque(maxlen=PACE_STEPS)
        """How long the last steps took, without waits."""
        self._warned_of: set[int] = set()
        self._outbox.begin_clock(max(membership.clocks.latest.values(), default=1))
        if lags.is_announced:
            self._outbox.announce_clock()  # others wait for us from now on

    def after_step(self) -> None:
        """Note how long the step took, and whether the next one is bounded."""
        if self._began is not None:
            self._seconds.append(self._clock() - self._began)
            self._outbox.pace = min(max(round(1e6 * median_low(self._seconds)), 1), PACE_MAX)
        self._set_clock()
        ranks, clocks = self._trainers(), self._membership.clocks.latest
        self.lags.note_step(self._outbox.clock, clocks, ranks, self._paces(ranks))
        self._tally.staleness_bound = self.lags.bound if self.lags.is_in_force else None

    def wait(self) -> Procedure[None]:
        """Wait until the slowest worker is near enough, or is not waited for any more."""
        if self._look():
            tally, began = self._tally, self._clock()
            tally.steps_waited += 1
            try:
                yield from self._wait_for_slowest()
            finally:
                tally.wait_seconds += self._clock() - began
        self._began = self._clock()

    def on_leave(self) -> None:
        """End a wait that a signal handler has interrupted to close the session."""
        self._is_over = True

    # Private.

    def _wait_for_slowest(self) -> Procedure[None]:
        while True:
            # Whatever changes from here on is seen below, or is news.
            before = self._state()
            self._applying.pull()
            self._sending.tell_clock()
            self._set_late_aside(self._look())
            if not self._look():
                return
            deadline = self.lags.deadline
            assert deadline is not None
            yield Wait(partial(self._has_news, before), deadline, self._purpose)

    def _purpose(self) -> str:
        names = {peer.rank: peer.name for peer in self._membership.peers}
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
        if self._is_over or membership.closed or membership.stopping is not None:
            self.held_by = {}
            return self.held_by
        self._set_clock()
        clocks, now = membership.clocks.latest, self._clock()
        self.held_by = self.lags.look(self._outbox.clock, clocks, self._trainers(), now)
        return self.held_by

    def _set_clock(self) -> None:
        """Set our clock by the first clock that we hear of."""
        first = self._membership.clocks.first
        if not self._heard and first is not None:
            self._heard = True
            self._outbox.clock = max(self._outbox.clock, first)

    def _trainers(self) -> set[int]:
        """Return the ranks of the others that train."""
        return {peer.rank for peer in self._membership.peers if not peer.finished} - {self._rank}

    def _paces(self, ranks: Collection[int]) -> dict[int, int]:
        """Return by rank how many microseconds a step takes, if known; our own included."""
        told, own = self._membership.clocks.paces, self._outbox.pace
        paces = {rank: told[rank] for rank in ranks if rank in told}
        return {**paces, self._rank: own} if own else paces

    def _set_late_aside(self, held_by: Mapping[int, int]) -> None:
        names = {peer.rank: peer.name for peer in self._membership.peers}
        for rank in self.lags.set_late_aside(self._clock()):
            level = logging.INFO if rank in self._warned_of else logging.WARNING
            self._warned_of.add(rank)
            logger.log(
                level,
                "rank %d (%s) is %d steps behind and has made no step for %.3g s: it is not waited "
                "for until it makes one",
                rank,
                names.get(rank, "gone"),
                held_by.get(rank, 0),
                self.lags.timeout_seconds,
            )

    def _has_news(self, before: tuple[object, ...]) -> bool:
        return self._state() != before

    def _state(self) -> tuple[object, ...]:
        """Return what changes when there is something to do."""
        membership = self._membership
        return (
            membership.updates_received,
            membership.peers,
            membership.replica_wanted,
            membership.comparison,
            membership.lost,
            membership.reconnections,
            membership.stopping,
            membership.closed,
            self._is_over,
            self._outbox.may_tell_clock,
        )
