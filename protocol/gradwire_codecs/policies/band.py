"""`DensityBand`: the threshold stays while the density is within a band."""

import math
from dataclasses import dataclass, field
from typing import Final

from gradwire_codecs.errors import CodecError
from gradwire_codecs.policies.policy import (
    Observation,
    PolicyState,
    check_density,
    check_positive,
    saved_optional,
)
from gradwire_codecs.policies.steering import adjusted_threshold

LOW: Final = 1e-4
HIGH: Final = 1e-2
DECAY: Final = 0.5 ** (1 / 20)
"""Deeplearning4j's defaults: twenty updates outside of the band halve or double the threshold."""

DECAY_MIN: Final = 0.5
"""A smaller factor would jump over a narrow band."""


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
