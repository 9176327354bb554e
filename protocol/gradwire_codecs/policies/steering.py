"""`SteeredThreshold`: what the policies that steer towards a target have in common."""

from dataclasses import dataclass, field
from typing import Final

from gradwire_codecs.policies.policy import (
    PolicyState,
    check_positive,
    saved_count,
    saved_optional,
)

GAIN: Final = 0.05
"""How strongly an update that misses the target moves the threshold: by this power of the ratio.
In the long run the density is inversely proportional to the threshold, but a threshold that falls
sets free at once what has gathered below it; a stronger gain makes the density swing."""

GAIN_FIRST: Final = 0.5
"""The same for the first update that is beyond the target, falling with one over their number: the
residual of the first steps grows quickly, and a threshold that followed slowly would send them
densely."""

RATIO_MIN: Final = 1 / 4
"""An update counts as at least this part of its target, so that one which sends nothing lowers the
threshold by 7 %. Changes of equal size, as Adam's first ones are, come in step: an empty update is
followed by a dense one, and a threshold that was halved in between would never come to rest."""

FACTOR_MAX: Final = 2.0
"""Most that one update multiplies or divides the threshold by."""


@dataclass(slots=True, kw_only=True)
class SteeredThreshold:
    """A threshold that rises after an update beyond the target, and falls after one below it.

    The first threshold, unless one is given, is the quantile of the first residual that leads to
    the target at once: a guess in absolute units fits no model but the one it was made for.
    """

    initial: float | None = None
    """Threshold of the first update in units of the parameters; None takes the quantile."""

    threshold: float | None = field(init=False)
    _updates: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Refuse a first threshold that cannot work."""
        if self.initial is not None:
            check_positive("initial", self.initial)
        self.threshold = self.initial

    def start(self, threshold: float) -> None:
        """Take `threshold` unless `initial` was given."""
        if self.threshold is None:
            self.threshold = threshold

    def _steer(self, ratio: float, used: float) -> None:
        """Move one step, after an update that was `ratio` times the target, encoded with `used`."""
        if self.threshold is None:
            return
        self._updates += 1
        gain = max(GAIN, GAIN_FIRST / self._updates) if ratio > 1 else GAIN
        self.threshold = adjusted_threshold(self.threshold, used, max(ratio, RATIO_MIN) ** gain)

    def state(self) -> PolicyState:
        """Return the present threshold, and how many updates have led to it."""
        return {"threshold": self.threshold, "updates": float(self._updates)}

    def restore(self, state: PolicyState) -> None:
        """Take over both."""
        threshold = saved_optional(state, "threshold")
        updates = saved_count(state, "updates", 0)
        self.threshold, self._updates = threshold, updates


def adjusted_threshold(threshold: float, used: float, factor: float) -> float:
    """Return `threshold` times `factor`, neither far from before nor from what was `used`.

    One quantum is the least that can be used, and there is a most. A threshold that went on beyond
    either would have to come all the way back.
    """
    product = threshold * min(max(factor, 1 / FACTOR_MAX), FACTOR_MAX)
    return min(max(product, used / FACTOR_MAX), used * FACTOR_MAX)
