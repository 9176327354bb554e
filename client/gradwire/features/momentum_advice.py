"""`MomentumAdvice`: says once that momentum is too high, where nobody let gradwire lower it.

Without an optimizer given to `join` it is not known what momentum there is. But the delays are, and
so is what a usual momentum would have to be with them.
"""

import logging
from collections.abc import Callable
from typing import Final

from gradwire.optimizer.momentum import Lag, compensated, rate_factor
from gradwire.participant.feature import Feature

logger = logging.getLogger("gradwire.session")

USUAL_MOMENTUM: Final = 0.9

LAG_MIN: Final = 1.0
"""Steps of delay that are worth a warning: they leave 0.89 of a momentum of 0.9."""

STEPS_MIN: Final = 200
"""Before so many, a threshold that adapts has not come to rest, nor have the delays."""

LOOK_EVERY: Final = 50


class MomentumAdvice(Feature):
    """Looks at the delays now and then, and warns once.

    Parameters
    ----------
    lag : callable
        Returns how late changes are.
    """

    def __init__(self, lag: Callable[[], Lag]) -> None:
        self._lag = lag
        self._steps = 0
        self._said = False

    def stepped(self) -> None:
        """Warn, if there is reason to."""
        self._steps += 1
        if self._said or self._steps < STEPS_MIN or self._steps % LOOK_EVERY:
            return
        lag = self._lag()
        if lag.total >= LAG_MIN:
            self._said = True
            logger.warning(
                "changes take effect %.1f steps late (they wait in the residual, and on the "
                "network), which acts like momentum: where %g would be right without that, it is "
                "%.2f with it for the first of Adam's betas, and %.2f for SGD's momentum, at a "
                "learning rate %.2g times as high. Pass optimizer=optimizer to join, which does "
                "that by what is measured, or set it yourself and pass momentum='keep'",
                lag.total,
                USUAL_MOMENTUM,
                compensated(USUAL_MOMENTUM, lag.of_momentum(sums=False)),
                of_sum := compensated(USUAL_MOMENTUM, lag.of_momentum(sums=True)),
                rate_factor(USUAL_MOMENTUM, of_sum),
            )
