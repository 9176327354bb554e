"""What a worker logs after its steps: who comes and goes, and once, of too high a momentum."""

import logging
from collections.abc import Callable
from typing import Final

from gradwire.optimizer.momentum import Lag, compensated, rate_factor
from gradwire.participant.feature import Feature
from gradwire.worker.membership import Membership

logger = logging.getLogger("gradwire.session")

USUAL_MOMENTUM: Final = 0.9

LAG_MIN: Final = 1.0
"""Steps of delay that are worth a warning: they lower a momentum of 0.9 to 0.89."""

STEPS_MIN: Final = 200
"""Before this many, a threshold that adapts has not settled, nor have the delays."""

LOOK_EVERY: Final = 50


class RosterLog(Feature):
    """Logs which workers have joined and left: compares the roster with that of the step before."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._roster = membership.peers
        self._names = membership.names

    def after_step(self) -> None:
        """Log which workers have come, and which are gone."""
        if self._membership.peers is self._roster:
            return
        before, finished = self._names, {peer.rank for peer in self._roster if peer.finished}
        self._roster = self._membership.peers
        self._names = now = self._membership.names
        for what, ranks in (
            ("has joined", [rank for rank in now if now[rank] != before.get(rank)]),
            ("is gone", [rank for rank in before.keys() - finished if rank not in now]),
        ):
            for rank in sorted(ranks):
                name = now.get(rank, before.get(rank))
                total = f"{len(now)} worker{'s' * (len(now) != 1)}"
                logger.info("rank %d (%s) %s: %s now", rank, name, what, total)


class MomentumAdvice(Feature):
    """Warns once of too high a momentum, if `join` was given no optimizer.

    The momentum is unknown then. The delays are known, and what a usual momentum should be with
    them.
    """

    def __init__(self, lag: Callable[[], Lag]) -> None:
        self._lag = lag
        self._steps = 0
        self._has_warned = False

    def after_step(self) -> None:
        """Warn, if the delays call for it."""
        self._steps += 1
        if self._has_warned or self._steps < STEPS_MIN or self._steps % LOOK_EVERY:
            return
        lag = self._lag()
        if lag.total >= LAG_MIN:
            self._has_warned = True
            logger.warning(
                "changes take effect %.1f steps late (they wait in the residual, and on the "
                "network), which acts like momentum. Where a momentum of %g is right without "
                "delay, %.2f is right now for the first of Adam's betas, and %.2f for SGD's "
                "momentum, at a learning rate %.2g times as high. Pass optimizer=optimizer to "
                "join, which adapts them to the measured delay, or set them yourself and pass "
                "momentum='keep'",
                lag.total,
                USUAL_MOMENTUM,
                compensated(USUAL_MOMENTUM, lag.of_momentum(sums=False)),
                of_sum := compensated(USUAL_MOMENTUM, lag.of_momentum(sums=True)),
                rate_factor(USUAL_MOMENTUM, of_sum),
            )
