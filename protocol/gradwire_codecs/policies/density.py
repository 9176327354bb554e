"""`TargetDensity`: steers towards a part of all elements per update."""

from dataclasses import dataclass
from typing import Final

from gradwire_codecs.policies.policy import Observation, check_density
from gradwire_codecs.policies.steering import SteeredThreshold

TARGET_DENSITY: Final = 0.01
"""One element in a hundred per update, at some 9 bits each. Less slows convergence; more takes more
bytes and gains little."""


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

    def observe(self, observation: Observation) -> None:
        """Move one step towards the target."""
        self._steer(observation.density / self.target, observation.threshold)
