"""`MomentumAdvice`: warns once of too high a momentum, if `join` was given no optimizer.

The momentum is unknown then. The delays are known, and what a usual momentum should be with them.
"""

import logging
from collections.abc import Callable
from typing import Final

from gradwire.optimizer.momentum import Lag, compensated, rate_factor
from gradwire.participant.feature import Feature

logger = logging.getLogger("gradwire.session")

USUAL_MOMENTUM: Final = 0.9

LAG_MIN: Final = 1.0
"""Steps of delay that are worth a warning: they lower a momentum of 0.9 to 0.89."""

STEPS_MIN: Final = 200
"""Before this many, a threshold that adapts has not settled, nor have the delays."""

LOOK_EVERY: Final = 50


class MomentumAdvice(Feature):
    """Looks at the delays now and then, and warns once."""

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
