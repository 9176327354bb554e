"""`SteeredThreshold`: the base of policies that steer towards a target."""

from dataclasses import dataclass, field
from typing import Final

from gradwire_codecs.policies.policy import (
    PolicyState,
    check_positive,
    saved_count,
    saved_optional,
)

GAIN: Final = 0.05
"""An update that misses the target multiplies the threshold by this power of its ratio to the
target. In the long run the density is inversely proportional to the threshold. But a lower
threshold at once sends all that has gathered below the old one, so a stronger gain makes the
density swing."""

GAIN_FIRST: Final = 0.5
"""The gain of the first update, if it is above the target; that of update n is 1/n of it, and not
below that of all later ones. The residual of the first steps grows quickly: a threshold that
followed slowly would send dense updates."""

RATIO_MIN: Final = 1 / 4
"""An update counts as at least this part of its target, so that an empty one lowers the threshold
by 7 %. Changes of equal size, as Adam's first ones are, reach a threshold together: a dense update
follows an empty one, and a threshold that was halved in between would never converge."""

FACTOR_MAX: Final = 2.0
"""Largest factor by which one update raises or lowers the threshold."""


@dataclass(slots=True, kw_only=True)
class SteeredThreshold:
    """A threshold that rises after an update above the target, and falls after one below it.

    Without `initial`, the first threshold is the quantile of the first residual that meets the
    target at once: a guess in absolute units would fit one model only.
    """

    initial: float | None = None
    """Threshold of the first update in units of the parameters; None takes the quantile."""

    threshold: float | None = field(init=False)
    _updates: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Refuse a first threshold that is not positive and finite."""
        if self.initial is not None:
            check_positive("initial", self.initial)
        self.threshold = self.initial

    def start(self, threshold: float) -> None:
        """Take `threshold` unless `initial` was given."""
        if self.threshold is None:
            self.threshold = threshold

    def _steer(self, ratio: float, used: float, *, gain_above: float = GAIN) -> None:
        """Adapt to an update that was `ratio` times the target, encoded with threshold `used`.

        `gain_above` is the gain of updates above the target.
        """
        if self.threshold is None:
            return
        self._updates += 1
        gain = max(gain_above, GAIN_FIRST / self._updates) if ratio > 1 else GAIN
        self.threshold = adjusted_threshold(self.threshold, used, max(ratio, RATIO_MIN) ** gain)

    def state(self) -> PolicyState:
        """Return the threshold, and the number of updates so far."""
        return {"threshold": self.threshold, "updates": float(self._updates)}

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved state."""
        threshold = saved_optional(state, "threshold")
        updates = saved_count(state, "updates", 0)
        self.threshold, self._updates = threshold, updates


def adjusted_threshold(threshold: float, used: float, factor: float) -> float:
    """Return `threshold` times `factor`, within `FACTOR_MAX` of `threshold` and of `used`.

    Thresholds that can be used have a minimum of one quantum, and a maximum. A threshold that moved
    far beyond either would take long to come back.
    """
    product = threshold * min(max(factor, 1 / FACTOR_MAX), FACTOR_MAX)
    return min(max(product, used / FACTOR_MAX), used * FACTOR_MAX)
