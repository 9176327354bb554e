"""`ByteBudget`: steers towards a size per update, or a rate in bytes per second."""

import math
from dataclasses import dataclass, field
from typing import Final

from gradwire_codecs.errors import CodecError
from gradwire_codecs.policies.policy import (
    Observation,
    PolicyState,
    check_positive,
    saved_optional,
)
from gradwire_codecs.policies.steering import SteeredThreshold

UPDATE_BYTES_MIN: Final = 64
"""A header and some elements: no update could keep to a smaller budget."""

SECONDS_FIRST: Final = 0.1
"""Time between updates that the first threshold of a rate assumes."""

SMOOTHING: Final = 0.1
"""Weight of a new time in the mean time between updates."""

OUTLIER: Final = 4.0
"""A time between updates counts as at most this many times their mean: after an evaluation, the
next update should not be much larger."""

DENSITY_MAX: Final = 0.5


@dataclass(slots=True, kw_only=True)
class ByteBudget(SteeredThreshold):
    """Raise the threshold after an update larger than its budget, lower it after a smaller one.

    Budgets are for encoded updates: packets add some 3 % to large ones and 40 bytes to small ones.
    """

    update_bytes: float | None = None
    """Mean size of an update in bytes; 64 or more."""

    bytes_per_second: float | None = None
    """Rate of all updates of this worker. Exactly one of the two budgets has to be given."""

    _seconds: float | None = field(init=False, default=None)
    """Mean time between the last updates."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if (self.update_bytes is None) == (self.bytes_per_second is None):
            raise CodecError(
                f"update_bytes={self.update_bytes} and bytes_per_second={self.bytes_per_second}; "
                "set exactly one of them"
            )
        if self.update_bytes is not None and not UPDATE_BYTES_MIN <= self.update_bytes < math.inf:
            raise CodecError(
                f"update_bytes={self.update_bytes}; it has to be {UPDATE_BYTES_MIN} or more, finite"
            )
        if self.bytes_per_second is not None:
            check_positive("bytes_per_second", self.bytes_per_second)
        SteeredThreshold.__post_init__(self)

    def first_density(self, elements: int) -> float:
        """Return the density at which the entropy of positions and signs equals the budget."""
        bits = 8 * self._budget(SECONDS_FIRST if self._seconds is None else self._seconds)
        low, high = 0.0, DENSITY_MAX
        for _ in range(40):  # halvings: more than a density needs
            middle = (low + high) / 2
            low, high = (low, middle) if elements * _bits(middle) > bits else (middle, high)
        return max(low, min(1 / elements, DENSITY_MAX))

    def observe(self, observation: Observation) -> None:
        """Move one step towards the budget."""
        if observation.seconds > 0:
            mean = observation.seconds if self._seconds is None else self._seconds
            self._seconds = mean + SMOOTHING * (min(observation.seconds, OUTLIER * mean) - mean)
        if self.bytes_per_second is not None and self._seconds is None:
            return  # a single update has no rate
        budget = self._budget(self._seconds or 0.0)
        self._steer(observation.size_bytes / budget, observation.threshold)

    def state(self) -> PolicyState:
        """Return the threshold, the number of updates so far, and the mean time between them."""
        return {**SteeredThreshold.state(self), "seconds": self._seconds}

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved state."""
        seconds = saved_optional(state, "seconds")
        SteeredThreshold.restore(self, state)
        self._seconds = seconds

    def _budget(self, seconds: float) -> float:
        """Return the budget of one update in bytes, if `seconds` lie between updates."""
        if self.update_bytes is not None:
            return self.update_bytes
        assert self.bytes_per_second is not None
        return self.bytes_per_second * seconds


def _bits(density: float) -> float:
    """Return the mean bits per element, sent or not, of an update of this density."""
    if density == 0:
        return 0.0
    rest = 1 - density
    return density - density * math.log2(density) - rest * math.log2(rest)
