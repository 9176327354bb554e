"""Policies that steer a density: `TargetDensity` and `DensityBand`."""

import math
from dataclasses import dataclass, field
from typing import Final

from gradwire_codecs.errors import CodecError
from gradwire_codecs.policies.policy import (
    Observation,
    PolicyState,
    check_density,
    check_positive,
    saved_count,
    saved_optional,
)

GAIN: Final = 0.05
"""An update that misses the target multiplies the threshold by this power of its ratio to the
target. In the long run the density is inversely proportional to the threshold. But a lower
threshold at once sends all that has gathered below the old one, so a stronger gain makes the
density swing."""

GAIN_ABOVE: Final = 0.1
"""The gain after an update denser than the target. While a learning rate rises, changes grow in
every step: with the gain of sparser updates the threshold stayed so far behind that a schedule of
one cycle took 1.3 times the bytes."""

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

DENSITY: Final = 0.015
"""Part of all elements that an update should send, at some 9 bits each, times the root of the
number of workers. Less slows convergence; more takes more bytes and gains little where the first
updates are denser."""

LOW: Final = 1e-4
HIGH: Final = 1e-2
DECAY: Final = 0.5 ** (1 / 20)
"""Deeplearning4j's defaults: twenty updates outside of the band halve or double the threshold."""

DECAY_MIN: Final = 0.5
"""A smaller factor would jump over a narrow band."""


def adjusted_threshold(threshold: float, used: float, factor: float) -> float:
    """Return `threshold` times `factor`, within `FACTOR_MAX` of `threshold` and of `used`.

    Thresholds that can be used have a minimum of one quantum, and a maximum. A threshold that moved
    far beyond either would take long to come back.
    """
    product = threshold * min(max(factor, 1 / FACTOR_MAX), FACTOR_MAX)
    return min(max(product, used / FACTOR_MAX), used * FACTOR_MAX)


def density_for(workers: int) -> float:
    """Return the density that suits a number of workers: in proportion to ``1/sqrt(workers)``.

    Each receives what all others send. Were the density the same for any number, 16 workers would
    take four times the bytes of 4, beside dense all-reduce; were it in proportion to ``1/workers``,
    changes would wait four times as long. A worker alone, whom nobody hears, sends as one of two.
    """
    return DENSITY / math.sqrt(max(workers, 2))


TARGET_DENSITY: Final = density_for(4)
"""Unless something else is said."""


@dataclass(slots=True)
class TargetDensity:
    """Raise the threshold after an update denser than the target, lower it after a sparser one.

    Deeplearning4j's TargetSparsityThresholdAlgorithm, with a step that depends on the distance from
    the target, so that the threshold converges. Without `initial`, the first threshold is the
    quantile of the first residual that meets the target at once: a guess in absolute units would
    fit one model only.
    """

    target: float = TARGET_DENSITY
    """Part of all elements that an update should send, above 0 and below 1."""

    initial: float | None = field(default=None, kw_only=True)
    """Threshold of the first update in units of the parameters; None takes the quantile."""

    threshold: float | None = field(init=False)
    _updates: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_density("target_density", self.target)
        if self.initial is not None:
            check_positive("initial", self.initial)
        self.threshold = self.initial

    def first_density(self, elements: int) -> float:
        """Return the target."""
        return self.target

    def aim_at(self, target: float) -> None:
        """Change the target; the threshold moves along, as far as the density is to change."""
        if self.threshold is not None:
            self.threshold *= self.target / target
        self.target = target

    def start(self, threshold: float) -> None:
        """Take `threshold` unless `initial` was given."""
        if self.threshold is None:
            self.threshold = threshold

    def observe(self, observation: Observation) -> None:
        """Move one step towards the target."""
        if self.threshold is None:
            return
        self._updates += 1
        ratio = observation.density / self.target
        gain = max(GAIN_ABOVE, GAIN_FIRST / self._updates) if ratio > 1 else GAIN
        factor = max(ratio, RATIO_MIN) ** gain
        self.threshold = adjusted_threshold(self.threshold, observation.threshold, factor)

    def state(self) -> PolicyState:
        """Return the threshold, the number of updates so far, and the target."""
        updates = float(self._updates)
        return {"threshold": self.threshold, "updates": updates, "target": self.target}

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved state; a threshold of another target moves to this one."""
        target = saved_optional(state, "target") or self.target
        threshold, updates = saved_optional(state, "threshold"), saved_count(state, "updates", 0)
        self.threshold, self._updates = threshold, updates
        if self.threshold is not None:
            self.threshold *= target / self.target


@dataclass(slots=True)
class DensityBand:
    """Lower the threshold after an update sparser than the band, raise it after a denser one.

    Deeplearning4j's AdaptiveThresholdAlgorithm, with three differences. It observes the density
    that an update really had; Deeplearning4j takes 1/16 for every dense update. The threshold stays
    near those that can be used. And without `initial`, the first threshold is the quantile of the
    first residual for the middle of the band; Deeplearning4j's is 1e-4, in units of the parameters.
    """

    low: float = LOW
    """Lower end of the band: part of all elements that an update sends, above 0 and below 1."""

    high: float = HIGH
    """Upper end of the band, below 1 and not below `low`."""

    initial: float | None = None
    """Threshold of the first update in units of the parameters; None takes the quantile."""

    decay: float = DECAY
    """Factor of the threshold after an update below the band; one above the band divides by it."""

    threshold: float | None = field(init=False)

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_density("low", self.low)
        check_density("high", self.high)
        if self.low > self.high:
            raise CodecError(f"low={self.low} and high={self.high}; low has to be at most high")
        if not DECAY_MIN <= self.decay < 1:
            raise CodecError(f"decay={self.decay}; it has to be in [{DECAY_MIN}, 1)")
        if self.initial is not None:
            check_positive("initial", self.initial)
        self.threshold = self.initial

    def first_density(self, elements: int) -> float:
        """Return the middle of the band, by ratio."""
        return math.sqrt(self.low * self.high)

    def start(self, threshold: float) -> None:
        """Take `threshold` unless `initial` was given."""
        if self.threshold is None:
            self.threshold = threshold

    def observe(self, observation: Observation) -> None:
        """Move one step where the update was outside of the band."""
        if self.threshold is None or self.low <= observation.density <= self.high:
            return
        factor = self.decay if observation.density < self.low else 1 / self.decay
        self.threshold = adjusted_threshold(self.threshold, observation.threshold, factor)

    def state(self) -> PolicyState:
        """Return the present threshold."""
        return {"threshold": self.threshold}

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved threshold."""
        self.threshold = saved_optional(state, "threshold")
