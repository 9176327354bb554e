"""`TargetDensity`: steers towards a part of all elements per update."""

import math
from dataclasses import dataclass
from typing import Final

from gradwire_codecs.policies.policy import (
    Observation,
    PolicyState,
    check_density,
    saved_optional,
)
from gradwire_codecs.policies.steering import SteeredThreshold

DENSITY: Final = 0.015
"""Part of all elements that an update should send, at some 9 bits each, times the root of the
number of workers. Less slows convergence; more takes more bytes and gains little where the first
updates are denser."""


def density_for(workers: int) -> float:
    """Return the density that suits a number of workers: in proportion to ``1/sqrt(workers)``.

    Each receives what all others send. Were the density the same for any number, 16 workers would
    take four times the bytes of 4, beside dense all-reduce; were it in proportion to ``1/workers``,
    changes would wait four times as long. A worker alone, whom nobody hears, sends as one of two.
    """
    return DENSITY / math.sqrt(max(workers, 2))


TARGET_DENSITY: Final = density_for(4)
"""Unless something else is said."""

GAIN_ABOVE: Final = 0.1
"""The gain after an update denser than the target. While a learning rate rises, changes grow in
every step: with the gain of sparser updates the threshold stayed so far behind that a schedule of
one cycle took 1.3 times the bytes."""


@dataclass(slots=True)
class TargetDensity(SteeredThreshold):
    """Raise the threshold after an update denser than the target, lower it after a sparser one.

    Deeplearning4j's TargetSparsityThresholdAlgorithm, with a step that depends on the distance from
    the target, so that the threshold converges.
    """

    target: float = TARGET_DENSITY
    """Part of all elements that an update should send, above 0 and below 1."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_density("target_density", self.target)
        SteeredThreshold.__post_init__(self)

    def first_density(self, elements: int) -> float:
        """Return the target."""
        return self.target

    def aim_at(self, target: float) -> None:
        """Change the target; the threshold moves along, as far as the density is to change."""
        if self.threshold is not None:
            self.threshold *= self.target / target
        self.target = target

    def observe(self, observation: Observation) -> None:
        """Move one step towards the target."""
        ratio = observation.density / self.target
        self._steer(ratio, observation.threshold, gain_above=GAIN_ABOVE)

    def state(self) -> PolicyState:
        """Return the threshold, the number of updates so far, and the target."""
        return {**SteeredThreshold.state(self), "target": self.target}

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved state; a threshold of another target moves to this one."""
        target = saved_optional(state, "target") or self.target
        SteeredThreshold.restore(self, state)
        if self.threshold is not None:
            self.threshold *= target / self.target
