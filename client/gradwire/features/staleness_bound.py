"""`StalenessBound`: a worker that is too far ahead of the slowest one waits for it.

See `clock_lags` for the rule, and for why nobody waits for ever. What arrives meanwhile is applied:
that is what the waiting is for.
"""

import logging
from collections.abc import Mapping
from functools import partial

from gradwire.features.clock_lags import ClockLags
from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure, Wait

logger = logging.getLogger("gradwire.session")


class StalenessBound(Feature):
    """Makes the steps of a worker wait.

    Parameters
    ----------
    lags : ClockLags
        The rule.
    timeout_seconds : float
        How long one that makes no step is waited for.
    participant : Participant
        Whose clock begins here; from now on every step sends an update.
    """

    def __init__(self, lags: ClockLags, timeout_seconds: float, participant: Participant) -> None:
        self._timeout = timeout_seconds
        self._outbox = participant.outbox
        self._sending = participant.sending
        self._applying = participant.applying
        self._tally = participant.tally
        self._rank = participant.welcome.rank
        self._clock = participant.clock
        self.lags = lags
        self.held_by: Mapping[int, int] = {}
        """By rank: by how many steps each worker was too far behind, at the last look."""
        self._membership = membership = participant.membership
        self._heard = membership.clocks.first is not None
        self._reconnections = membership.reconnections
        self._is_over = False
        self._outbox.begin_clock(max(membership.clocks.latest.values(), default=1))

    def hold(self) -> Procedure[None]:
        """Wait until the slowest worker is near enough, or is not to be waited for."""
        if not self._look():
            return
        tally, began = self._tally, self._clock()
        tally.steps_waited += 1
        try:
            yield from self._wait()
        finally:
            tally.wait_seconds += self._clock() - began

    def left(self) -> None:
        """End a wait that a signal handler has interrupted to close the session."""
        self._is_over = True

    # Private.

    def _wait(self) -> Procedure[None]:
        while True:
            # What comes from here on is seen below, or is news.
            before = self._signs()
            self._applying.pull()
            self._sending.tell_clock()
            self._say_late(self._look())
            if not self._look():
                return
            deadline = self.lags.deadline
            assert deadline is not None
            yield Wait(partial(self._differs, before), deadline)

    def _look(self) -> Mapping[int, int]:
        """Return who holds us up now, and by how many steps."""
        membership = self._membership
        if membership.reconnections != self._reconnections or membership.lost is not None:
            self._reconnections = membership.reconnections
            self.lags.set_all_aside()
        if self._is_over or membership.closed or membership.stopping is not None:
            self.held_by = {}
            return self.held_by
        clocks = membership.clocks
        if not self._heard and clocks.first is not None:
            self._heard = True
            self._outbox.clock = max(self._outbox.clock, clocks.first)
        ranks = {peer.rank for peer in membership.peers if not peer.finished} - {self._rank}
        now = self._clock()
        self.held_by = self.lags.look(self._outbox.clock, clocks.latest, ranks, now)
        return self.held_by

    def _say_late(self, held_by: Mapping[int, int]) -> None:
        names = {peer.rank: peer.name for peer in self._membership.peers}
        for rank in self.lags.set_late_aside(self._clock()):
            logger.warning(
                "rank %d (%s) is %d steps behind and has made none for %g s: it is not waited for "
                "until it does",
                rank,
                names.get(rank, "gone"),
                held_by.get(rank, 0),
                self._timeout,
            )

    def _differs(self, before: tuple[object, ...]) -> bool:
        return self._signs() != before

    def _signs(self) -> tuple[object, ...]:
        """Return what shows that there is something to do."""
        membership = self._membership
        return (
            membership.updates_received,
            membership.peers,
            membership.wanted,
            membership.comparison,
            membership.lost,
            membership.reconnections,
            membership.stopping,
            membership.closed,
            self._is_over,
            self._outbox.may_tell_clock,
        )
